package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
)

// writeEnv is the environment variable with the path of a database; it makes the test binary a writer.
const writeEnv = "BALLAST_TEST_WRITE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writeEnv); path != "" {
		fmt.Fprintln(os.Stderr, writeRole(path))
		os.Exit(1)
	}
	m.Run()
}

func check(p []byte) error { return Walk(bytes.NewReader(p), int64(len(p)), nil) }

func read(t *testing.T, path string) []byte {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Walk does not allocate memory for each page, of which there can be many.
func TestWalkReusesMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("many"))
		for i := range 20_000 {
			err = errors.Join(err, b.Put(fmt.Appendf(nil, "key %06d", i), make([]byte, 100)))
		}
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	p := read(t, path)
	var problem error
	n := testing.AllocsPerRun(1, func() { problem = check(p) })
	if pages := float64(len(p) / os.Getpagesize()); problem != nil || n > pages/4 {
		t.Errorf("%g allocations for %g pages, %v", n, pages, problem)
	}
}

// manyBuckets returns the path of a database with branch pages and free pages.
func manyBuckets(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err = errors.Join(err, db.Update(func(tx *bbolt.Tx) error {
			v, err := tx.CreateBucketIfNotExists([]byte("v1"))
			if err != nil {
				return err
			}
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
			return big.Put([]byte("k"), make([]byte, 20_000)) // a value on overflow pages
		}))
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// pagesOf returns the offsets of the used pages with these flags.
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

// Walk finds the same values and buckets as bbolt.
func TestWalkFindsAll(t *testing.T) {
	path := manyBuckets(t)
	got, want := map[string]string{}, map[string]string{}
	p := read(t, path)
	err := Walk(bytes.NewReader(p), int64(len(p)), func(path [][]byte, key, value []byte) {
		got[fmt.Sprintf("%q", append(slices.Clip(path), key))] = fmt.Sprintf("%x %t", value, value == nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	var note func(b *bbolt.Bucket, path [][]byte) error
	note = func(b *bbolt.Bucket, path [][]byte) error {
		return b.ForEach(func(k, v []byte) error {
			below := append(slices.Clip(path), k)
			want[fmt.Sprintf("%q", below)] = fmt.Sprintf("%x %t", v, v == nil)
			if v == nil {
				return note(b.Bucket(k), below)
			}
			return nil
		})
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.View(func(tx *bbolt.Tx) error { return note(tx.Cursor().Bucket(), nil) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 400 {
		t.Errorf("%d values (-bbolt +walk):\n%s", len(got), diff)
	}
}

// Damage that would make bbolt read past the end of the file, loop, or allocate a page that is in use
// is found before bbolt opens the file.
func TestInvalidPages(t *testing.T) {
	path := manyBuckets(t)
	good := read(t, path)
	if err := check(good); err != nil {
		t.Fatalf("of an intact file: %v", err)
	}
	branch, free, leaf := pagesOf(t, path, "branch")[0], pagesOf(t, path, "freelist")[0], pagesOf(t, path, "leaf")[0]
	size := int64(os.Getpagesize())
	for name, change := range map[string]func(p []byte) []byte{
		"circle": func(p []byte) []byte {
			native.PutUint64(p[branch+headerLen+8:], uint64(branch/size))
			return p
		},
		"page behind the end": func(p []byte) []byte {
			native.PutUint64(p[branch+headerLen+8:], 1<<40)
			return p
		},
		"page used twice": func(p []byte) []byte {
			copy(p[branch+headerLen+8:][:8], p[branch+headerLen+elementLen+8:][:8])
			return p
		},
		"endless overflow":  func(p []byte) []byte { native.PutUint32(p[leaf+12:], 0x70000000); return p },
		"one free too many": func(p []byte) []byte { native.PutUint16(p[free+10:], native.Uint16(p[free+10:])+1); return p },
		"one free too few":  func(p []byte) []byte { native.PutUint16(p[free+10:], native.Uint16(p[free+10:])-1); return p },
		"description free":  func(p []byte) []byte { native.PutUint64(p[free+headerLen:], 1); return p },
		"used page free":    func(p []byte) []byte { native.PutUint64(p[free+headerLen:], uint64(leaf/size)); return p },
		"key behind the page": func(p []byte) []byte {
			native.PutUint32(p[leaf+headerLen+8:], 1<<31)
			return p
		},
		"shorter": func(p []byte) []byte { return p[:len(p)/2] },
		"no description": func(p []byte) []byte {
			p[headerLen+20] ^= 1
			p[size+headerLen+20] ^= 1
			return p
		},
	} {
		if err := check(change(bytes.Clone(good))); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: not found: %v", name, err)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// Walk ends for any file, and bbolt finds no problem in a file that Walk accepts.
func FuzzWalk(f *testing.F) {
	f.Add(uint32(0), byte(0), uint32(0), byte(0))
	f.Add(uint32(8200), byte(1), uint32(9000), byte(0x80))
	var good []byte
	f.Fuzz(func(t *testing.T, a uint32, x byte, b uint32, y byte) {
		if good == nil {
			good = read(t, manyBuckets(t))
		}
		for _, off := range []int{int(a) % len(good), int(b) % len(good)} {
			// Only bbolt's Check reads the headers of the two meta pages, and every commit writes
			// one of them again, so the file is accepted.
			if off < 2*os.Getpagesize() && off%os.Getpagesize() < headerLen {
				return
			}
		}
		p := bytes.Clone(good)
		p[int(a)%len(p)] ^= x
		p[int(b)%len(p)] ^= y
		if check(p) != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "file.db")
		if err := os.WriteFile(path, p, 0o600); err != nil {
			t.Fatal(err)
		}
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

// The file that a killed process leaves is not damaged: it must not be set aside.
func TestKilledWriterLeavesSoundFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.db")
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
		time.Sleep(rand.N(3 * time.Millisecond)) // at any point of a commit
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		if err := check(read(t, path)); err != nil {
			t.Fatalf("after a kill: %v", err)
		}
	}
}
