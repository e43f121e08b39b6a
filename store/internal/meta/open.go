package meta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

// lockWait is how long to wait for another process to close the database, such as a daemon that is
// being replaced.
const lockWait = time.Second

// Options configure Open.
type Options struct {
	// Expected means that there are objects, so that a missing or empty database was lost.
	Expected bool

	// Log is the logger; required.
	Log *slog.Logger
}

// Open opens the database at path, which is created if needed.
//
// A damaged database is renamed to <path>.damaged-<time> and replaced by a new one with its intact
// records. The caller must recover the rest (Rebuilt).
//
// Open returns errdefs.ErrUnavailable if another process has the database open, and
// errdefs.ErrFailedPrecondition if it has another schema.
func Open(path string, o Options) (*DB, error) {
	db, err := openSound(path, o)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := writeSchema(path); err != nil {
		o.Log.Warn("other versions of ballast cannot tell whether they can open the database", "path", path+schemaSuffix, "err", err)
	}
	return db, nil
}

// schemaSuffix is the suffix of the name of a file beside the database with the version of its schema as
// a line of text: other versions of ballast, and programs that cannot open the database while a daemon
// has it, read it.
const schemaSuffix = ".schema"

// SchemaVersion is the version of the schema of this package, a whole number.
const SchemaVersion = schemaVersion

func writeSchema(path string) error {
	if have, err := Schema(path); err == nil && have == schemaVersion {
		return nil
	}
	return durable.WriteFile(path+schemaSuffix, []byte(schemaVersion+"\n"), 0o600)
}

// Schema returns the version of the schema of the database at path, which may be open. It returns
// errdefs.ErrNotFound if it is not recorded.
func Schema(path string) (string, error) {
	f, err := os.Open(path + schemaSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("schema of %s: %w", path, errdefs.ErrNotFound)
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, 100))
	return strings.TrimSpace(string(p)), err
}

// openSound opens the database at path, which it replaces if it is lost or damaged.
func openSound(path string, o Options) (*DB, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && o.Expected {
		o.Log.Error("the database is missing; it is rebuilt from objects and snapshots", "path", path)
		if err := replace(path, nil); err != nil {
			return nil, err
		}
	}
	f, size, err := openLocked(path)
	if err != nil {
		return nil, err
	}
	if size == 0 && !o.Expected {
		return open(f, newIndex())
	}
	x, err := read(f, size)
	if errdefs.IsDataLoss(err) {
		err = errors.Join(rebuild(f, size, o.Log, err), f.Close())
		if err == nil {
			f, size, err = openLocked(path)
		}
		if err != nil {
			return nil, err
		}
		x, err = read(f, size)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return open(f, x)
}

// openLocked opens the file of a database, which is created if needed, with bbolt's lock. Closing it releases the lock.
func openLocked(path string) (f *os.File, size int64, err error) {
	if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, 0, err
	}
	err = lock(f)
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil {
			return f, info.Size(), nil
		}
	}
	return nil, 0, errors.Join(err, f.Close())
}

// open opens the database in a locked file, which belongs to it from now on. The index is that of its records.
func open(f *os.File, x *index) (*DB, error) {
	bolt, err := bbolt.Open(f.Name(), 0o600, &bbolt.Options{
		Timeout:  lockWait,
		OpenFile: func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		return nil, err // bbolt has closed the file
	}
	db := &DB{bolt: bolt, file: f, index: x}
	db.Catalog = Catalog{db}
	if err := db.update(prepare); err != nil {
		return nil, errors.Join(err, bolt.Close())
	}
	return db, nil
}

// rebuild sets a damaged database aside, and replaces it by a new one with its intact records.
func rebuild(f *os.File, size int64, log *slog.Logger, problem error) error {
	path := f.Name()
	aside := boltfile.Aside(path)
	records := salvage(f, size)
	log.Error("the database is damaged; it is set aside and rebuilt from intact records, objects and snapshots", "path", aside, "records", len(records), "err", problem)
	if err := os.Link(path, aside); err != nil {
		return err
	}
	return replace(path, records)
}

// lock takes bbolt's lock, waiting at most lockWait. Closing the file releases it.
func lock(f *os.File) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), lockWait, boltfile.Locked(f.Name()))
	defer cancel()
	return durable.Lock(ctx, f)
}

func isSealed(bucket []byte) bool {
	return slices.ContainsFunc(sealed, func(b []byte) bool { return bytes.Equal(b, bucket) })
}

// A salvaged record has a right checksum.
type salvaged struct{ bucket, key, value []byte }

// salvage returns the intact records, without the chunks bucket, which only saves transfers.
func salvage(f *os.File, size int64) (records []salvaged) {
	_ = boltfile.Walk(f, size, func(path [][]byte, key, value []byte) {
		if len(path) == 1 && isSealed(path[0]) {
			if _, err := unseal(path[0], key, value); err == nil {
				records = append(records, salvaged{bytes.Clone(path[0]), bytes.Clone(key), bytes.Clone(value)})
			}
		}
	})
	return records
}

// replace replaces the database at path, which may be missing, by a new one with these records. A
// crash leaves the old one, or the complete new one.
func replace(path string, records []salvaged) error {
	name := path + ".new"
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, _, err := openLocked(name)
	if err != nil {
		return err
	}
	db, err := open(f, newIndex())
	if err != nil {
		return err
	}
	err = db.update(func(tx *txn) error {
		for _, r := range records {
			if err := tx.Bucket(r.bucket).Put(r.key, r.value); err != nil {
				return err
			}
		}
		return put(tx, bucketMeta, keyRebuilt, now())
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(name, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
