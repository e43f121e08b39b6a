package snapshotter

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
)

// Metadata with intact pages but impossible values is not accepted, because a changed id would show the
// files of another image.
func TestImpossibleMetadata(t *testing.T) {
	type buckets struct {
		tx                              *bbolt.Tx
		snapshots, parents, base, child *bbolt.Bucket
	}
	for name, change := range map[string]func(b buckets) error{
		"id of another":   func(b buckets) error { return b.child.Put(keyID, b.base.Get(keyID)) },
		"id never given":  func(b buckets) error { return b.base.Put(keyID, []byte{100}) },
		"unused id":       func(b buckets) error { return b.base.Put(keyID, []byte{4}) },
		"no id":           func(b buckets) error { return b.base.Delete(keyID) },
		"kind":            func(b buckets) error { return b.base.Put(keyKind, []byte{7}) },
		"time":            func(b buckets) error { return b.base.Put([]byte("createdat"), []byte{0xff, 1, 2}) },
		"parent":          func(b buckets) error { return b.child.Put(keyParent, []byte("basf")) },
		"child forgotten": func(b buckets) error { return b.parents.Delete(parentKey(2, 3)) },
		"unknown child":   func(b buckets) error { return b.parents.Put(parentKey(2, 9), []byte("other")) },
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
			if err := n.Remove(t.Context(), "third"); err != nil { // id 4 was assigned, and is free
				t.Fatal(err)
			}
			root := n.root
			before, err := n.ids(t.Context())
			if err != nil {
				t.Fatal(err)
			}
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
			if err != nil || (len(aside) == 0) != (name == "intact") {
				t.Errorf("set aside: %v, %v", aside, err)
			}
			if name != "intact" {
				before = map[string]string{}
			}
			after, err := n.ids(t.Context())
			if diff := cmp.Diff(after, before); diff != "" || err != nil {
				t.Errorf("%v (-got +want):\n%s", err, diff)
			}
			n.layer(t, "next", "", func(dir string) { write(t, filepath.Join(dir, "f"), "next") })
			if id, _ := strconv.Atoi(n.id(t, "next")); id < 5 {
				t.Errorf("id %d is used again", id)
			}
		})
	}
}

// TestHealthBesideCleanup: the directory of a removed snapshot is not unknown while a cleanup removes it.
func TestHealthBesideCleanup(t *testing.T) {
	n := newNode(t, backends[0])
	for i := range 20 {
		name := fmt.Sprint("layer ", i)
		n.layer(t, name, "", func(dir string) {
			for k := range 100 {
				write(t, filepath.Join(dir, fmt.Sprint(k)), "x")
			}
		})
		if err := n.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	cleaned := make(chan error, 1)
	go func() { cleaned <- n.Cleanup(t.Context()) }()
	for {
		if h, err := n.Health(t.Context()); err != nil || len(h.Unknown) > 0 {
			t.Errorf("unknown: %v, %v", h.Unknown, err)
		}
		select {
		case err := <-cleaned:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}
