package meta

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Object is the record of an object: its file exists and its bytes were verified.
type Object struct {
	Size int64 // bytes
	Used time.Time

	// Private are the names of the sources that may have it, because it was fetched from them with
	// credentials. Empty means that it is public.
	Private []string
}

// Nobody is the name of no source. What is private to it must be provided again.
const Nobody = "-"

// objectHead is the length of the begin of a recorded object: its size, and when it was used, in nanoseconds since
// 1970. The names of its sources follow, one on each line.
const objectHead = 8 + 8

// MarshalBinary implements encoding.BinaryMarshaler. It returns errdefs.ErrInvalidArgument for a name that is not a
// line.
func (o Object) MarshalBinary() ([]byte, error) {
	for _, n := range o.Private {
		if n == "" || strings.Contains(n, "\n") {
			return nil, fmt.Errorf("name of a source %q: %w", n, errdefs.ErrInvalidArgument)
		}
	}
	p := binary.BigEndian.AppendUint64(nil, uint64(o.Size))
	p = binary.BigEndian.AppendUint64(p, uint64(o.Used.UnixNano()))
	return append(p, strings.Join(o.Private, "\n")...), nil
}

// UnmarshalBinary implements encoding.BinaryUnmarshaler.
func (o *Object) UnmarshalBinary(p []byte) error {
	if len(p) < objectHead {
		return fmt.Errorf("%d bytes: %w", len(p), io.ErrUnexpectedEOF)
	}
	*o = Object{Size: int64(binary.BigEndian.Uint64(p)), Used: time.Unix(0, int64(binary.BigEndian.Uint64(p[8:]))).UTC()}
	if names := string(p[objectHead:]); names != "" {
		o.Private = strings.Split(names, "\n")
	}
	return nil
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
	States  verify.Chain      // of its digest, if they are kept
}

// An Arrival are files that become objects together, and what is known when they do.
type Arrival struct {
	Files     []File
	Contents  map[digest.Digest][]filetable.Member // of archives, by blob
	Assembled map[digest.Digest]digest.Digest      // by recipe
	Tables    map[digest.Digest]Table              // as in PutTable
	Images    []Image                              // as in PutImage
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
		if !f.States.Valid(f.Size) {
			continue
		}
		if err := putChain(tx, f.Digest, Chain{States: f.States}); err != nil {
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
	for _, im := range a.Images {
		if err := putImage(tx, im, used); err != nil {
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
