package convert

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// MaxKept is the largest document of an origin that is kept in the config of a converted image,
// in bytes. A larger one is a file of the model, below OriginDir: registries and clients
// bound the size of a config.
const MaxKept = 1 << 20 // 1 MiB

// OriginDir is where documents of the origin are that are too large for a config.
const OriginDir = "origin"

// emptyConfig is the config of artifacts without one.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/manifest.md#guidance-for-an-empty-descriptor
const emptyConfig = "{}"

// isEmpty reports whether the config of a manifest is the empty one, which need not be read.
func isEmpty(m *Manifest) bool {
	return m.Config.Digest != "" && verify.Bytes(m.Config.Digest, []byte(emptyConfig)) == nil
}

// documents returns the documents of the origin, and makes files of those that are too large to be
// kept elsewhere.
func (b *Builder) documents(a Artifact) Documents {
	docs := Documents{Manifest: a.Manifest(), Config: b.config}
	if docs.Config == nil && isEmpty(b.manifest) {
		docs.Config = []byte(emptyConfig)
	}
	for _, doc := range []struct {
		name string
		p    []byte
	}{{"manifest.json", docs.Manifest}, {"config.json", docs.Config}} {
		d := digest.FromBytes(doc.p)
		if len(doc.p) > MaxKept && !slices.ContainsFunc(b.inlines, func(f placed) bool { return f.Digest == d }) {
			b.Generate(OriginDir+"/"+doc.name, doc.p)
		}
	}
	return docs
}

// ReadDocuments reads the documents of an artifact whose config has no meaning for its model. A
// config of more than MaxKept bytes is not read.
func ReadDocuments(ctx context.Context, a Artifact, m *Manifest) (Documents, error) {
	docs := Documents{Manifest: a.Manifest()}
	switch {
	case m.Config.Digest == "" || m.Config.Size > MaxKept:
	case isEmpty(m):
		docs.Config = []byte(emptyConfig)
	default:
		var err error
		if docs.Config, err = ReadBlob(ctx, a, m.Config, MaxKept); err != nil {
			return Documents{}, fmt.Errorf("config: %w", err)
		}
	}
	return docs, nil
}
