package snapshotter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/snapshots"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// metadataName is overlay's database.
const metadataName = "metadata.db"

// lockTimeout is how long to wait for another process to close the metadata.
const lockTimeout = 10 * time.Second

// Keys of containerd's snapshot metadata.
// https://github.com/containerd/containerd/blob/v2.4.2/core/snapshots/storage/bolt.go
var (
	bucketVersion   = []byte("v1")
	bucketSnapshots = []byte("snapshots")
	bucketParents   = []byte("parents")
	keyID           = []byte("id")
	keyKind         = []byte("kind")
	keyParent       = []byte("parent")
	keyInodes       = []byte("inodes")
	keySize         = []byte("size")
	keyLabels       = []byte("labels")
)

// prepareMetadata sets a damaged database aside and makes sure that the id of an existing directory
// is not assigned again. If the database has lost snapshots, because it is new or older than the
// directories, they are added from their records. unsure is true if some have no record.
func prepareMetadata(root string, log *slog.Logger) (unsure bool, err error) {
	found, err := readRecords(filepath.Join(root, snapshotsName))
	if err != nil {
		return false, err
	}
	largest := slices.Max(append(slices.Collect(maps.Keys(found)), 0))
	path := filepath.Join(root, metadataName)
	_, err = os.Lstat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	db, damage, err := openMetadata(path)
	aside := boltfile.Aside(path)
	if damage != nil {
		if err := os.Rename(path, aside); err != nil {
			return false, err
		}
		log.Warn("metadata of the snapshots is damaged and was set aside", "path", aside, "err", damage)
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout})
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", path, err)
	}
	var last uint64
	err = db.Update(func(tx *bbolt.Tx) error {
		last, err = raiseSequence(tx, largest)
		return err
	})
	if err != nil || largest <= last {
		return false, errors.Join(err, db.Close())
	}
	var added int
	var lost []uint64
	err = db.Update(func(tx *bbolt.Tx) error {
		if added, lost, err = rebuild(tx, found); err != nil {
			return err
		}
		return checkSnapshots(tx)
	})
	// A crash can leave a half-made snapshot, one id ahead of the metadata.
	if damage == nil && !missing && slices.Equal(lost, []uint64{last + 1}) {
		lost = nil
	}
	switch {
	case err != nil || len(lost) > 0:
		log.Error("metadata of some snapshots is lost; remove the images of this snapshotter from containerd and pull them again",
			"path", path, "rebuilt", added, "lost", lost, "err", err)
	case added > 0:
		log.Warn("metadata of the snapshots was lost and is rebuilt from the records of the snapshots", "path", path, "rebuilt", added)
	}
	if unsure = err != nil || len(lost) > 0; !unsure && damage != nil {
		err = os.Remove(aside) // nothing in it is missing
	} else {
		err = nil
	}
	return unsure, errors.Join(err, db.Close())
}

// raiseSequence makes new ids larger than largest. It returns the last id that the database had
// assigned.
func raiseSequence(tx *bbolt.Tx, largest uint64) (last uint64, err error) {
	b, err := tx.CreateBucketIfNotExists(bucketVersion)
	if err != nil {
		return 0, err
	}
	if _, err := b.CreateBucketIfNotExists(bucketParents); err != nil {
		return 0, err
	}
	sb, err := b.CreateBucketIfNotExists(bucketSnapshots)
	if err != nil {
		return 0, err
	}
	if last = sb.Sequence(); last < largest {
		return last, sb.SetSequence(largest)
	}
	return last, nil
}

// openMetadata opens the database. damage describes a damaged one.
func openMetadata(path string) (db *bbolt.DB, damage, err error) {
	p, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if damage := boltfile.Walk(bytes.NewReader(p), int64(len(p)), nil); damage != nil {
		return nil, damage, nil
	}
	if db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout}); errors.Is(err, berrors.ErrTimeout) {
		return nil, nil, boltfile.Locked(path)
	} else if err != nil {
		return nil, nil, err
	}
	if damage := db.View(checkSnapshots); damage != nil {
		return nil, damage, db.Close()
	}
	return db, nil, nil
}

// checkSnapshots checks the records of all snapshots: a changed id would show the files of another
// image.
func checkSnapshots(tx *bbolt.Tx) error {
	b := tx.Bucket(bucketVersion)
	if b == nil {
		if k, _ := tx.Cursor().First(); k != nil {
			return fmt.Errorf("it has %q instead of a bucket %q", k, bucketVersion)
		}
		return nil // new
	}
	sb, pb := b.Bucket(bucketSnapshots), b.Bucket(bucketParents)
	if sb == nil || pb == nil {
		return errors.New("a bucket is missing")
	}
	names := map[uint64]string{}
	children := 0
	err := sb.ForEach(func(name, value []byte) error {
		s := sb.Bucket(name)
		if s == nil || value != nil || s.Get(keyLabels) != nil {
			return fmt.Errorf("snapshot %q or its labels are not a bucket", name)
		}
		id, n := binary.Uvarint(s.Get(keyID))
		if n <= 0 || id == 0 || id > sb.Sequence() {
			return fmt.Errorf("snapshot %q has an id that was never assigned", name)
		}
		if other, ok := names[id]; ok {
			return fmt.Errorf("snapshots %q and %q have the id %d", name, other, id)
		}
		names[id] = string(name)
		kind := s.Get(keyKind)
		if len(kind) != 1 || kind[0] < byte(snapshots.KindView) || kind[0] > byte(snapshots.KindCommitted) {
			return fmt.Errorf("snapshot %q is of kind %v", name, kind)
		}
		var created, updated time.Time
		if err := boltutil.ReadTimestamps(s, &created, &updated); err != nil {
			return fmt.Errorf("snapshot %q: %w", name, err)
		}
		parent := s.Get(keyParent)
		if len(parent) == 0 {
			return nil
		}
		p := sb.Bucket(parent)
		if p == nil {
			return fmt.Errorf("snapshot %q has no parent %q", name, parent)
		}
		children++
		pid, _ := binary.Uvarint(p.Get(keyID))
		if back := pb.Get(parentKey(pid, id)); string(back) != string(name) {
			return fmt.Errorf("snapshot %q is not a child of its parent, which has %q", name, back)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return pb.ForEach(func(k, v []byte) error {
		if children--; children < 0 || sb.Bucket(v) == nil {
			return fmt.Errorf("%q is listed as a child, but is missing or has another parent", v)
		}
		return nil
	})
}

// parentKey is the key under which the metadata lists a child of a parent.
func parentKey(parent, child uint64) []byte {
	k := binary.AppendUvarint(nil, parent)
	return binary.AppendUvarint(append(k, 0), child)
}
