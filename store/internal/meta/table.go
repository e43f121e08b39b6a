package meta

import (
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Table is what is known of a table. It lists what the table needs, so that collecting and
// counting never open it.
type Table struct {
	Objects  []digest.Digest `json:"objects"`  // as far as known, each once
	Logical  int64           `json:"logical"`  // bytes of the files, each as often as it occurs
	Complete bool            `json:"complete"` // all objects were there when last looked
	Used     time.Time       `json:"used"`

	// Partly says that Objects are not all of them: what an archive contains is not known.
	Partly bool `json:"partly,omitempty"`

	// Broken says that it was complete, and objects or this record were lost since.
	Broken bool `json:"broken,omitempty"`
}

// Table returns the record of a table, or errdefs.ErrNotFound.
func (db *DB) Table(d digest.Digest) (Table, error) { return get[Table](db, bucketTables, d) }

// Tables returns all tables that are known, by digest.
func (db *DB) Tables() (tables []digest.Digest, err error) {
	err = db.view(func(tx *txn) error {
		return keys(tx, bucketTables, func(key string) error {
			tables = append(tables, digest.Digest(key))
			return nil
		})
	})
	return tables, err
}

// PutTable records a table. What was found out before counts: what a table needs never shrinks,
// and its sources stay.
func (db *DB) PutTable(d digest.Digest, t Table) error {
	return db.update(func(tx *txn) error {
		old, err := load[Table](tx, bucketTables, d)
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if old.Complete || old.Broken {
			t.Complete, t.Broken, t.Logical = old.Complete, old.Broken, old.Logical
		}
		t.Partly = t.Partly && (err != nil || old.Partly)
		if err != nil { // a reference to a table that was not known means that it was forgotten
			t.Broken = tx.index.referred(d)
		}
		t.Objects = append(slices.Clone(t.Objects), old.Objects...)
		slices.Sort(t.Objects)
		t.Objects = slices.Compact(t.Objects)
		return put(tx, bucketTables, d, t)
	})
}

// CompleteTable records a table whose objects are all there, and that it and they are used now. It
// returns errdefs.ErrNotFound if one of them is not there. held says whether a reference needs it.
func (db *DB) CompleteTable(d digest.Digest, t Table) (held bool, err error) {
	t.Complete, t.Used = true, now()
	return held, db.update(func(tx *txn) error {
		for _, d := range t.Objects {
			o, err := load[Object](tx, bucketObjects, d)
			if err != nil {
				return err
			}
			o.Used = t.Used
			if err := put(tx, bucketObjects, d, o); err != nil {
				return err
			}
		}
		held = tx.index.referred(d)
		return put(tx, bucketTables, d, t)
	})
}

// Needed returns which tables that are complete, or were, need an object, by object: table alone, or
// all with a reference if it is empty.
func (db *DB) Needed(table digest.Digest) map[digest.Digest][]digest.Digest {
	return db.index.neededBy(table)
}
