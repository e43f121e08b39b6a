package meta

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// imageTTL is how long an image without references can be resolved by its digest. It costs only its
// manifest, config and table.
const imageTTL = 7 * 24 * time.Hour

// Roots are what must stay beside what the records need.
type Roots struct {
	Tables  []digest.Digest // with all objects that they need
	Blobs   []digest.Digest // with all members that they contain
	Objects []digest.Digest
}

// stays returns the objects of the roots.
func (tx *txn) stays(roots Roots) (map[key]bool, error) {
	stays := map[key]bool{}
	for _, d := range roots.Objects {
		stays[keyOf(d)] = true
	}
	for _, b := range roots.Blobs {
		stays[keyOf(b)] = true
		members, err := load[[]filetable.Member](tx, bucketContents, b)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		for _, m := range members {
			if m.Digest != "" {
				stays[keyOf(m.Digest)] = true
			}
		}
	}
	for _, d := range roots.Tables {
		stays[keyOf(d)] = true
		t, err := load[Table](tx, bucketTables, d)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		for _, o := range t.Objects {
			stays[keyOf(o)] = true
		}
	}
	return stays, nil
}

// Usage is the disk usage of the records, in bytes.
type Usage struct {
	Logical     int64 // files of all complete tables, with duplicates
	Shared      int64 // objects of complete tables
	Unique      int64 // objects
	Reclaimable int64 // unneeded objects
	Objects     int64 // count
}

// Usage returns the disk usage.
func (db *DB) Usage(roots Roots) (u Usage, err error) {
	return u, db.view(func(tx *txn) error {
		stays, err := tx.stays(roots)
		u = tx.index.usage(stays)
		return err
	})
}

// A Share is the size of the existing objects that a model needs, in bytes.
type Share struct {
	Own    int64 // no other known model needs them
	Shared int64 // others do
}

// Shares returns the share of each image, by its manifest, and of each other table that a reference or the
// roots keep, by its digest. A model without existing objects is left out.
func (db *DB) Shares(roots Roots) map[digest.Digest]Share { return db.index.shares(roots.Tables) }

// Share is Shares for one model. Its cost depends on the objects of the model.
func (db *DB) Share(model digest.Digest, roots Roots) Share {
	return db.index.shareOf(model, roots.Tables)
}

// Evict removes the records of unneeded objects, least recently used first, until want(their total
// size) bytes are found. It returns these objects, whose files can be removed, and a function that
// reports which other objects are needed. Tables that need a removed object become incomplete. A
// dry run removes nothing. Evict returns errdefs.ErrFailedPrecondition while a reference is
// unresolved.
func (db *DB) Evict(roots Roots, want func(total int64) int64, dryRun bool) (objects []Sized, needed func(digest.Digest) bool, err error) {
	err = db.run(dryRun, func(tx *txn) error {
		if err := tx.allResolved(); err != nil {
			return err
		}
		stays, err := tx.stays(roots)
		if err != nil {
			return err
		}
		needed = func(d digest.Digest) bool { return stays[keyOf(d)] || tx.index.needed(d) }
		if objects, err = tx.evictable(stays, want); err != nil || dryRun {
			return err
		}
		gone := make([]digest.Digest, len(objects))
		for i, o := range objects {
			gone[i] = o.Digest
		}
		return forget(tx, gone, false)
	})
	return objects, needed, err
}

func (tx *txn) evictable(stays map[key]bool, want func(total int64) int64) (out []Sized, err error) {
	type candidate struct {
		Sized
		used time.Time
	}
	var (
		all   []candidate
		total int64
	)
	for _, s := range tx.index.unneeded(stays) {
		o, err := load[Object](tx, bucketObjects, s.Digest)
		if err != nil {
			return nil, err
		}
		all = append(all, candidate{s, o.Used})
		total += s.Size
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.Digest, b.Digest))
	})
	left := want(total)
	for _, c := range all {
		if left <= 0 {
			break
		}
		left -= c.Size
		out = append(out, c.Sized)
	}
	return out, nil
}

// forget removes object records and marks the tables that need them as incomplete, or as broken if
// the objects were lost.
func forget(tx *txn, objects []digest.Digest, lost bool) error {
	broken := map[digest.Digest]bool{}
	for _, o := range objects {
		for _, t := range tx.index.tablesOf(o) {
			broken[t] = true
		}
		if err := remove(tx, bucketObjects, o); err != nil {
			return err
		}
	}
	for d := range broken {
		t, err := load[Table](tx, bucketTables, d)
		if err != nil {
			return err
		}
		if t.Complete {
			t.Complete, t.Broken = false, lost
			if err := put(tx, bucketTables, d, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// Expired reports what Expire removed.
type Expired struct {
	Refs   int
	Images int
}

// Expire removes expired references and, unless a reference is unresolved, images that were unused
// for a week, and records of tables, archives and chains without objects, but for archives of a few directories and
// links. A dry run only counts.
//
// All records of archives and tables are read before the write transaction, which looks at the useless ones
// again: they can be many, and other writes wait for it.
func (db *DB) Expire(dryRun bool) (e Expired, err error) {
	var useless []record
	if err := db.view(func(tx *txn) (err error) {
		images := tx.index.outdated(time.Now())
		if tx.allResolved() != nil || !tx.index.swept(dryRun) && len(images) == 0 {
			return nil
		}
		useless, err = tx.useless(keysOf(images))
		return err
	}); err != nil {
		return e, err
	}
	return e, db.run(dryRun, func(tx *txn) error {
		drop := tx.index.expired(time.Now())
		e.Refs = len(drop)
		if err := tx.allResolved(); err == nil {
			images := tx.index.outdated(time.Now())
			e.Images = len(images)
			drop = append(drop, images...)
			for _, r := range useless {
				if still, err := tx.isUseless(r, keysOf(images)); err != nil {
					return err
				} else if still {
					drop = append(drop, r)
				}
			}
		}
		if dryRun {
			return nil
		}
		for _, r := range drop {
			if err := remove(tx, r.bucket, r.key); err != nil {
				return err
			}
		}
		return nil
	})
}

// A record is a key in a bucket.
type record struct {
	bucket []byte
	key    string
}

func keysOf(records []record) map[string]bool {
	keys := map[string]bool{}
	for _, r := range records {
		keys[r.key] = true
	}
	return keys
}

// useless returns the records that are useless without the images that are gone. It looks up objects and tables in the
// index: a lookup in the database maps 64 KiB of it, which count as memory of the process.
func (tx *txn) useless(gone map[string]bool) (drop []record, err error) {
	add := func(bucket []byte) func(key string) error {
		return func(key string) error {
			useless, err := tx.isUseless(record{bucket, key}, gone)
			if useless {
				drop = append(drop, record{bucket, key})
			}
			return err
		}
	}
	for _, bucket := range [][]byte{bucketContents, bucketAssembled, bucketWays, bucketVerdicts, bucketOrders, bucketChains} {
		err = errors.Join(err, keys(tx, bucket, add(bucket)))
	}
	for _, d := range tx.index.tablesWith(func(t *table) bool { return t.known }) {
		err = errors.Join(err, add(bucketTables)(d.String()))
	}
	return drop, err
}

// maxEmpty is the number of directories and links up to which what is known of an archive without regular files stays:
// a model that has it would be incomplete without. Nothing tells which tables have it, so more would fill the database.
const maxEmpty = 64

// isUseless reports whether a record is useless without the images that are gone.
func (tx *txn) isUseless(r record, gone map[string]bool) (bool, error) {
	known := func(d digest.Digest) bool { return tx.index.inUse(d, gone) }
	switch string(r.bucket) {
	case string(bucketContents):
		members, err := load[[]filetable.Member](tx, r.bucket, r.key)
		regular := slices.DeleteFunc(members, func(m filetable.Member) bool { return m.Type != filetable.TypeReg })
		stays := len(regular) == 0 && len(members) <= maxEmpty ||
			slices.ContainsFunc(regular, func(m filetable.Member) bool { return tx.index.exists(m.Digest) })
		return err == nil && !stays, ignoreNotFound(err)
	case string(bucketAssembled):
		a, err := load[assembled](tx, r.bucket, r.key)
		return err == nil && !tx.index.exists(a.Digest), ignoreNotFound(err)
	case string(bucketWays):
		w, err := load[way](tx, r.bucket, r.key)
		return err == nil && w.useless(tx, r.key, known), ignoreNotFound(err)
	case string(bucketChains):
		d := digest.Digest(r.key)
		return !tx.index.exists(d) && len(tx.index.tablesOf(d)) == 0, nil
	}
	d := digest.Digest(r.key)
	return !tx.index.exists(d) && !known(d) && exists(tx, r.bucket, r.key), nil
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// An Idle is an image that no reference needs.
type Idle struct {
	Image
	Bytes int64 // size of its documents
}

// Idle returns the images that neither a reference nor the tables need, least recently used first.
// Shared documents count twice.
func (db *DB) Idle(tables []digest.Digest) []Idle {
	idle := db.index.unusedImages(tables)
	slices.SortFunc(idle, func(a, b Idle) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.Manifest, b.Manifest)) })
	return idle
}

// Only returns the objects of the tables of images that are in no table of another image.
func (db *DB) Only(images []Image) []digest.Digest { return db.index.only(images) }

// ForgetImages removes images and the records of those of their documents, and of more objects, that nothing
// else needs. It returns these objects, whose files can be removed. It returns errdefs.ErrFailedPrecondition
// while a reference is unresolved.
func (db *DB) ForgetImages(roots Roots, images []Image, more ...digest.Digest) (objects []Sized, err error) {
	return objects, db.update(func(tx *txn) error {
		if err := tx.allResolved(); err != nil {
			return err
		}
		for _, im := range images {
			if err := remove(tx, bucketImages, im.Manifest); err != nil {
				return err
			}
		}
		stays, err := tx.stays(roots)
		if err != nil {
			return err
		}
		for _, im := range images {
			more = append(more, im.Documents()...)
		}
		var gone []digest.Digest
		for _, d := range more {
			o, err := load[Object](tx, bucketObjects, d)
			if stays[keyOf(d)] || tx.index.needed(d) || errdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				return err
			}
			stays[keyOf(d)] = true // without duplicates
			gone, objects = append(gone, d), append(objects, Sized{d, o.Size})
		}
		return forget(tx, gone, false)
	})
}
