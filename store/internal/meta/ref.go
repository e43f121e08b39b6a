package meta

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Ref is a reference that keeps the objects of a table.
type Ref struct {
	Name    string        `json:"name"` // "snapshot/<id>", "pin/<reference>" or "origin/<digest>"
	Table   digest.Digest `json:"table"`
	Created time.Time     `json:"created"`
	Expires time.Time     `json:"expires,omitzero"` // zero: never

	// Sources are the names of what the table is got from for this reference (transfer.Source),
	// those asked first in front.
	Sources []string `json:"sources,omitempty"`

	// Size and Inodes are what counts at this reference: each object counts at one of those that need it.
	// They are not recorded.
	Size   int64 `json:"size,omitzero"`
	Inodes int64 `json:"inodes,omitzero"`
}

// live says whether the reference keeps anything.
func (r Ref) live(now time.Time) bool { return r.Expires.IsZero() || r.Expires.After(now) }

// AddRef makes a reference to a table; a name that exists is replaced, keeping its age. A zero
// expires means never. It returns the objects that the table needs. If the table is not known, the
// reference is made all the same, and the error is errdefs.ErrNotFound.
func (db *DB) AddRef(name string, table digest.Digest, expires time.Time) (needs []digest.Digest, err error) {
	var unknown error
	err = db.update(func(tx *txn) error {
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
		r.Table, r.Expires, r.Size, r.Inodes = table, expires, 0, 0
		return put(tx, bucketRefs, name, r)
	})
	return needs, cmp.Or(err, unknown)
}

// SetRefSources remembers what the table of a reference is got from. It returns errdefs.ErrNotFound if
// there is no such reference.
func (db *DB) SetRefSources(name string, sources []string) error {
	return change(db, bucketRefs, name, func(r *Ref) { r.Sources = sources })
}

// DropRefs removes references; one that does not exist is no error.
func (db *DB) DropRefs(names ...string) error {
	return db.update(func(tx *txn) error {
		for _, name := range names {
			if err := remove(tx, bucketRefs, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// Refs returns all references whose name starts with prefix, sorted.
func (db *DB) Refs(prefix string) []Ref {
	return db.index.list(func(name string, _ Ref) bool { return strings.HasPrefix(name, prefix) })
}

// RefsOf returns the references to a table, oldest first.
func (db *DB) RefsOf(table digest.Digest) []Ref { return db.index.refsOf(table) }

// Ref returns one reference, or errdefs.ErrNotFound.
func (db *DB) Ref(name string) (Ref, error) {
	if r, ok := db.index.named(name); ok {
		return r, nil
	}
	return Ref{}, fmt.Errorf("reference %s: %w", name, errdefs.ErrNotFound)
}

// Unresolved returns the references of which it is not known what they need: while there is one,
// nothing may go. That is so for a table that has no record, and for one that was found again and whose
// record has only a part of its objects. That of a table on its way has too, but it needs no others yet.
func (db *DB) Unresolved() []Ref { return db.index.unresolved() }

// Rebuilt returns when the database was rebuilt, or zero.
func (db *DB) Rebuilt() (at time.Time, err error) {
	at, err = get[time.Time](db, bucketMeta, keyRebuilt)
	if errdefs.IsNotFound(err) {
		return at, nil
	}
	return at, err
}

// settled returns errdefs.ErrFailedPrecondition while something is unresolved.
func (tx *txn) settled() error {
	if refs := tx.index.unresolved(); len(refs) > 0 {
		return fmt.Errorf("nothing is removed while it is not known what %s needs; pull its image again (table %s): %w", refs[0].Name, refs[0].Table, errdefs.ErrFailedPrecondition)
	}
	return nil
}
