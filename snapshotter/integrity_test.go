package snapshotter

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

// Metadata whose pages are well but that says what can not be is not believed: a changed id would
// show the files of another image.
func TestImpossibleMetadata(t *testing.T) {
	type buckets struct {
		tx                              *bbolt.Tx
		snapshots, parents, base, child *bbolt.Bucket
	}
	for name, change := range map[string]func(b buckets) error{
		"id of another":   func(b buckets) error { return b.child.Put(keyID, b.base.Get(keyID)) },
		"id never given":  func(b buckets) error { return b.base.Put(keyID, []byte{100}) },
		"id of nobody":    func(b buckets) error { return b.base.Put(keyID, []byte{3}) },
		"no id":           func(b buckets) error { return b.base.Delete(keyID) },
		"kind":            func(b buckets) error { return b.base.Put(keyKind, []byte{7}) },
		"time":            func(b buckets) error { return b.base.Put([]byte("createdat"), []byte{0xff, 1, 2}) },
		"parent":          func(b buckets) error { return b.child.Put(keyParent, []byte("basf")) },
		"child forgotten": func(b buckets) error { return b.parents.Delete(parentKey(1, 2)) },
		"child of nobody": func(b buckets) error { return b.parents.Put(parentKey(1, 9), []byte("other")) },
		"no version": func(b buckets) error {
			_, err := b.tx.CreateBucket([]byte("w1"))
			return errors.Join(err, b.tx.DeleteBucket(bucketVersion))
		},
		"well": func(buckets) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, Auto)
			n.layer(t, "base", "", func(dir string) { write(t, filepath.Join(dir, "f"), "base") })
			n.layer(t, "child", "base", func(dir string) { write(t, filepath.Join(dir, "f"), "child") })
			n.layer(t, "third", "", func(dir string) { write(t, filepath.Join(dir, "f"), "third") })
			if err := n.Remove(t.Context(), "third"); err != nil { // id 3 was given and is nobody's
				t.Fatal(err)
			}
			root := n.root
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
			aside, err := filepath.Glob(filepath.Join(root, metadataName+asideInfix+"*"))
			if want := name != "well"; err != nil || (len(aside) == 1) != want {
				t.Errorf("set aside: got %v, %v, want %t", aside, err, want)
			}
			if _, err := n.Stat(t.Context(), "child"); errdefs.IsNotFound(err) != (name != "well") {
				t.Errorf("stat: got %v", err)
			}
		})
	}
}

// Pages that are not in the file are found before anybody reads them: bbolt's own check would touch
// memory behind the end of the file, or count them one by one.
func TestPagesThatCanNotBe(t *testing.T) {
	for says, change := range map[string]func(t *testing.T, path string, size int64){
		"is shorter than": func(t *testing.T, path string, size int64) {
			if err := os.Truncate(path, size-1); err != nil {
				t.Fatal(err)
			}
		},
		"goes on for 1879048192 pages": func(t *testing.T, path string, _ int64) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// The overflow of the freelist, the only page that is read before it is checked.
			for page := int64(2); page < 6; page++ {
				head := make([]byte, 16)
				if _, err := f.ReadAt(head, page*int64(os.Getpagesize())); err != nil {
					return
				}
				binary.NativeEndian.PutUint32(head[12:], 0x70000000)
				if _, err := f.WriteAt(head, page*int64(os.Getpagesize())); err != nil {
					t.Fatal(err)
				}
			}
		},
		// One more free page than there is: what comes after the last is zero.
		"page 0 can not be free": func(t *testing.T, path string, _ int64) {
			page := freelist(t, path)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			count := make([]byte, 2)
			if _, err := f.ReadAt(count, page+10); err != nil {
				t.Fatal(err)
			}
			binary.NativeEndian.PutUint16(count, binary.NativeEndian.Uint16(count)+1)
			if _, err := f.WriteAt(count, page+10); err != nil {
				t.Fatal(err)
			}
		},
	} {
		path := filepath.Join(t.TempDir(), metadataName)
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		var size int64 // of all pages; the file can be larger
		err = db.Update(func(tx *bbolt.Tx) error { _, err := raiseSequence(tx, 7); return err })
		err = errors.Join(err, db.View(func(tx *bbolt.Tx) error { size = tx.Size(); return nil }), db.Close())
		if err != nil {
			t.Fatal(err)
		}
		change(t, path, size)
		if db, damage, err := openMetadata(path); db != nil || err != nil || damage == nil || !strings.Contains(damage.Error(), says) {
			t.Errorf("got %v, %v, want damage that says %q", damage, err, says)
		}
	}
}

// freelist returns where the list of free pages is in a database.
func freelist(t *testing.T, path string) (off int64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		for i := 0; ; i++ {
			page, err := tx.Page(i)
			if err != nil || page == nil {
				return errors.Join(errors.New("no freelist"), err)
			}
			if page.Type == "freelist" {
				off = int64(i * db.Info().PageSize)
				return nil
			}
		}
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return off
}
