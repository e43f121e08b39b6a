package convert

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// MaxKept is the size in bytes of the largest document of an origin that is kept in the config of a
// converted image. A larger one is a file of the model below OriginDir, because registries and
// clients limit the size of a config.
const MaxKept = 1 << 20 // 1 MiB

// OriginDir is the directory of documents of the origin that are too large for a config.
const OriginDir = "origin"

// emptyConfig is the config of artifacts without one.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/manifest.md#guidance-for-an-empty-descriptor
const emptyConfig = "{}"

// isEmpty reports whether the config of a manifest is the empty one, which need not be read.
func isEmpty(m *Manifest) bool {
	return m.Config.Digest != "" && verify.Bytes(m.Config.Digest, []byte(emptyConfig)) == nil
}

// documents returns the documents of the origin, and adds files for those that are too large for
// the config.
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

// ReadConfig reads the config of a manifest that describes its model; nil if there is none, or the empty one.
func ReadConfig(ctx context.Context, a Artifact, m *Manifest) ([]byte, error) {
	if m.Config.Digest == "" || mediatype.Base(m.Config.MediaType) == mediatype.OCIEmpty {
		return nil, nil
	}
	p, err := ReadBlob(ctx, a, m.Config, MaxConfigSize)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return p, nil
}

// ReadDocuments reads the documents of an artifact whose config does not describe its model. A
// config larger than MaxKept is not read.
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
