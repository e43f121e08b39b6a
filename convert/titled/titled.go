package titled

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// parse parses an artifact of titled layers.
func parse(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	if claim, _ := detect(m); claim == format.None {
		return nil, fmt.Errorf("manifest %s: %w", m.Digest, convert.ErrNotModel)
	}
	b := convert.NewBuilder(m, mediatype.FormatTitled)
	p, err := convert.ReadConfig(ctx, a, m)
	if err != nil {
		return nil, err
	}
	b.KeepConfig(p)
	if err := b.AddLayers(place); err != nil {
		return nil, err
	}
	return b.Model(ctx, a, describe(m.Annotations))
}

// place returns the place of a layer. A layer to unpack is a tar with gzip, whatever its media
// type.
// https://github.com/oras-project/oras-go/blob/v2.6.0/content/file/file.go
func place(_ int, l convert.Descriptor) (convert.Place, error) {
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

// describe returns the facts in annotations of the manifest.
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
