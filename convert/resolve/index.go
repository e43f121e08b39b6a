package resolve

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// Limits for the entries of an index that must be read to determine what they are, and for the
// number of simultaneous reads.
const (
	maxUnclear = 64
	maxAtOnce  = 4
)

// clarity is how much a descriptor reveals about an entry.
type clarity int

const (
	unclear clarity = iota
	ordinary
	model
	nested
)

// clarityOf returns how much the descriptor of an entry reveals.
func clarityOf(d convert.Descriptor) clarity {
	switch {
	case mediatype.IsIndex(d.MediaType), mediatype.IsVariants(d.MediaType):
		return nested
	case mediatype.FormatOf(d.ArtifactType) != "", mediatype.FormatOf(d.MediaType) != "":
		return model
	case d.ArtifactType != "":
		return ordinary
	case d.Platform != nil && d.Platform.OS != "" && d.Platform.Architecture != "":
		return ordinary
	case !mediatype.IsManifest(d.MediaType):
		return ordinary
	}
	return unclear
}

// candidates returns the entries of an index that can be models, without duplicate digests.
func (o *Origin) candidates() ([]convert.Descriptor, error) {
	seen := map[digest.Digest]bool{}
	var all []convert.Descriptor
	reads := 0
	for i, d := range o.Manifest.Manifests {
		is := clarityOf(d)
		if is == nested {
			return nil, o.nested(i, d)
		}
		if is == unclear {
			reads++
		}
		if reads > maxUnclear {
			return nil, fmt.Errorf("%s: index with more than %d entries that say neither what they are nor for which platform: %w", o.Ref, maxUnclear, errdefs.ErrInvalidArgument)
		}
		if is != ordinary && !seen[d.Digest] {
			seen[d.Digest] = true
			all = append(all, d)
		}
	}
	return all, nil
}

func (o *Origin) nested(i int, d convert.Descriptor) error {
	return fmt.Errorf("%s: entry %d of the index (%s) is an index: %w", o.Ref, i, d.Digest, errdefs.ErrNotImplemented)
}

// Index returns the converted index of an index. imageOf returns the image that an entry is
// converted to, also if it was converted before (Preconverted), and convert.ErrNotModel for an
// entry that is not a model. It is called once for each entry that can be a model, concurrently.
//
// If nothing has to be converted, the index is unchanged, and its own digest is returned. Index
// returns convert.ErrNotModel for an index without models, and errdefs.ErrNotImplemented for an
// index in an index.
func Index(ctx context.Context, o *Origin, imageOf func(context.Context, convert.Descriptor) (*image.Image, error)) (*image.Image, error) {
	all, err := o.candidates()
	if err != nil {
		return nil, err
	}
	images := make([]*image.Image, len(all))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxAtOnce)
	for i, d := range all {
		g.Go(func() error {
			im, err := imageOf(gctx, d)
			if errors.Is(err, convert.ErrNotModel) {
				if clarityOf(d) == model {
					return fmt.Errorf("%s: the index says that it is a model, but it is an image: %w", o.Child(d.Digest), errdefs.ErrInvalidArgument)
				}
				return nil
			}
			images[i] = im
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	byOrigin := map[digest.Digest]*image.Image{}
	converted := false
	for i, d := range all {
		if images[i] != nil {
			byOrigin[d.Digest] = images[i]
			converted = converted || images[i].Digest != d.Digest
		}
	}
	switch {
	case len(byOrigin) == 0:
		return nil, fmt.Errorf("%s: an index without models: %w", o.Ref, convert.ErrNotModel)
	case !converted:
		return &image.Image{Manifest: o.Served.Bytes, Digest: o.Served.Digest}, nil
	}
	children := make([]image.Child, len(o.Manifest.Manifests))
	for i, d := range o.Manifest.Manifests {
		children[i].Desc = d.Descriptor
		if im := byOrigin[d.Digest]; im != nil && im.Digest != d.Digest && clarityOf(d) != ordinary {
			children[i].Image = im
		}
	}
	return image.BuildIndex(o.Served.Digest, children)
}

// Index makes the image of the index o, without storing anything.
func (r *Resolver) Index(ctx context.Context, o *Origin) (*image.Image, error) {
	return Index(ctx, o, func(ctx context.Context, d convert.Descriptor) (*image.Image, error) {
		child, err := Read(ctx, o.Repo, o.Child(d.Digest))
		switch {
		case err != nil:
			return nil, err
		case child.Ahead():
			p, err := child.Preconverted(ctx)
			if err != nil {
				return nil, err
			}
			return &p.Image, nil
		case child.Format == mediatype.FormatIndex:
			return nil, fmt.Errorf("%s: an index in an index: %w", child.Ref, errdefs.ErrNotImplemented)
		case !child.isModel():
			return nil, convert.ErrNotModel
		}
		m, err := r.Model(ctx, child)
		if err != nil {
			return nil, err
		}
		return image.Build(m)
	})
}
