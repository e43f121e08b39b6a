package snapshotter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

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

// manySnapshots returns the path of a database with enough in it for branches and free pages.
func manySnapshots(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), metadataName)
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err = errors.Join(err, db.Update(func(tx *bbolt.Tx) error {
			if _, err := raiseSequence(tx, 7); err != nil {
				return err
			}
			v := tx.Bucket(bucketVersion)
			for i := range 200 {
				b, err := v.CreateBucketIfNotExists(fmt.Appendf(nil, "bucket %d", i))
				if err != nil {
					return err
				}
				if err := b.Put([]byte("k"), make([]byte, 100+round)); err != nil {
					return err
				}
			}
			big, err := v.CreateBucketIfNotExists([]byte("big"))
			if err != nil {
				return err
			}
			return big.Put([]byte("k"), make([]byte, 20_000)) // a page that goes on
		}))
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// pagesOf returns where the pages of a database with these flags are that are in use.
func pagesOf(t *testing.T, path, kind string) (offs []int64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(func(tx *bbolt.Tx) error {
		for i := 0; ; i++ {
			page, err := tx.Page(i)
			if err != nil || page == nil {
				return err
			}
			if page.Type == kind {
				offs = append(offs, int64(i*db.Info().PageSize))
			}
		}
	})
	if err := errors.Join(err, db.Close()); err != nil || len(offs) == 0 {
		t.Fatalf("no page of kind %s, %v", kind, err)
	}
	return offs
}

// What would make bbolt read behind the end of the file, go round in circles or give away a page
// that is not free is found before bbolt sees the file.
func TestPagesThatCanNotBe(t *testing.T) {
	path := manySnapshots(t)
	good := []byte(read(t, path))
	if err := checkBolt(good); err != nil {
		t.Fatalf("of what is well: %v", err)
	}
	branch, free, leaf := pagesOf(t, path, "branch")[0], pagesOf(t, path, "freelist")[0], pagesOf(t, path, "leaf")[0]
	size := int64(os.Getpagesize())
	for name, change := range map[string]func(p []byte) []byte{
		"circle": func(p []byte) []byte {
			native.PutUint64(p[branch+boltHeader+8:], uint64(branch/size))
			return p
		},
		"page behind the end": func(p []byte) []byte {
			native.PutUint64(p[branch+boltHeader+8:], 1<<40)
			return p
		},
		"page used twice": func(p []byte) []byte {
			copy(p[branch+boltHeader+8:][:8], p[branch+boltHeader+boltElement+8:][:8])
			return p
		},
		"endless overflow":  func(p []byte) []byte { native.PutUint32(p[leaf+12:], 0x70000000); return p },
		"one free too many": func(p []byte) []byte { native.PutUint16(p[free+10:], native.Uint16(p[free+10:])+1); return p },
		"one free too few":  func(p []byte) []byte { native.PutUint16(p[free+10:], native.Uint16(p[free+10:])-1); return p },
		"description free":  func(p []byte) []byte { native.PutUint64(p[free+boltHeader:], 1); return p },
		"used page free":    func(p []byte) []byte { native.PutUint64(p[free+boltHeader:], uint64(leaf/size)); return p },
		"key behind the page": func(p []byte) []byte {
			native.PutUint32(p[leaf+boltHeader+8:], 1<<31)
			return p
		},
		"shorter": func(p []byte) []byte { return p[:len(p)/2] },
		"no description": func(p []byte) []byte {
			p[boltHeader+20] ^= 1
			p[size+boltHeader+20] ^= 1
			return p
		},
	} {
		if err := checkBolt(change(bytes.Clone(good))); err == nil {
			t.Errorf("%s: not found", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// Whatever is in the file, checking it ends, and what it accepts bbolt finds well too.
func FuzzCheckBolt(f *testing.F) {
	f.Add(uint32(0), byte(0), uint32(0), byte(0))
	f.Add(uint32(8200), byte(1), uint32(9000), byte(0x80))
	var good []byte
	f.Fuzz(func(t *testing.T, a uint32, x byte, b uint32, y byte) {
		if good == nil {
			good = []byte(read(t, manySnapshots(t)))
		}
		for _, off := range []int{int(a) % len(good), int(b) % len(good)} {
			// Nothing but bbolt's Check reads the headers of the two pages that describe the
			// file, and every commit writes one anew: a file is not given up for them.
			if off < 2*os.Getpagesize() && off%os.Getpagesize() < boltHeader {
				return
			}
		}
		p := bytes.Clone(good)
		p[int(a)%len(p)] ^= x
		p[int(b)%len(p)] ^= y
		if checkBolt(p) != nil {
			return
		}
		path := filepath.Join(t.TempDir(), metadataName)
		write(t, path, string(p))
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatalf("accepted, but bbolt says: %v", err)
		}
		defer db.Close()
		if err := db.View(func(tx *bbolt.Tx) (first error) {
			for err := range tx.Check() {
				first = errors.Join(first, err)
			}
			return first
		}); err != nil {
			t.Errorf("accepted, but bbolt says: %v", err)
		}
	})
}

// writeRole changes a database until it is killed.
func writeRole(path string) error {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists(fmt.Appendf(nil, "bucket %d", i%37))
			if err != nil {
				return err
			}
			if i%5 == 4 {
				return tx.DeleteBucket(fmt.Appendf(nil, "bucket %d", i%37))
			}
			return b.Put(fmt.Appendf(nil, "key %d", i%11), make([]byte, 1+i*577%9000))
		})
		if err != nil {
			return err
		}
		if i == 20 {
			fmt.Println("ready")
		}
	}
}

// What a kill leaves is not damage: it must not be set aside.
func TestKilledWriterIsWell(t *testing.T) {
	path := filepath.Join(t.TempDir(), metadataName)
	for range 40 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), writeEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(3 * time.Millisecond)) // anywhere in a commit
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		if err := checkBolt([]byte(read(t, path))); err != nil {
			t.Fatalf("after a kill: %v", err)
		}
	}
}
