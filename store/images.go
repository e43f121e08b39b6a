package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// Image is what the store knows of a converted image. Its manifest, config and table are
// objects, kept as long as the image is.
type Image struct {
	Manifest digest.Digest    `json:"manifest"` // of the converted image; the key
	Config   digest.Digest    `json:"config"`
	Table    digest.Digest    `json:"table"`
	Origin   filetable.Origin `json:"origin"`

	// Refs are the references it was resolved from, "host/repository:tag" or
	// "host/repository@digest", sorted, each once.
	Refs []string `json:"refs"`

	// Size is the sum of the sizes of the model's files as far as known, in bytes.
	Size int64 `json:"size"`

	// PrivateNames are the names ("host/repository") under which the origin could be read
	// only with credentials of the caller, sorted.
	PrivateNames []string `json:"privateNames,omitempty"`

	Created time.Time `json:"created"`
	Used    time.Time `json:"used"`
}

// PutImage records an image, or adds the Refs to the one there is. A reference names one
// image at a time: it is taken from the image that had it.
func (s *Store) PutImage(ctx context.Context, im Image) error {
	now := time.Now().UTC()
	defer s.handOver([]digest.Digest{im.Manifest, im.Config, im.Table})
	return s.db.Update(func(tx *bbolt.Tx) error {
		var stale []Image
		err := each(tx, bucketImages, func(_ string, old Image) error {
			n := len(old.Refs)
			if old.Manifest == im.Manifest {
				im.Refs = append(im.Refs, old.Refs...)
				im.PrivateNames = append(im.PrivateNames, old.PrivateNames...)
				im.Created = old.Created
				return nil
			}
			old.Refs = slices.DeleteFunc(old.Refs, func(r string) bool { return slices.Contains(im.Refs, r) })
			if len(old.Refs) != n {
				stale = append(stale, old)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, old := range stale {
			if err := put(tx, bucketImages, old.Manifest.String(), old); err != nil {
				return err
			}
		}
		slices.Sort(im.Refs)
		im.Refs = slices.Compact(im.Refs)
		slices.Sort(im.PrivateNames)
		im.PrivateNames = slices.Compact(im.PrivateNames)
		if im.Created.IsZero() {
			im.Created = now
		}
		im.Used = now
		return put(tx, bucketImages, im.Manifest.String(), im)
	})
}

// SetPublic records that the origin of an image was read under a name without credentials of
// the caller.
func (s *Store) SetPublic(ctx context.Context, manifest digest.Digest, name string) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		im, err := load[Image](tx, bucketImages, manifest.String())
		if err != nil {
			return err
		}
		im.PrivateNames = slices.DeleteFunc(im.PrivateNames, func(n string) bool { return n == name })
		return put(tx, bucketImages, manifest.String(), im)
	})
}

// Image returns the image with the given manifest digest, or errdefs.ErrNotFound.
func (s *Store) Image(ctx context.Context, manifest digest.Digest) (im Image, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		im, err = load[Image](tx, bucketImages, manifest.String())
		return err
	})
	return im, err
}

// ImageByOrigin returns the image made from an origin, or errdefs.ErrNotFound.
func (s *Store) ImageByOrigin(ctx context.Context, o filetable.Origin) (Image, error) {
	all, err := s.images(func(im Image) bool { return im.Origin == o })
	if err != nil {
		return Image{}, err
	}
	if len(all) == 0 {
		return Image{}, fmt.Errorf("image made from %s: %w", o.Digest, errdefs.ErrNotFound)
	}
	return all[0], nil
}

// ImagesByTable returns the images that have the table.
func (s *Store) ImagesByTable(ctx context.Context, table digest.Digest) ([]Image, error) {
	return s.images(func(im Image) bool { return im.Table == table })
}

// Images returns all images, by first reference.
func (s *Store) Images(ctx context.Context) ([]Image, error) {
	return s.images(func(Image) bool { return true })
}

func (s *Store) images(want func(Image) bool) (out []Image, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return each(tx, bucketImages, func(_ string, im Image) error {
			if want(im) {
				out = append(out, im)
			}
			return nil
		})
	})
	slices.SortFunc(out, func(a, b Image) int {
		return cmp.Or(slices.Compare(a.Refs, b.Refs), cmp.Compare(a.Manifest, b.Manifest))
	})
	return out, err
}

// RemoveRefs takes references from an image, and forgets it when the last one is gone.
func (s *Store) RemoveRefs(ctx context.Context, manifest digest.Digest, refs ...string) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		im, err := load[Image](tx, bucketImages, manifest.String())
		if err != nil {
			return err
		}
		im.Refs = slices.DeleteFunc(im.Refs, func(r string) bool { return slices.Contains(refs, r) })
		if len(im.Refs) == 0 {
			return tx.Bucket(bucketImages).Delete([]byte(manifest.String()))
		}
		return put(tx, bucketImages, manifest.String(), im)
	})
}

// RemoveImage forgets an image. Objects that a snapshot or a pin refers to stay.
func (s *Store) RemoveImage(ctx context.Context, manifest digest.Digest) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		if _, err := load[Image](tx, bucketImages, manifest.String()); err != nil {
			return err
		}
		return tx.Bucket(bucketImages).Delete([]byte(manifest.String()))
	})
}
