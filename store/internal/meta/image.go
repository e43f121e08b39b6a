package meta

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Image is the record of a converted image. Its manifest, config and table are objects, kept as
// long as the image.
type Image struct {
	Manifest digest.Digest    `json:"digest"` // of the converted image; the key
	Config   digest.Digest    `json:"config"`
	Table    digest.Digest    `json:"table"`
	Origin   filetable.Origin `json:"origin"`

	// Ahead is set for an image that was converted before it was pushed, and for an index of such images. The digest
	// of its Origin is that of the manifest that was pushed, which is usually the same.
	Ahead bool `json:"ahead,omitempty"`

	// Refs are the references it was resolved from, "host/repository:tag" or
	// "host/repository@digest", sorted and without duplicates.
	Refs []string `json:"refs"`

	// Size is the total size of the model's files as far as known, in bytes.
	Size int64 `json:"size"`

	// PrivateNames are the names ("host/repository") from which the origin could be read only with
	// credentials of the caller, sorted.
	PrivateNames []string `json:"privateNames,omitempty"`

	// Read has those of the private names from which a caller of the facade has read the origin with
	// credentials of its own, with the last time.
	Read map[string]time.Time `json:"read,omitempty"`

	// Imported are the Refs by which it was imported from an archive, sorted: the image of such a name while
	// its registry does not answer.
	Imported []string `json:"imported,omitempty"`

	Created time.Time `json:"created"`
	Used    time.Time `json:"used"`
}

// Documents returns the objects of the image itself: manifest, config and table, or the manifest of an index.
func (im Image) Documents() []digest.Digest {
	return slices.DeleteFunc([]digest.Digest{im.Manifest, im.Config, im.Table}, func(d digest.Digest) bool { return d == "" })
}

// maxRefs limits the recorded references of an image: a caller can use many names for one image,
// and each update writes all of them.
const maxRefs = 128

// dropRefs removes references.
func (im *Image) dropRefs(refs []string) {
	gone := func(r string) bool { return slices.Contains(refs, r) }
	im.Refs, im.Imported = slices.DeleteFunc(im.Refs, gone), slices.DeleteFunc(im.Imported, gone)
}

// trimRefs removes references until there are maxRefs, always from the host with the most
// references, and none in keep.
func (im *Image) trimRefs(keep []string) {
	if len(im.Refs) <= maxRefs {
		return
	}
	for len(im.Refs) > maxRefs {
		count, most, drop := map[string]int{}, 0, -1
		for i, r := range im.Refs {
			host, _, _ := strings.Cut(r, "/")
			if count[host]++; count[host] > most && !slices.Contains(keep, r) {
				most, drop = count[host], i
			}
		}
		if drop < 0 {
			return
		}
		im.Refs = slices.Delete(im.Refs, drop, drop+1)
	}
	im.PrivateNames = slices.DeleteFunc(im.PrivateNames, func(n string) bool {
		return !slices.ContainsFunc(im.Refs, func(r string) bool { return strings.HasPrefix(r, n+":") || strings.HasPrefix(r, n+"@") })
	})
	maps.DeleteFunc(im.Read, func(n string, _ time.Time) bool { return !slices.Contains(im.PrivateNames, n) })
}

// PutImage records an image, or adds its Refs to the existing record and removes some if there are
// too many. A reference names one image at a time: it is removed from the previous image.
func (db *DB) PutImage(im Image) error {
	return db.update(func(tx *txn) error { return putImage(tx, im, now()) })
}

func putImage(tx *txn, im Image, used time.Time) error {
	fresh := slices.Clone(im.Refs)
	for _, old := range tx.index.imagesOf(im.Refs) {
		if old.Manifest == im.Manifest {
			continue
		}
		old.dropRefs(im.Refs)
		if err := put(tx, bucketImages, old.Manifest, old); err != nil {
			return err
		}
	}
	old, err := load[Image](tx, bucketImages, im.Manifest)
	switch {
	case err == nil:
		im.Refs = append(im.Refs, old.Refs...)
		im.PrivateNames = append(im.PrivateNames, old.PrivateNames...)
		im.Imported = append(im.Imported, old.Imported...)
		read := old.clone().Read
		for n, at := range im.Read {
			if read == nil {
				read = map[string]time.Time{}
			}
			read[n] = at
		}
		im.Read = read
		im.Created = old.Created
	case !errdefs.IsNotFound(err):
		return err
	}
	slices.Sort(im.Refs)
	im.Refs = slices.Compact(im.Refs)
	slices.Sort(im.PrivateNames)
	im.PrivateNames = slices.Compact(im.PrivateNames)
	im.Imported = slices.DeleteFunc(im.Imported, func(r string) bool { return !slices.Contains(im.Refs, r) })
	slices.Sort(im.Imported)
	im.Imported = slices.Compact(im.Imported)
	im.trimRefs(append(fresh, im.Imported...))
	if im.Created.IsZero() {
		im.Created = used
	}
	im.Used = used
	return put(tx, bucketImages, im.Manifest, im)
}

// SetPublic removes a name from the private names of an image. It returns errdefs.ErrNotFound if
// there is no image.
func (c Catalog) SetPublic(manifest digest.Digest, name string) error {
	return change(c.db, bucketImages, manifest, func(im *Image) {
		im.PrivateNames = slices.DeleteFunc(im.PrivateNames, func(n string) bool { return n == name })
		delete(im.Read, name)
	})
}

// RemoveRefs removes references from an image, and the image with its last one. It returns
// errdefs.ErrNotFound for an unknown image.
func (c Catalog) RemoveRefs(manifest digest.Digest, refs ...string) error {
	return c.db.changeImage(manifest, func(tx *txn, im Image) error {
		im.dropRefs(refs)
		if len(im.Refs) == 0 {
			return remove(tx, bucketImages, manifest)
		}
		return put(tx, bucketImages, manifest, im)
	})
}

// RemoveImage removes an image, or returns errdefs.ErrNotFound.
func (c Catalog) RemoveImage(manifest digest.Digest) error {
	return c.db.changeImage(manifest, func(tx *txn, _ Image) error {
		return remove(tx, bucketImages, manifest)
	})
}

func (db *DB) changeImage(manifest digest.Digest, change func(*txn, Image) error) error {
	return db.update(func(tx *txn) error {
		im, err := load[Image](tx, bucketImages, manifest)
		if err != nil {
			return err
		}
		return change(tx, im)
	})
}
