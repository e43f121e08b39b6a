package meta

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Table is the record of a table. It lists what the table needs, so that garbage collection and
// usage do not read the table itself.
type Table struct {
	Objects  []digest.Digest // as far as known, without duplicates
	Logical  int64           // size of the files in bytes, with duplicates
	Complete bool            // all objects existed at the last check

	// Partly is true if Objects is incomplete, because the contents of an archive are unknown.
	Partly bool

	// Broken is true if it was complete, but objects or this record have been lost.
	Broken bool
}

// tableHead is the length of the begin of a recorded table: its logical size, and a byte of flags. The bytes of the
// digests of its objects follow.
const tableHead = 8 + 1

const (
	flagComplete = 1 << iota
	flagPartly
	flagBroken
)

// needing is a table with the keys of its objects instead of their digests.
type needing struct {
	Table
	key  key
	keys []key
}

// MarshalBinary implements encoding.BinaryMarshaler. It returns errdefs.ErrInvalidArgument for a digest that is not
// one of sha256.
func (t Table) MarshalBinary() ([]byte, error) {
	p := make([]byte, tableHead, tableHead+len(t.Objects)*sha256.Size)
	binary.BigEndian.PutUint64(p, uint64(t.Logical))
	for flag, set := range map[byte]bool{flagComplete: t.Complete, flagPartly: t.Partly, flagBroken: t.Broken} {
		if set {
			p[8] |= flag
		}
	}
	for _, d := range t.Objects {
		k := keyOf(d)
		if k.digest() != d {
			return nil, fmt.Errorf("%q is not a digest of sha256: %w", d, errdefs.ErrInvalidArgument)
		}
		p = append(p, k[:]...)
	}
	return p, nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (t *Table) UnmarshalBinary(p []byte) error {
	var n needing
	err := n.UnmarshalBinary(p)
	*t = n.Table
	for _, k := range n.keys {
		t.Objects = append(t.Objects, k.digest())
	}
	return err
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler. It does not set key.
func (n *needing) UnmarshalBinary(p []byte) error {
	if len(p) < tableHead || (len(p)-tableHead)%sha256.Size != 0 {
		return fmt.Errorf("%d bytes: %w", len(p), io.ErrUnexpectedEOF)
	}
	has := func(flag byte) bool { return p[8]&flag != 0 }
	n.Table = Table{
		Logical:  int64(binary.BigEndian.Uint64(p)),
		Complete: has(flagComplete), Partly: has(flagPartly), Broken: has(flagBroken),
	}
	n.keys = make([]key, 0, len(p)/sha256.Size+1) // one more for the table itself
	for k := range slices.Chunk(p[tableHead:], sha256.Size) {
		n.keys = append(n.keys, key(k))
	}
	return nil
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
