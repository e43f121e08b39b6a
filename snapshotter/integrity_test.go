package snapshotter

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
)

// Metadata with intact pages but impossible values is not accepted, because a changed id would show the
// files of another image, and is rebuilt from the records of the snapshots.
func TestImpossibleMetadata(t *testing.T) {
	type buckets struct {
		tx                              *bbolt.Tx
		snapshots, parents, base, child *bbolt.Bucket
	}
	for name, change := range map[string]func(b buckets) error{
		"id of another":   func(b buckets) error { return b.child.Put(keyID, b.base.Get(keyID)) },
		"id never given":  func(b buckets) error { return b.base.Put(keyID, []byte{100}) },
		"unused id":       func(b buckets) error { return b.base.Put(keyID, []byte{3}) },
		"no id":           func(b buckets) error { return b.base.Delete(keyID) },
		"kind":            func(b buckets) error { return b.base.Put(keyKind, []byte{7}) },
		"time":            func(b buckets) error { return b.base.Put([]byte("createdat"), []byte{0xff, 1, 2}) },
		"parent":          func(b buckets) error { return b.child.Put(keyParent, []byte("basf")) },
		"child forgotten": func(b buckets) error { return b.parents.Delete(parentKey(1, 2)) },
		"unknown child":   func(b buckets) error { return b.parents.Put(parentKey(1, 9), []byte("other")) },
		"no version": func(b buckets) error {
			_, err := b.tx.CreateBucket([]byte("w1"))
			return errors.Join(err, b.tx.DeleteBucket(bucketVersion))
		},
		"intact": func(buckets) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, Auto)
			n.layer(t, "base", "", func(dir string) { write(t, filepath.Join(dir, "f"), "base") })
			n.layer(t, "child", "base", func(dir string) { write(t, filepath.Join(dir, "f"), "child") })
			n.layer(t, "third", "", func(dir string) { write(t, filepath.Join(dir, "f"), "third") })
			if err := n.Remove(t.Context(), "third"); err != nil { // id 3 was assigned, and is free
				t.Fatal(err)
			}
			root, before := n.root, n.infos(t)
			n.stop(t)
			db, err := bbolt.Open(filepath.Join(root, metadataName), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bbolt.Tx) error {
				v := tx.Bucket(bucketVersion)
				s := v.Bucket(bucketSnapshots)
				return change(buckets{tx, s, v.Bucket(bucketParents), s.Bucket([]byte("base")), s.Bucket([]byte("child"))})
			})
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			n.start(t, Auto)
			aside, err := boltfile.SetAside(filepath.Join(root, metadataName))
			if err != nil || len(aside) > 0 {
				t.Errorf("damaged metadata stays although all of it is rebuilt: %v, %v", aside, err)
			}
			if diff := cmp.Diff(n.infos(t), before); diff != "" {
				t.Errorf("snapshots (-got +want):\n%s", diff)
			}
		})
	}
}
