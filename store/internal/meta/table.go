package meta

import (
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Table is the record of a table. It lists what the table needs, so that garbage collection and
// usage do not read the table itself.
type Table struct {
	Objects  []digest.Digest `json:"objects"`  // as far as known, without duplicates
	Logical  int64           `json:"logical"`  // size of the files in bytes, with duplicates
	Complete bool            `json:"complete"` // all objects existed at the last check

	// Partly is true if Objects is incomplete, because the contents of an archive are unknown.
	Partly bool `json:"partly,omitempty"`

	// Broken is true if it was complete, but objects or this record have been lost.
	Broken bool `json:"broken,omitempty"`
}

// Table returns the record of a table, or errdefs.ErrNotFound.
func (db *DB) Table(d digest.Digest) (Table, error) { return get[Table](db, bucketTables, d) }

// Tables returns all recorded tables, sorted by digest.
func (db *DB) Tables() []digest.Digest {
	return db.index.tablesWith(func(t *table) bool { return t.known })
}

// Referred returns the tables that references keep, sorted by digest.
func (db *DB) Referred() []digest.Digest {
	now := time.Now()
	return db.index.tablesWith(func(t *table) bool { return db.index.kept(t, now) })
}

// Broken returns the broken tables that have a reference, sorted by digest.
func (db *DB) Broken() []digest.Digest {
	return db.index.tablesWith(func(t *table) bool { return t.known && t.Broken && len(t.refs) > 0 })
}

// PutTable records a table. It keeps earlier results: the objects that a table needs never become fewer.
func (db *DB) PutTable(d digest.Digest, t Table) error {
	return db.update(func(tx *txn) error { return putTable(tx, d, t) })
}

func putTable(tx *txn, d digest.Digest, t Table) error {
	old, err := load[Table](tx, bucketTables, d)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if old.Complete || old.Broken {
		t.Complete, t.Broken, t.Logical = old.Complete, old.Broken, old.Logical
	}
	t.Partly = t.Partly && (err != nil || old.Partly)
	if err != nil { // a reference to an unknown table means that its record was lost
		t.Broken = tx.index.referred(d)
	}
	t.Objects = append(slices.Clone(t.Objects), old.Objects...)
	slices.Sort(t.Objects)
	t.Objects = slices.Compact(t.Objects)
	return put(tx, bucketTables, d, t)
}

// CompleteTable records a table whose objects all exist, and that these are used now. It
// returns errdefs.ErrNotFound if an object is missing. held reports whether a reference needs the
// table.
func (db *DB) CompleteTable(d digest.Digest, t Table) (held bool, err error) {
	t.Complete = true
	used := now()
	return held, db.update(func(tx *txn) error {
		for _, d := range t.Objects {
			o, err := load[Object](tx, bucketObjects, d)
			if err != nil {
				return err
			}
			o.Used = used
			if err := put(tx, bucketObjects, d, o); err != nil {
				return err
			}
		}
		held = tx.index.referred(d)
		return put(tx, bucketTables, d, t)
	})
}

// Needed returns the objects of a table that is or was complete.
func (db *DB) Needed(table digest.Digest) []digest.Digest { return db.index.neededBy(table) }
