package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Image is what the store knows of a converted image. Its manifest, config and table are
// objects, kept as long as the image is.
type Image = meta.Image

// PutImage records an image, or adds the Refs to the one there is. A reference names one
// image at a time: it is taken from the image that had it.
func (s *Store) PutImage(ctx context.Context, im Image) error {
	defer s.objects.HandOver(im.Manifest, im.Config, im.Table)
	return s.db.PutImage(im)
}

// SetPublic records that the origin of an image was read under a name without credentials of
// the caller.
func (s *Store) SetPublic(ctx context.Context, manifest digest.Digest, name string) error {
	return s.db.SetPublic(manifest, name)
}

// Image returns the image with the given manifest digest, or errdefs.ErrNotFound.
func (s *Store) Image(ctx context.Context, manifest digest.Digest) (Image, error) {
	return s.db.Image(manifest)
}

// ImageByOrigin returns the image made from an origin, or errdefs.ErrNotFound.
func (s *Store) ImageByOrigin(ctx context.Context, o filetable.Origin) (Image, error) {
	all, err := s.db.Images()
	if err != nil {
		return Image{}, err
	}
	i := slices.IndexFunc(all, func(im Image) bool { return im.Origin == o })
	if i < 0 {
		return Image{}, fmt.Errorf("image made from %s: %w", o.Digest, errdefs.ErrNotFound)
	}
	return all[i], nil
}

// ImagesByTable returns the images that have the table.
func (s *Store) ImagesByTable(ctx context.Context, table digest.Digest) ([]Image, error) {
	all, err := s.db.Images()
	return slices.DeleteFunc(all, func(im Image) bool { return im.Table != table }), err
}

// Images returns all images, by first reference.
func (s *Store) Images(ctx context.Context) ([]Image, error) { return s.db.Images() }

// RemoveRefs takes references from an image, and forgets it when the last one is gone.
func (s *Store) RemoveRefs(ctx context.Context, manifest digest.Digest, refs ...string) error {
	return s.db.RemoveRefs(manifest, refs)
}

// RemoveImage forgets an image. Objects that a snapshot or a pin refers to stay.
func (s *Store) RemoveImage(ctx context.Context, manifest digest.Digest) error {
	return s.db.RemoveImage(manifest)
}
