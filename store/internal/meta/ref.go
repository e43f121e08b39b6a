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
	Expires time.Time     `json:"expires,omitzero"` // zero means never

	// Sources are the names of the sources of the table for this reference (transfer.Source), in
	// order, for downloading the rest of the model later.
	Sources []string `json:"sources,omitempty"`

	// Size and Inodes are the usage of this reference: each object counts for one of the references
	// that need it. They are not recorded.
	Size   int64 `json:"size,omitzero"`
	Inodes int64 `json:"inodes,omitzero"`
}

// live reports whether the reference has not expired.
func (r Ref) live(now time.Time) bool { return r.Expires.IsZero() || r.Expires.After(now) }

// AddRef adds a reference to a table, with the names of its sources if any are given. An existing reference
// with the name is replaced, but keeps its creation time. A zero expires means never. It returns the objects
// that the table needs. If the table is unknown, it adds the reference and returns errdefs.ErrNotFound.
func (db *DB) AddRef(name string, table digest.Digest, expires time.Time, sources ...string) (needs []digest.Digest, err error) {
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
		if r.Table != table || len(sources) > 0 {
			r.Sources = sources[:min(len(sources), maxSources)]
		}
		r.Table, r.Expires, r.Size, r.Inodes = table, expires, 0, 0
		return put(tx, bucketRefs, name, r)
	})
	return needs, cmp.Or(err, unknown)
}

// maxSources limits the sources recorded for a reference.
const maxSources = 16

// DropRefs removes references. Names without a reference are ignored.
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

// Refs returns the references whose name starts with prefix, sorted.
func (c Catalog) Refs(prefix string) []Ref {
	return c.db.index.list(func(name string, _ Ref) bool { return strings.HasPrefix(name, prefix) })
}

// RefsOf returns the references to a table, oldest first.
func (c Catalog) RefsOf(table digest.Digest) []Ref { return c.db.index.refsOf(table) }

// Ref returns a reference, or errdefs.ErrNotFound.
func (c Catalog) Ref(name string) (Ref, error) {
	if r, ok := c.db.index.named(name); ok {
		return r, nil
	}
	return Ref{}, fmt.Errorf("reference %s: %w", name, errdefs.ErrNotFound)
}

// Unresolved returns the references whose needed objects are unknown; while there are any, nothing
// is removed. These are references to a table without a record, or to a recovered table whose
// record is incomplete. The record of a table being hydrated is incomplete too, but it needs no
// other objects yet.
func (db *DB) Unresolved() []Ref { return db.index.unresolved() }

// UnresolvedOf is Unresolved for the references to a table.
func (db *DB) UnresolvedOf(table digest.Digest) []Ref { return db.index.unresolvedOf(table) }

// Rebuilt returns the time when the database was rebuilt, or zero.
func (db *DB) Rebuilt() (at time.Time, err error) {
	at, err = get[time.Time](db, bucketMeta, keyRebuilt)
	if errdefs.IsNotFound(err) {
		return at, nil
	}
	return at, err
}

// allResolved returns errdefs.ErrFailedPrecondition while a reference is unresolved.
func (tx *txn) allResolved() error {
	if refs := tx.index.unresolved(); len(refs) > 0 {
		return fmt.Errorf("nothing is removed while it is unknown what %s needs; pull its image again (table %s): %w", refs[0].Name, refs[0].Table, errdefs.ErrFailedPrecondition)
	}
	return nil
}
