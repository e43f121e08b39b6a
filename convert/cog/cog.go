package cog

import (
	"context"
	"fmt"
	"maps"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// parse parses managed weights.
func parse(ctx context.Context, _ format.Settings, a convert.Artifact, m *convert.Manifest) (*convert.Model, error) {
	p, err := convert.ReadConfig(ctx, a, m)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, fmt.Errorf("no config: %w", errdefs.ErrInvalidArgument)
	}
	o, err := convert.ParseObject(p)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	b := convert.NewBuilder(m, mediatype.FormatCog)
	b.KeepConfig(p)
	if err := b.AddLayers(place); err != nil {
		return nil, err
	}
	model, err := b.Model(ctx, a, convert.Config{Descriptor: convert.ModelDescriptor{Name: o.String("name")}})
	if err != nil {
		return nil, err
	}
	if err := addDigests(&model.Table, o.Objects("files")); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := o.Err(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return model, model.Table.Validate()
}

// place returns the place of a layer, which is a tar with or without compression.
func place(_ int, l convert.Descriptor) (convert.Place, error) {
	t, err := mediatype.Parse(l.MediaType)
	if err != nil {
		return convert.Place{}, err
	}
	if !mediatype.IsImageLayer(l.MediaType) || t.Archive != filetable.ArchiveTar {
		return convert.Place{}, fmt.Errorf("media type %q is not a layer of weights: %w", t.Base, errdefs.ErrNotImplemented)
	}
	return convert.Place{Kind: mediatype.KindWeight, Archive: t.Archive, Codec: t.Codec}, nil
}

// A member is a file of a layer.
type member struct {
	layer digest.Digest
	path  string
}

// addDigests adds the digests of an index to the files of a table, and to its compressed layers, whose files are not
// known yet.
func addDigests(t *filetable.Table, index []*convert.Object) error {
	if len(index) == 0 {
		return nil
	}
	packed := map[digest.Digest]bool{} // the layers, and whether their files are unknown
	for _, b := range t.Blobs {
		packed[b.Digest] = b.Codec != filetable.CodecNone
	}
	files := map[member]*filetable.File{}
	for i, f := range t.Files {
		if f.Source != nil && f.Type == filetable.TypeReg {
			files[member{f.Source.Blob, f.Path}] = &t.Files[i]
		}
	}
	unlisted := maps.Clone(files)
	listed := map[digest.Digest][]filetable.Member{} // by layer
	for _, e := range index {
		d, err := verify.ParseDigest(e.String("digest"))
		if err != nil {
			return fmt.Errorf("file %.200q: %w", e.String("path"), err)
		}
		at := member{digest.Digest(e.String("layer")), e.String("path")}
		size, _ := e.Int("size")
		unknown, ok := packed[at.layer]
		f := files[at]
		delete(unlisted, at)
		switch {
		case unknown:
		case !ok:
			return fmt.Errorf("file %.200q: no layer %.100q: %w", at.path, at.layer, errdefs.ErrInvalidArgument)
		case f == nil || f.Size != size || f.Digest != "" && f.Digest != d:
			return fmt.Errorf("file %.200q: layer %s has no such file of %d bytes: %w", at.path, at.layer, size, errdefs.ErrInvalidArgument)
		default:
			f.Digest = d
		}
		listed[at.layer] = append(listed[at.layer], filetable.Member{Path: at.path, Type: filetable.TypeReg, Size: size, Digest: d})
	}
	for i, b := range t.Blobs {
		if packed[b.Digest] {
			t.Blobs[i].Files = filetable.FilesDigest(listed[b.Digest])
		}
	}
	for at := range unlisted {
		return fmt.Errorf("file %.200q of layer %s is not listed: %w", at.path, at.layer, errdefs.ErrInvalidArgument)
	}
	return nil
}
