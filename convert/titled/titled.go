package titled

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// Parse parses an artifact of titled layers. It is a convert.Parser.
func Parse(ctx context.Context, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	if !convert.IsTitled(m) {
		return nil, fmt.Errorf("manifest %s: %w", m.Digest, convert.ErrNotModel)
	}
	b := convert.NewBuilder(m, mediatype.FormatTitled)
	if m.Config.Digest != "" && mediatype.Base(m.Config.MediaType) != mediatype.OCIEmpty {
		p, err := convert.ReadBlob(ctx, a, m.Config, convert.MaxConfigSize)
		if err != nil {
			return nil, fmt.Errorf("config: %w", err)
		}
		b.KeepConfig(p)
	}
	for i, l := range m.Layers {
		p, err := place(l)
		if err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", i, l.Digest, err)
		}
		if err := b.Add(i, p); err != nil {
			return nil, err
		}
	}
	return b.Model(ctx, a, describe(m.Annotations))
}

// place says where a layer goes. What is unpacked is a tar with gzip, whatever its media type.
// https://github.com/oras-project/oras-go/blob/v2.6.0/content/file/file.go
func place(l convert.Descriptor) (convert.Place, error) {
	title := l.Annotations[mediatype.AnnotationTitle]
	if l.Annotations[mediatype.OrasUnpack] != "true" {
		return convert.Place{Kind: convert.KindByPath(title), Path: title}, nil
	}
	p := convert.Place{Kind: mediatype.KindWeight, Archive: filetable.ArchiveTar, Codec: filetable.CodecGzip}
	if s := l.Annotations[mediatype.OrasDigest]; s != "" {
		d, err := verify.ParseDigest(s)
		if err != nil {
			return convert.Place{}, fmt.Errorf("annotation %s: %w: %w", mediatype.OrasDigest, err, errdefs.ErrInvalidArgument)
		}
		p.DiffID = d
	}
	return p, nil
}

// describe returns what annotations of the manifest say.
func describe(a map[string]string) convert.Config {
	c := convert.Config{Descriptor: convert.ModelDescriptor{
		CreatedAt:   convert.RFC3339(a[mediatype.AnnotationCreated]),
		Title:       a[mediatype.AnnotationTitle],
		Description: a[mediatype.AnnotationDescription],
	}}
	if s := a[mediatype.AnnotationLicenses]; s != "" {
		c.Descriptor.Licenses = []string{s}
	}
	return c
}
