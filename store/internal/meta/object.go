package meta

import (
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Object is the record of an object: its file exists and its bytes were verified.
type Object struct {
	Size int64     `json:"size"`
	Used time.Time `json:"used"`

	// Private are the names of the sources that may have it, because it was fetched from them with
	// credentials. Empty means that it is public.
	Private []string `json:"private,omitempty"`
}

// MayHave reports whether sources with these names may have the object: it is public, or came from one of them.
func (o Object) MayHave(names []string) bool {
	return len(o.Private) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(o.Private, n) })
}

// Object returns the record of an object, or errdefs.ErrNotFound.
func (db *DB) Object(d digest.Digest) (Object, error) { return get[Object](db, bucketObjects, d) }

// Has reports whether an object is recorded.
func (db *DB) Has(d digest.Digest) bool { return db.index.exists(d) }

// Sized is an object with its size in bytes.
type Sized struct {
	Digest digest.Digest
	Size   int64
}

// Objects returns the recorded objects of a table or, if table is empty, all objects in no order.
// It returns errdefs.ErrNotFound for an unknown table.
func (db *DB) Objects(table digest.Digest) (objects []Sized, err error) {
	if table == "" {
		return db.index.recorded(), nil
	}
	err = db.view(func(tx *txn) error {
		t, err := load[Table](tx, bucketTables, table)
		if err != nil {
			return err
		}
		for _, d := range t.Objects {
			o, err := load[Object](tx, bucketObjects, d)
			if errdefs.IsNotFound(err) {
				continue
			} else if err != nil {
				return err
			}
			objects = append(objects, Sized{d, o.Size})
		}
		return nil
	})
	return objects, err
}

// A File is complete, synced and verified, and becomes an object.
type File struct {
	Staged  string // path below the root of the store, from which it is moved
	Digest  digest.Digest
	Size    int64             // bytes
	Private []string          // see Object.Private
	Chunks  []filetable.Chunk // that it was made of, if any
	Layout  digest.Digest     // identifies how readers saw the chunks (chunkfile.Layout)
}

// An Arrival are files that become objects together, and what is known when they do.
type Arrival struct {
	Files     []File
	Contents  map[digest.Digest][]filetable.Member // of archives, by blob
	Assembled map[digest.Digest]digest.Digest      // by recipe
	Tables    map[digest.Digest]Table              // as in PutTable
}

// Arrive records files that have become objects, used now.
func (db *DB) Arrive(all ...Arrival) error {
	used := now()
	return db.update(func(tx *txn) error {
		for _, a := range all {
			if err := arrive(tx, a, used); err != nil {
				return err
			}
		}
		return nil
	})
}

func arrive(tx *txn, a Arrival, used time.Time) error {
	for _, f := range a.Files {
		rec := Object{Size: f.Size, Used: used, Private: f.Private}
		if old, err := load[Object](tx, bucketObjects, f.Digest); err == nil {
			rec.Private = merge(old.Private, rec.Private)
		}
		if err := put(tx, bucketObjects, f.Digest, rec); err != nil {
			return err
		}
		if err := putChunks(tx, f.Digest, f.Chunks); err != nil {
			return err
		}
	}
	for blob, members := range a.Contents {
		if err := put(tx, bucketContents, blob, members); err != nil {
			return err
		}
	}
	for recipe, d := range a.Assembled {
		if err := put(tx, bucketAssembled, recipe, assembled{d}); err != nil {
			return err
		}
	}
	for d, t := range a.Tables {
		if err := putTable(tx, d, t); err != nil {
			return err
		}
	}
	return nil
}

// merge returns the sources that may have what two groups provided; nil, for public, if one of the
// groups is.
func merge(a, b []string) []string {
	if len(a) == 0 || len(b) == 0 {
		return nil
	}
	both := append(slices.Clone(a), b...)
	slices.Sort(both)
	return slices.Compact(both)
}

// Lose removes the records of objects whose files are missing or wrong. Complete tables that need
// them become broken.
func (db *DB) Lose(objects ...digest.Digest) error {
	if len(objects) == 0 {
		return nil
	}
	return db.update(func(tx *txn) error { return forget(tx, objects, true) })
}

// assembled is a value of the assembled bucket.
type assembled struct {
	Digest digest.Digest `json:"digest"`
}

// Assembled returns the digest of the file of a recipe, or errdefs.ErrNotFound.
func (db *DB) Assembled(recipe digest.Digest) (digest.Digest, error) {
	a, err := get[assembled](db, bucketAssembled, recipe)
	return a.Digest, err
}

// Contents returns the contents of an archive, or errdefs.ErrNotFound.
func (db *DB) Contents(blob digest.Digest) ([]filetable.Member, error) {
	return get[[]filetable.Member](db, bucketContents, blob)
}
