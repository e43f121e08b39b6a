package meta

import (
	"cmp"
	"fmt"
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

// live says whether the reference keeps anything.
func (r Ref) live(now time.Time) bool { return r.Expires.IsZero() || r.Expires.After(now) }

// AddRef makes a reference to a table; a name that exists is replaced, keeping its age. A zero
// expires means never. It returns the objects that the table needs. If the table is not known, the
// reference is made all the same, and the error is errdefs.ErrNotFound.
func (db *DB) AddRef(name string, table digest.Digest, expires time.Time) (needs []digest.Digest, err error) {
	var unknown error
	err = db.bolt.Update(func(tx *bbolt.Tx) error {
		var t Table
		t, unknown = load[Table](tx, bucketTables, table)
		if unknown != nil && !errdefs.IsNotFound(unknown) {
			return unknown
		}
		needs = t.Objects
		r, err := load[Ref](tx, bucketRefs, name)
		if errdefs.IsNotFound(err) {
			r = Ref{Name: name, Created: now()}
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
	return needs, cmp.Or(err, unknown)
}

// SetRefSources remembers what the table of a reference is got from. It returns errdefs.ErrNotFound if
// there is no such reference.
func (db *DB) SetRefSources(name string, sources []string) error {
	return change(db, bucketRefs, name, func(r *Ref) { r.Sources = sources })
}

// RemoveRef removes a reference; one that does not exist is no error.
func (db *DB) RemoveRef(name string) error {
	return db.bolt.Update(func(tx *bbolt.Tx) error {
		if err := tx.Bucket(bucketRefs).Delete([]byte(name)); err != nil {
			return err
		}
		return attribute(tx)
	})
}

// Refs returns all references whose name starts with prefix, sorted.
func (db *DB) Refs(prefix string) (refs []Ref, err error) {
	err = db.bolt.View(func(tx *bbolt.Tx) error {
		return each(tx, bucketRefs, func(name string, r Ref) error {
			if strings.HasPrefix(name, prefix) {
				refs = append(refs, r)
			}
			return nil
		})
	})
	return refs, err
}

// Ref returns one reference, or errdefs.ErrNotFound.
func (db *DB) Ref(name string) (Ref, error) { return get[Ref](db, bucketRefs, name) }

// Unresolved returns the references of which it is not known what they need: while there is one,
// nothing may go. That is so for a table that has no record, and for one that was found again and whose
// record has only a part of its objects. That of a table on its way has too, but it needs no others yet.
func (db *DB) Unresolved() (refs []Ref, err error) {
	return refs, db.bolt.View(func(tx *bbolt.Tx) error {
		refs, err = unresolved(tx)
		return err
	})
}

func unresolved(tx *bbolt.Tx) (refs []Ref, err error) {
	return refs, each(tx, bucketRefs, func(_ string, r Ref) error {
		if !r.live(time.Now()) {
			return nil
		}
		t, err := load[Table](tx, bucketTables, r.Table)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if err != nil || t.Broken && t.Partly {
			refs = append(refs, r)
		}
		return nil
	})
}

// Rebuilt returns when the database was rebuilt, or zero.
func (db *DB) Rebuilt() (at time.Time, err error) {
	at, err = get[time.Time](db, bucketMeta, keyRebuilt)
	if errdefs.IsNotFound(err) {
		return at, nil
	}
	return at, err
}

// settled returns errdefs.ErrFailedPrecondition while something is unresolved.
func settled(tx *bbolt.Tx) error {
	refs, err := unresolved(tx)
	if err != nil {
		return err
	}
	if len(refs) > 0 {
		return fmt.Errorf("nothing is removed while it is not known what %s needs; pull its image again (table %s): %w", refs[0].Name, refs[0].Table, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// referred returns the tables that a reference keeps.
func referred(tx *bbolt.Tx, now time.Time) (map[digest.Digest]bool, error) {
	tables := map[digest.Digest]bool{}
	return tables, each(tx, bucketRefs, func(_ string, r Ref) error {
		if r.live(now) {
			tables[r.Table] = true
		}
		return nil
	})
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
			t, err := load[Table](tx, bucketTables, r.Table)
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			for _, d := range t.Objects {
				if counted[d] {
					continue
				}
				o, err := load[Object](tx, bucketObjects, d)
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
