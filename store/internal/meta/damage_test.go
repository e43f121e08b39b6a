package meta

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

var quiet = slog.New(slog.DiscardHandler)

func number(i int) digest.Digest { return digest.FromString(fmt.Sprint(i)) }

// fill makes a database with records in every bucket, on several levels of pages.
func fill(t *testing.T, path string, objects int) {
	t.Helper()
	db, err := Open(path, Options{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	a := Arrival{
		Contents:  map[digest.Digest][]filetable.Member{number(1): {{Type: filetable.TypeReg, Digest: number(2)}}},
		Assembled: map[digest.Digest]digest.Digest{number(3): number(4)},
	}
	for i := range objects {
		a.Files = append(a.Files, File{Digest: number(i), Size: int64(i)})
		a.Files[0].Chunks = append(a.Files[0].Chunks, filetable.Chunk{Digest: number(-i), Size: minIndexed, Offset: int64(i)})
	}
	table := Table{}
	for i := range objects {
		table.Objects = append(table.Objects, number(i))
	}
	_, refErr := db.AddRef("pin/unknown", number(-1), time.Time{})
	errs := []error{
		db.Arrive(a), db.PutTable(number(5), table), putWay(db, number(6), number(7)),
		db.PutImage(Image{Manifest: number(8), Refs: []string{"host/name:tag"}}),
	}
	_, err = db.AddRef("snapshot/1", number(5), time.Time{})
	for i := range 20 { // allocates and frees pages
		errs = append(errs, db.Lose(number(i)), db.DropRefs("pin/none"))
	}
	if err := errors.Join(append(errs, err)...); err != nil || !errdefs.IsNotFound(refErr) {
		t.Fatal(err, refErr)
	}
}

// everything returns the records of the sealed buckets that can be read.
func everything(t *testing.T, db *DB) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := db.bolt.View(func(tx *bbolt.Tx) error {
		for _, b := range sealed {
			err := tx.Bucket(b).ForEach(func(k, v []byte) error {
				p, err := unseal(b, k, v)
				out[string(b)+"/"+string(k)] = string(p)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func reopen(t *testing.T, path string, expected bool) *DB {
	t.Helper()
	db, err := Open(path, Options{Expected: expected, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestSoundDatabaseIsAccepted checks that files written by bbolt are not taken as damaged.
func TestSoundDatabaseIsAccepted(t *testing.T) {
	for _, objects := range []int{0, 1, 100, 5000} {
		path := filepath.Join(t.TempDir(), "store.db")
		fill(t, path, objects)
		for range 3 {
			reopen(t, path, true).Close()
		}
		if aside, err := boltfile.SetAside(path); len(aside) > 0 || err != nil {
			t.Errorf("%d objects: set aside as %v, %v", objects, aside, err)
		}
	}
}

// TestDamagedIsRebuilt flips bits of a database, truncates it and fills it with garbage. In each case
// it can be opened and written, and every record that it returns is an earlier one.
func TestDamagedIsRebuilt(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.db")
	fill(t, good, 300)
	p, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	db := reopen(t, good, true)
	want := everything(t, db)
	db.Close()
	r := rand.New(rand.NewPCG(1, 2))
	kinds := map[string]func([]byte) []byte{
		"flipped": func(p []byte) []byte {
			for range 1 + r.IntN(8) {
				at := r.IntN(len(p))
				for range 200 { // in used pages
					if p[at] != 0 {
						break
					}
					at = r.IntN(len(p))
				}
				p[at] ^= 1 << r.IntN(8)
			}
			return p
		},
		"header flipped": func(p []byte) []byte {
			p[r.IntN(len(p)/os.Getpagesize())*os.Getpagesize()+r.IntN(64)] ^= 1 << r.IntN(8)
			return p
		},
		"truncated": func(p []byte) []byte { return p[:r.IntN(len(p))] },
		"garbage":   func(p []byte) []byte { return bytes.Repeat([]byte("garbage!"), len(p)/8) },
		"a page of zeros": func(p []byte) []byte {
			clear(p[r.IntN(len(p)/os.Getpagesize())*os.Getpagesize():][:os.Getpagesize()])
			return p
		},
	}
	for name, damage := range kinds {
		t.Run(name, func(t *testing.T) {
			rebuilt, kept := 0, 0
			for i := range 100 {
				path := filepath.Join(t.TempDir(), "store.db")
				if err := os.WriteFile(path, damage(bytes.Clone(p)), 0o600); err != nil {
					t.Fatal(err)
				}
				db := reopen(t, path, true)
				got := everything(t, db)
				for k, v := range got {
					if want[k] != v {
						t.Fatalf("try %d: %s is %q, was %q", i, k, v, want[k])
					}
				}
				at, err := db.Rebuilt()
				if err != nil {
					t.Fatal(err)
				}
				aside, err := boltfile.SetAside(path)
				if err != nil || at.IsZero() != (len(aside) == 0) {
					t.Fatalf("try %d: rebuilt %v, set aside %v, %v", i, at, aside, err)
				}
				if at.IsZero() && len(got) != len(want) {
					t.Fatalf("try %d: %d of %d records, and no damage was found", i, len(got), len(want))
				}
				if !at.IsZero() {
					rebuilt++
					kept += len(got)
				}
				if err := errors.Join(db.PutTable(number(99), Table{}), db.Arrive(Arrival{Files: []File{{Digest: number(99), Size: 1}}}), db.Close()); err != nil {
					t.Fatal(err)
				}
				reopen(t, path, true).Close()
			}
			t.Logf("%d of 100 were damaged, %d of %d records kept on average", rebuilt, kept/max(1, rebuilt), len(want))
		})
	}
}

// TestLostIsNotNew checks that a missing database counts as lost if there are objects.
func TestLostIsNotNew(t *testing.T) {
	for _, c := range []struct {
		name           string
		empty, expects bool
	}{{"missing", false, true}, {"empty", true, true}, {"new", false, false}, {"new and empty", true, false}} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			if c.empty {
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			db := reopen(t, path, c.expects)
			defer db.Close()
			if at, err := db.Rebuilt(); at.IsZero() == c.expects || err != nil {
				t.Errorf("rebuilt %v, %v", at, err)
			}
		})
	}
}

// TestUnresolvedKeepsAll checks that no record is removed while the needs of a reference are unknown.
func TestUnresolvedKeepsAll(t *testing.T) {
	db := reopen(t, filepath.Join(t.TempDir(), "store.db"), true)
	defer db.Close()
	if err := db.Arrive(Arrival{Files: []File{{Digest: number(1), Size: 1}}}); err != nil {
		t.Fatal(err)
	}
	evict := func() (int, error) {
		gone, _, err := db.Evict(Roots{}, func(total int64) int64 { return total }, true)
		return len(gone), err
	}
	if _, err := db.AddRef("snapshot/1", number(2), time.Time{}); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	if n, err := evict(); n > 0 || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("no record: %d would go, %v", n, err)
	}
	if err := db.PutTable(number(2), Table{Partly: true}); err != nil {
		t.Fatal(err)
	}
	if n, err := evict(); n > 0 || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("known in part: %d would go, %v", n, err)
	}
	refs := db.Unresolved()
	if len(refs) != 1 || refs[0].Name != "snapshot/1" {
		t.Errorf("unresolved: %v", refs)
	}
	if err := db.PutTable(number(2), Table{}); err != nil {
		t.Fatal(err)
	}
	if n, err := evict(); n != 1 || err != nil {
		t.Errorf("resolved: %d would go, %v", n, err)
	}
	// A table that is being fetched is known in part; this must not prevent eviction.
	if err := db.PutTable(number(3), Table{Partly: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.AddRef("snapshot/2", number(3), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, err := evict(); n != 1 || err != nil {
		t.Errorf("on its way: %d would go, %v", n, err)
	}
}

// TestOtherSchemaIsRefused checks that a database of another schema is left alone.
func TestOtherSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	fill(t, path, 10)
	db := reopen(t, path, true)
	err := db.update(func(tx *txn) error { return putVersion(tx, "9") })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{Expected: true, Log: quiet}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v", err)
	}
	if aside, _ := boltfile.SetAside(path); len(aside) > 0 {
		t.Errorf("set aside: %v", aside)
	}
}

// TestLockedIsLeftAlone checks a database that another process has open: it changes while it is
// checked.
func TestLockedIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{Log: quiet}); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	if p, err := io.ReadAll(f); string(p) != "garbage" || err != nil {
		t.Errorf("it has %q now, %v", p, err)
	}
}

// TestOutdatedChunks checks that outdated entries of chunks are removed step by step when others are
// added.
func TestOutdatedChunks(t *testing.T) {
	const many = 5000
	path := filepath.Join(t.TempDir(), "store.db")
	fill(t, path, many)
	db := reopen(t, path, true)
	defer db.Close()
	chunks := func() (n int) {
		_ = db.bolt.View(func(tx *bbolt.Tx) error { n = tx.Bucket(bucketChunks).Stats().KeyN; return nil })
		return n
	}
	if err := db.Lose(number(0)); err != nil || chunks() != many {
		t.Fatalf("%d chunks, want %d: there is no scan of all of them; %v", chunks(), many, err)
	}
	next := File{Digest: number(1), Size: 1}
	for i := range many {
		next.Chunks = append(next.Chunks, filetable.Chunk{Digest: number(-many - i), Size: minIndexed})
	}
	if err := db.Arrive(Arrival{Files: []File{next}}); err != nil {
		t.Fatal(err)
	}
	if n := chunks() - many; n < 0 || n > many/neighbours {
		t.Errorf("%d chunks beside those that are there", n)
	}
}

func putWay(db *DB, file, identity digest.Digest) error {
	_, err := db.PutWays("snapshot/1", number(5), map[digest.Digest]digest.Digest{file: identity})
	return err
}
