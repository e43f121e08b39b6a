package meta

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// images is the index of images.
type images struct {
	all      map[digest.Digest]Image // by manifest
	byRef    map[string]manifests
	byOrigin map[digest.Digest]manifests
	byConfig map[digest.Digest]manifests
	byTable  map[digest.Digest]manifests
	unused   manifests // images whose table has no reference
}

type manifests map[digest.Digest]bool

func newImages() images {
	return images{
		all: map[digest.Digest]Image{}, byRef: map[string]manifests{},
		byOrigin: map[digest.Digest]manifests{}, byConfig: map[digest.Digest]manifests{}, byTable: map[digest.Digest]manifests{},
		unused: manifests{},
	}
}

func (s *images) add(im Image) {
	s.all[im.Manifest] = im
	for _, r := range im.Refs {
		enter(s.byRef, r, im.Manifest)
	}
	enter(s.byOrigin, im.Origin.Digest, im.Manifest)
	enter(s.byConfig, im.Config, im.Manifest)
	enter(s.byTable, im.Table, im.Manifest)
}

func (s *images) remove(im Image) {
	delete(s.all, im.Manifest)
	delete(s.unused, im.Manifest)
	for _, r := range im.Refs {
		leave(s.byRef, r, im.Manifest)
	}
	leave(s.byOrigin, im.Origin.Digest, im.Manifest)
	leave(s.byConfig, im.Config, im.Manifest)
	leave(s.byTable, im.Table, im.Manifest)
}

// use records whether a table has references.
func (s *images) use(table digest.Digest, referred bool) {
	for d := range s.byTable[table] {
		if referred {
			delete(s.unused, d)
		} else {
			s.unused[d] = true
		}
	}
}

func enter[K comparable](m map[K]manifests, k K, d digest.Digest) {
	if m[k] == nil {
		m[k] = manifests{}
	}
	m[k][d] = true
}

func leave[K comparable](m map[K]manifests, k K, d digest.Digest) {
	if delete(m[k], d); len(m[k]) == 0 {
		delete(m, k)
	}
}

// pick returns copies of the images with these manifests, sorted by first reference.
func (s *images) pick(which manifests) []Image {
	list := make([]Image, 0, len(which))
	for d := range which {
		list = append(list, s.all[d].clone())
	}
	slices.SortFunc(list, func(a, b Image) int {
		return cmp.Or(slices.Compare(a.Refs, b.Refs), cmp.Compare(a.Manifest, b.Manifest))
	})
	return list
}

func (im Image) clone() Image {
	im.Refs, im.PrivateNames, im.Read = slices.Clone(im.Refs), slices.Clone(im.PrivateNames), maps.Clone(im.Read)
	im.Imported = slices.Clone(im.Imported)
	return im
}

// Image returns the image with a manifest, or errdefs.ErrNotFound.
func (c Catalog) Image(manifest digest.Digest) (Image, error) {
	return get[Image](c.db, bucketImages, manifest)
}

// Images returns all images, sorted by first reference.
func (c Catalog) Images() []Image {
	return c.db.pick(func(s *images) manifests {
		all := manifests{}
		for d := range maps.Keys(s.all) {
			all[d] = true
		}
		return all
	})
}

// ImageByOrigin returns the image converted from an origin, or errdefs.ErrNotFound.
func (c Catalog) ImageByOrigin(o filetable.Origin) (Image, error) {
	made := c.ImagesByOrigin(o.Digest)
	i := slices.IndexFunc(made, func(im Image) bool { return im.Origin == o })
	if i < 0 {
		return Image{}, fmt.Errorf("image made from %s: %w", o.Digest, errdefs.ErrNotFound)
	}
	return made[i], nil
}

// ImagesByOrigin returns the images converted from the origin with a digest, in all mapping
// versions, sorted by first reference.
func (c Catalog) ImagesByOrigin(d digest.Digest) []Image {
	return c.db.pick(func(s *images) manifests { return s.byOrigin[d] })
}

// ImagesWith returns the images with d as their config or table, or as an object of their table,
// sorted by first reference.
func (c Catalog) ImagesWith(d digest.Digest) []Image {
	tables := append(c.db.index.tablesOf(d), d)
	return c.db.pick(func(s *images) manifests {
		with := manifests{}
		maps.Copy(with, s.byConfig[d])
		for _, t := range tables {
			maps.Copy(with, s.byTable[t])
		}
		return with
	})
}

// ImagesByRef returns the images with a reference, sorted by first reference.
func (c Catalog) ImagesByRef(ref string) []Image {
	return c.db.pick(func(s *images) manifests { return s.byRef[ref] })
}

// ImagesByTable returns the images with a table, sorted by first reference.
func (c Catalog) ImagesByTable(table digest.Digest) []Image {
	return c.db.pick(func(s *images) manifests { return s.byTable[table] })
}

func (db *DB) pick(which func(*images) manifests) []Image {
	db.index.mu.RLock()
	defer db.index.mu.RUnlock()
	return db.index.images.pick(which(&db.index.images))
}
