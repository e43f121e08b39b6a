package snapshotter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// metadataName is overlay's database.
const metadataName = "metadata.db"

// maxLost limits how many ids can be skipped, because each takes some microseconds.
const maxLost = 1 << 20

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
	keyLabels       = []byte("labels")
)

// isEmpty reports whether metadata have no snapshot.
func isEmpty(ctx context.Context, meta *storage.MetaStore) (empty bool, err error) {
	found := errors.New("found")
	err = meta.WithTransaction(ctx, false, func(ctx context.Context) error {
		return storage.WalkInfo(ctx, func(context.Context, snapshots.Info) error { return found })
	})
	if errors.Is(err, found) {
		return false, nil
	}
	return err == nil, err
}

// prepareMetadata sets a damaged database aside. It reports whether there is none, which then may have been lost.
func prepareMetadata(root string, log *slog.Logger) (missing bool, err error) {
	path := filepath.Join(root, metadataName)
	if info, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return true, nil
	}
	damage, err := checkMetadata(path)
	if damage == nil || err != nil {
		return false, err
	}
	aside := boltfile.Aside(path)
	log.Error("metadata of the snapshots is damaged and was set aside", "path", aside, "err", damage)
	return true, os.Rename(path, aside)
}

// raiseIDs makes sure that the id of a directory in dir is not assigned again: a container may still use its files. It
// reports whether there are directories that the metadata does not know, because they were lost, or are older than the
// directories.
func raiseIDs(ctx context.Context, meta *storage.MetaStore, dir string, missing bool) (lost bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	var largest uint64
	for _, e := range entries {
		if id, err := strconv.ParseUint(e.Name(), 10, 64); err == nil {
			largest = max(largest, id)
		}
	}
	const key = "ballast/id" // no namespace of containerd has a snapshot with this key
	err = meta.WithTransaction(ctx, true, func(ctx context.Context) error {
		for first, id := uint64(0), uint64(0); id < largest || id == 0; {
			s, err := storage.CreateSnapshot(ctx, snapshots.KindActive, key, "")
			if err == nil {
				_, _, err = storage.Remove(ctx, key)
			}
			if err == nil {
				id, err = strconv.ParseUint(s.ID, 10, 64)
			}
			if err != nil {
				return err
			}
			if first == 0 {
				// A crash can leave a half-made snapshot, one id ahead of the metadata.
				first, lost = id, largest > id || largest == id && missing
			}
			if largest > first && largest-first > maxLost {
				return fmt.Errorf("%s: no snapshot had this id", filepath.Join(dir, strconv.FormatUint(largest, 10)))
			}
		}
		return nil
	})
	return lost, err
}

// checkMetadata returns what is damaged in the database. It returns errdefs.ErrUnavailable if another process has it
// open.
func checkMetadata(path string) (damage, err error) {
	p, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if damage := boltfile.Walk(bytes.NewReader(p), int64(len(p)), nil); damage != nil {
		return damage, nil
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout})
	if errors.Is(err, berrors.ErrTimeout) {
		err = boltfile.Locked(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db.View(checkSnapshots), db.Close()
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
