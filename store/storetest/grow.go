package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/opencontainers/go-digest"
)

// PerTable is the number of objects of each table of Grow. ObjectSize is the size of an object, in
// bytes; its file has no blocks on disk.
const (
	PerTable   = 1000
	ObjectSize = 4 << 10
)

// GrownTable returns the digest of a table of Grow. The name of its reference is grownRef.
func GrownTable(i int) digest.Digest { return numbered("table", i) }

// grownRef returns the name of the reference to a table of Grow.
func grownRef(i int) string { return fmt.Sprintf("pin/grown-%06d", i) }

func numbered(what string, i int) digest.Digest {
	return digest.FromBytes(binary.BigEndian.AppendUint64([]byte(what), uint64(i)))
}

// Grow makes the store below dir look like the store of a node that has been in use for a long
// time: it adds the tables with the numbers from first up to, but not including, last, with
// PerTable objects each. The store must not be open. Grow creates only records and file names,
// which is much cheaper than adding real objects. The files do not match their digests, so the
// objects can be listed and counted, but not read.
func Grow(dir string, first, last int) error {
	s, err := store.Open(dir, store.Options{})
	if err != nil {
		return err
	}
	if err := s.Close(); err != nil {
		return err
	}
	db, err := meta.Open(filepath.Join(dir, "store.db"), meta.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	for i := first; i < last && err == nil; i += tablesAtOnce {
		err = grow(db, s.ObjectsDir(), i, min(i+tablesAtOnce, last))
	}
	return errors.Join(err, db.Close())
}

// tablesAtOnce is the number of tables whose objects are recorded in one transaction.
const tablesAtOnce = 50

func grow(db *meta.DB, dir string, first, last int) error {
	var all []meta.File
	for i := first; i < last; i++ {
		all = append(all, meta.File{Digest: GrownTable(i), Size: ObjectSize})
		for j := range PerTable {
			all = append(all, meta.File{Digest: numbered("object", i*PerTable+j), Size: ObjectSize})
		}
	}
	if err := errors.Join(makeFiles(dir, all), db.Arrive(meta.Arrival{Files: all})); err != nil {
		return err
	}
	for i := first; i < last; i++ {
		t := meta.Table{Logical: PerTable * ObjectSize}
		for _, o := range all[(i-first)*(PerTable+1):][:PerTable+1] {
			t.Objects = append(t.Objects, o.Digest)
		}
		slices.Sort(t.Objects)
		if _, err := db.CompleteTable(GrownTable(i), t); err != nil {
			return err
		}
		if _, err := db.AddRef(grownRef(i), GrownTable(i), time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

func makeFiles(dir string, all []meta.File) error {
	for _, o := range all {
		name := filepath.Join(dir, object.Name(o.Digest))
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, object.Mode)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(o.Size), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
