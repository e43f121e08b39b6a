package image

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// keep returns the documents to keep in the config, in base64: those that are not a file in the
// table. The manifest of a child always is one.
func keep(m *convert.Model) *convert.Documents {
	unlessFile := func(p []byte) []byte {
		if len(p) > convert.MaxKept || len(inline(&m.Table, digest.FromBytes(p))) > 0 {
			return nil
		}
		return p
	}
	d := convert.Documents{Manifest: unlessFile(m.Documents.Manifest), Config: unlessFile(m.Documents.Config)}
	if len(d.Manifest)+len(d.Config) == 0 {
		return nil
	}
	return &d
}

// inline returns the content of a file that is in the table itself, or nil.
func inline(t *filetable.Table, d digest.Digest) []byte {
	for _, f := range t.Files {
		if f.Digest == d && f.Source != nil && len(f.Source.Inline) > 0 {
			return f.Source.Inline
		}
	}
	return nil
}

// Documents returns the verified documents of the origin of a converted image, using only its
// config and table. It returns errdefs.ErrNotFound if the image does not contain the manifest,
// because its origin has none. Other documents that it does not contain are nil.
func Documents(configJSON []byte, t *filetable.Table) (convert.Documents, error) {
	var cfg config
	if err := json.Unmarshal(configJSON, &cfg); err != nil {
		return convert.Documents{}, fmt.Errorf("config of the image: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if cfg.Origin == nil {
		cfg.Origin = &convert.Documents{}
	}
	find := func(d digest.Digest, kept []byte) []byte {
		if d != "" && len(kept) > 0 && verify.Bytes(d, kept) == nil {
			return kept
		}
		return inline(t, d)
	}
	docs := convert.Documents{Manifest: find(t.Origin.Digest, cfg.Origin.Manifest)}
	if docs.Manifest == nil {
		return convert.Documents{}, fmt.Errorf("the manifest of the origin is not in the image: %w", errdefs.ErrNotFound)
	}
	if verify.Bytes(t.Origin.Digest, docs.Manifest) != nil {
		return convert.Documents{}, fmt.Errorf("the manifest in the image is not that of the origin: %w", errdefs.ErrInvalidArgument)
	}
	m, err := convert.ParseManifest(docs.Manifest)
	if err != nil {
		return docs, nil // the origin of a carton may not be a manifest
	}
	if mediatype.IsVariants(m.MediaType) {
		docs.Child = inline(t, digest.Digest(cfg.Descriptor.Revision))
		if m, err = convert.ParseManifest(docs.Child); err != nil {
			docs.Child = nil
			return docs, nil
		}
	}
	docs.Config = find(m.Config.Digest, cfg.Origin.Config)
	return docs, nil
}

// ContextLength returns Model.ContextLength from the annotations of a converted image.
func ContextLength(annotations map[string]string) int64 {
	n, err := strconv.ParseInt(annotations[mediatype.AnnotationContextLength], 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Origin returns the annotations that identify the origin of an image.
func Origin(o filetable.Origin) map[string]string {
	a := map[string]string{
		mediatype.AnnotationOriginFormat: o.Format,
		mediatype.AnnotationOriginDigest: o.Digest.String(),
		mediatype.AnnotationMapping:      strconv.Itoa(o.Mapping),
	}
	if o.Prefix != "" {
		a[mediatype.AnnotationPrefix] = o.Prefix
	}
	return a
}

// Annotate adds the context length and Model.Runner to the annotations of a manifest.
func Annotate(annotations map[string]string, contextLength int64, r convert.Runner) {
	if contextLength > 0 {
		annotations[mediatype.AnnotationContextLength] = strconv.FormatInt(contextLength, 10)
	}
	for key, value := range map[string]string{
		mediatype.AnnotationRunner: r.Name, mediatype.AnnotationFramework: r.FrameworkVersion,
		mediatype.AnnotationPlatforms: strings.Join(r.Platforms, ","),
	} {
		if value != "" {
			annotations[key] = value
		}
	}
}

// RunnerOf returns Model.Runner from the annotations of a manifest.
func RunnerOf(annotations map[string]string) convert.Runner {
	r := convert.Runner{Name: annotations[mediatype.AnnotationRunner], FrameworkVersion: annotations[mediatype.AnnotationFramework]}
	if s := annotations[mediatype.AnnotationPlatforms]; s != "" {
		r.Platforms = strings.Split(s, ",")
	}
	return r
}
