package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// Ref is a reference that keeps the objects of a table.
type Ref struct {
	Name    string        `json:"name"` // "snapshot/<id>" or "pin/<reference>"
	Table   digest.Digest `json:"table"`
	Created time.Time     `json:"created"`
	Expires time.Time     `json:"expires,omitzero"` // zero: never

	// Sources are the names of what the table is got from for this reference (transfer.Source),
	// those asked first in front.
	Sources []string `json:"sources,omitempty"`

	// Size and Inodes are what is attributed to this reference: each object counts at
	// the oldest reference to it, once.
	Size   int64 `json:"size"`
	Inodes int64 `json:"inodes"`
}

// AddRef makes a reference to a table, which must be known; a name that exists is replaced,
// keeping its age and, if it is of the same table, its sources. A zero expires means never.
func (s *Store) AddRef(ctx context.Context, name string, table digest.Digest, expires time.Time) error {
	var needs []digest.Digest
	err := s.db.Update(func(tx *bbolt.Tx) error {
		t, err := load[tableRecord](tx, bucketTables, table.String())
		if err != nil {
			return err
		}
		needs = t.Objects
		r, err := load[Ref](tx, bucketRefs, name)
		if errdefs.IsNotFound(err) {
			r = Ref{Name: name, Created: time.Now().UTC()}
		} else if err != nil {
			return err
		}
		if r.Table != table {
			r.Sources = nil
		}
		r.Table, r.Expires = table, expires
		if err := put(tx, bucketRefs, name, r); err != nil {
			return err
		}
		return attribute(tx)
	})
	if err == nil {
		s.handOver(needs)
	}
	return err
}

// maxSources is how many sources are remembered for a reference.
const maxSources = 16

// SetRefSources remembers what the table of a reference is got from, for when the rest of the
// model has to be fetched later. It returns errdefs.ErrNotFound if there is no such reference.
func (s *Store) SetRefSources(ctx context.Context, name string, sources []string) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		r, err := load[Ref](tx, bucketRefs, name)
		if err != nil {
			return err
		}
		r.Sources = sources[:min(len(sources), maxSources)]
		return put(tx, bucketRefs, name, r)
	})
}

// RemoveRef removes a reference; one that does not exist is no error.
func (s *Store) RemoveRef(ctx context.Context, name string) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		if err := tx.Bucket(bucketRefs).Delete([]byte(name)); err != nil {
			return err
		}
		return attribute(tx)
	})
	if err != nil {
		return err
	}
	return s.withdraw(ctx)
}

// Refs returns all references whose name starts with prefix, sorted.
func (s *Store) Refs(ctx context.Context, prefix string) (refs []Ref, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		return each(tx, bucketRefs, func(key string, r Ref) error {
			if strings.HasPrefix(key, prefix) {
				refs = append(refs, r)
			}
			return nil
		})
	})
	return refs, err
}

// Ref returns one reference, or errdefs.ErrNotFound.
func (s *Store) Ref(ctx context.Context, name string) (r Ref, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		r, err = load[Ref](tx, bucketRefs, name)
		return err
	})
	return r, err
}

// attribute counts each object at the oldest reference to it. It runs in every transaction
// that changes references or what a table needs.
func attribute(tx *bbolt.Tx) error {
	var refs []Ref
	if err := each(tx, bucketRefs, func(_ string, r Ref) error {
		refs = append(refs, r)
		return nil
	}); err != nil {
		return err
	}
	slices.SortFunc(refs, func(a, b Ref) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	counted := map[digest.Digest]bool{}
	seen := map[digest.Digest]bool{}
	for _, r := range refs {
		var size, inodes int64
		if !seen[r.Table] { // an older reference to the same table counted it all
			seen[r.Table] = true
			t, err := load[tableRecord](tx, bucketTables, r.Table.String())
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			for _, d := range t.Objects {
				if counted[d] {
					continue
				}
				o, err := load[objectRecord](tx, bucketObjects, d.String())
				if errdefs.IsNotFound(err) {
					continue
				} else if err != nil {
					return err
				}
				counted[d] = true
				size += o.Size
				inodes++
			}
		}
		if r.Size == size && r.Inodes == inodes {
			continue
		}
		r.Size, r.Inodes = size, inodes
		if err := put(tx, bucketRefs, r.Name, r); err != nil {
			return err
		}
	}
	return nil
}
