package store_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A shown model is complete, from a raw file, and has the reference of a snapshot.
type shown struct {
	dir     string
	weights []byte
	table   digest.Digest
	b       *storetest.Builder
	fetcher *storetest.Fetcher
	path    string // of the object
}

func (m *shown) digest() digest.Digest { return digest.FromBytes(m.weights) }

// show makes a shown model in a new, open store.
func show(t *testing.T) (*shown, *store.Store) {
	t.Helper()
	m := &shown{dir: t.TempDir(), weights: storetest.Random(1, 3<<20)}
	m.b, m.fetcher = storetest.NewBuilder("shown").Raw("w.bin", m.weights, 0o644), storetest.NewFetcher(m.weights)
	m.path = filepath.Join(m.dir, "objects", store.ObjectName(m.digest()))
	s := m.open(t)
	m.table = m.b.Put(t, s)
	m.hold(t, s)
	m.heal(t, s)
	return m, s
}

func (m *shown) open(t *testing.T) *store.Store {
	t.Helper()
	return compareFiles(t, storetest.Open(t, m.dir, store.Options{}))
}

func (m *shown) reopen(t *testing.T, s *store.Store) *store.Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return m.open(t)
}

func (m *shown) hold(t *testing.T, s *store.Store) {
	t.Helper()
	if err := s.AddRef("snapshot/1", m.table, time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// heal fetches what is missing, and checks that the store is healthy.
func (m *shown) heal(t *testing.T, s *store.Store) {
	t.Helper()
	if err := s.Hydrate(t.Context(), m.table, store.HydrateOptions{Sources: storetest.From(m.fetcher)}); err != nil {
		t.Fatal(err)
	}
	if p, err := os.ReadFile(m.path); err != nil || !bytes.Equal(p, m.weights) {
		t.Errorf("healed: %v, or wrong bytes", err)
	}
	if bad, err := s.Check(t.Context(), "", nil); len(bad) > 0 || err != nil {
		t.Errorf("healed: %+v, %v", bad, err)
	}
}

// healFromHere is heal without anything to fetch.
func (m *shown) healFromHere(t *testing.T, s *store.Store) {
	t.Helper()
	sent := m.fetcher.Sent(m.digest())
	m.heal(t, s)
	if n := m.fetcher.Sent(m.digest()) - sent; n > 0 {
		t.Errorf("%d bytes were fetched", n)
	}
}

// gone checks that the object is missing.
func (m *shown) gone(t *testing.T, s *store.Store, when string) {
	t.Helper()
	if _, err := os.Stat(m.path); !os.IsNotExist(err) {
		t.Errorf("%s: the file is in its place: %v", when, err)
	}
	if s.Has(m.digest()) {
		t.Errorf("%s: it is an object", when)
	}
	if _, err := s.Views.Files(m.table); !errdefs.IsUnavailable(err) {
		t.Errorf("%s: files: %v", when, err)
	}
	if missing, err := s.Missing(""); len(missing) != 1 || missing[0].Digest != m.digest() || err != nil {
		t.Errorf("%s: missing %+v, %v", when, missing, err)
	}
}

// flip changes a byte of a file, or changes it back.
func flip(t *testing.T, path string) {
	t.Helper()
	if err := change(path, func(p []byte) []byte { p[len(p)/2] ^= 1; return p }); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedObjectLeavesService checks that a damaged file is moved away from the path of its object,
// since overlayfs shows whatever is there, and that the next pull fetches it.
func TestDamagedObjectLeavesService(t *testing.T) {
	m, s := show(t)
	flip(t, m.path)
	bad, err := s.Check(t.Context(), m.table, nil)
	if len(bad) != 1 || bad[0].Digest != m.digest() || len(bad[0].Tables) != 1 || err != nil {
		t.Fatalf("found %+v, %v", bad, err)
	}
	m.gone(t, s, "after the check")
	if bad, err = s.Check(t.Context(), "", nil); len(bad) != 1 || err != nil {
		t.Errorf("found the second time: %+v, %v", bad, err)
	}
	if d, err := s.Health(); len(d.Damaged) != 1 || err != nil {
		t.Errorf("health: %+v, %v", d, err)
	}
	m.heal(t, s)
	if d, err := s.Health(); len(d.Damaged) != 0 || err != nil {
		t.Errorf("health after the repair: %+v, %v", d, err)
	}
}

// TestDamagedObjectIsReadEarly checks that a file that was set aside can be read by chunks until it is
// an object again.
func TestDamagedObjectIsReadEarly(t *testing.T) {
	p := storetest.Random(7, 5<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p)
	table := storetest.NewBuilder("early").RawChunks("w", p, 0o644, 1<<20).Put(t, s)
	hold(t, s, table)
	o := storetest.From(f)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o}); err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(p)
	flip(t, filepath.Join(s.ObjectsDir(), store.ObjectName(d)))
	if bad, err := s.Check(t.Context(), "", nil); len(bad) != 1 || err != nil {
		t.Fatalf("found %+v, %v", bad, err)
	}
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: o}); err != nil {
		t.Fatal(err)
	}
	readRandomly(t, s, d, p, 20)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o}); err != nil {
		t.Fatal(err)
	}
	readRandomly(t, s, d, p, 20)
}

// TestVanishedObjectIsFetchedAgain checks that an object without its file is missing at once, and that
// a pull fetches it.
func TestVanishedObjectIsFetchedAgain(t *testing.T) {
	for _, how := range []string{"running", "restarted", "checked"} {
		t.Run(how, func(t *testing.T) {
			m, s := show(t)
			if err := os.Remove(m.path); err != nil {
				t.Fatal(err)
			}
			switch how {
			case "restarted":
				s = m.reopen(t, s)
			case "checked":
				if bad, err := s.Check(t.Context(), "", nil); len(bad) != 1 || bad[0].Problem != store.ProblemMissing || err != nil {
					t.Errorf("found %+v, %v", bad, err)
				}
			}
			m.gone(t, s, how)
			m.heal(t, s)
		})
	}
}

// TestTruncatedObjectIsNeverAdopted checks that the first start finds a short file, and that the second
// start does not take it for a file without a record.
func TestTruncatedObjectIsNeverAdopted(t *testing.T) {
	m, s := show(t)
	if err := os.Truncate(m.path, 1<<20); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s = m.reopen(t, s)
		m.gone(t, s, "after a start")
	}
	m.heal(t, s)
}

// TestFileWithoutRecordIsHashed checks files without a record, which a crash or the removal of a
// damaged object leaves: only a right one becomes an object.
func TestFileWithoutRecordIsHashed(t *testing.T) {
	for _, size := range []int{100, 3 << 20} {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		right, wrong := storetest.Random(1, size), storetest.Random(2, size)
		for _, p := range [][]byte{right, wrong} {
			path := filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(p)))
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, p, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		flip(t, filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(wrong))))
		dir := s.Dir()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = storetest.Open(t, dir, store.Options{})
		if f, err := s.OpenObject(digest.FromBytes(right), nil); err != nil {
			t.Errorf("%d bytes, right: %v", size, err)
		} else if !bytes.Equal(readAll(t, f), right) {
			t.Errorf("%d bytes, right: read others", size)
		}
		if s.Has(digest.FromBytes(wrong)) {
			t.Errorf("%d bytes, wrong: it is an object", size)
		}
		if d, err := s.Health(); d.Unrecorded != 0 || len(d.Damaged) != 1 || err != nil {
			t.Errorf("%d bytes: health %+v, %v", size, d, err)
		}
	}
}

// TestKnownDamageOutlivesTheDatabase checks that a damaged file is not accepted after the database with
// its state is lost.
func TestKnownDamageOutlivesTheDatabase(t *testing.T) {
	m, s := show(t)
	flip(t, m.path)
	if bad, err := s.Check(t.Context(), "", nil); len(bad) != 1 || err != nil {
		t.Fatalf("found %+v, %v", bad, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.dir, "store.db")); err != nil {
		t.Fatal(err)
	}
	s = m.open(t)
	m.hold(t, s)
	m.gone(t, s, "without a database")
	m.heal(t, s)
}

// TestRightAgainIsAnObjectAgain checks that after temporary read errors a later check makes the file an
// object again, without a fetch.
func TestRightAgainIsAnObjectAgain(t *testing.T) {
	m, s := show(t)
	flip(t, m.path)
	if bad, err := s.Check(t.Context(), "", nil); len(bad) != 1 || err != nil {
		t.Fatalf("found %+v, %v", bad, err)
	}
	d, err := s.Health()
	if len(d.Damaged) != 1 || err != nil {
		t.Fatalf("health: %+v, %v", d, err)
	}
	flip(t, d.Damaged[0])
	if bad, err := s.Check(t.Context(), "", nil); len(bad) != 0 || err != nil {
		t.Errorf("found %+v, %v", bad, err)
	}
	m.healFromHere(t, s)
}

// TestLostDatabaseKeepsModels checks that after the loss of the database the objects of a snapshot are
// found from its table, survive a garbage collection and are not fetched.
func TestLostDatabaseKeepsModels(t *testing.T) {
	m, s := show(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.dir, "store.db")); err != nil {
		t.Fatal(err)
	}
	s = m.open(t)
	m.hold(t, s)
	if r, err := s.GC(t.Context(), store.GCOptions{}); r.Objects > 0 || err != nil {
		t.Errorf("collected %+v, %v", r, err)
	}
	if p, err := os.ReadFile(m.path); err != nil || !bytes.Equal(p, m.weights) {
		t.Fatalf("after the collection: %v, or wrong bytes", err)
	}
	if d, err := s.Health(); d.Rebuilt.IsZero() || err != nil {
		t.Errorf("health: %+v, %v", d, err)
	}
	m.healFromHere(t, s)
}

// TestUnrecordedFileDoesNotDelay checks that a large file that must be hashed delays neither the
// opening of the store nor readers of the model, and that a hydration does not fetch it.
func TestUnrecordedFileDoesNotDelay(t *testing.T) {
	p, dir := storetest.Random(9, 5<<20), t.TempDir()
	b, f := storetest.NewBuilder("lost").RawChunks("w", p, 0o644, 1<<20), storetest.NewFetcher(p)
	s := storetest.Open(t, dir, store.Options{})
	table := b.Put(t, s)
	hold(t, s, table)
	o := storetest.From(f)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "store.db")); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	hold(t, s, table)
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: o}); err != nil {
		t.Fatal(err)
	}
	sent := f.Sent(digest.FromBytes(p))
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o}); err != nil {
		t.Fatal(err)
	}
	if n := f.Sent(digest.FromBytes(p)) - sent; n > 0 {
		t.Errorf("%d bytes were fetched", n)
	}
	waitFor(t, "its chunks are compared with those that readers saw", func() bool { return !isExposed(s, table) })
	readRandomly(t, s, digest.FromBytes(p), p, 5)
}

// TestLostDatabaseOfAnArchive checks a model from an archive, whose contents only the database has.
// After its loss nothing of the table is collected, verify reports it, and a pull repairs it.
func TestLostDatabaseOfAnArchive(t *testing.T) {
	m, s := show(t)
	archive := storetest.Tar(t, []tar.Header{{Name: "w.bin", Mode: 0o644}}, [][]byte{m.weights})
	m.b, m.fetcher = storetest.NewBuilder("archive").Tar(t, archive), storetest.NewFetcher(archive)
	m.table = m.b.Put(t, s)
	m.hold(t, s)
	m.heal(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(m.dir, "store.db")); err != nil {
		t.Fatal(err)
	}
	s = m.open(t)
	m.hold(t, s)
	if _, err := s.GC(t.Context(), store.GCOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("collected: %v", err)
	}
	if _, err := os.Stat(m.path); err != nil {
		t.Error(err)
	}
	for _, table := range []digest.Digest{"", m.table} {
		if bad, err := s.Missing(table); len(bad) != 1 || bad[0].Digest != m.table || bad[0].Problem != store.ProblemPartly || err != nil {
			t.Errorf("missing: %+v, %v", bad, err)
		}
	}
	m.heal(t, s)
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
		t.Errorf("collected: %v", err)
	}
}

// TestReplacedDamageIsForgotten checks a crash after a right file has replaced a damaged one and before
// the damaged file is removed.
func TestReplacedDamageIsForgotten(t *testing.T) {
	m, s := show(t)
	if err := os.WriteFile(filepath.Join(m.dir, "damaged", m.digest().Encoded()), []byte("damage"), 0o644); err != nil {
		t.Fatal(err)
	}
	s = m.reopen(t, s)
	if d, err := s.Health(); len(d.Damaged) > 0 || err != nil {
		t.Errorf("health: %+v, %v", d, err)
	}
	m.heal(t, s)
}

// TestUnresolvedReferenceKeepsAll checks that nothing is collected, even to make room, while a
// reference needs a missing table, and that storing the table or removing the reference ends this.
func TestUnresolvedReferenceKeepsAll(t *testing.T) {
	for _, end := range []string{"put", "remove"} {
		t.Run(end, func(t *testing.T) {
			m, s := show(t)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			flip(t, filepath.Join(m.dir, "objects", store.ObjectName(m.table)))
			if err := os.Remove(filepath.Join(m.dir, "store.db")); err != nil {
				t.Fatal(err)
			}
			s = m.open(t)
			if err := s.AddRef("snapshot/1", m.table, time.Time{}); !errdefs.IsNotFound(err) {
				t.Fatalf("referred to: %v", err)
			}
			if _, err := s.GC(t.Context(), store.GCOptions{}); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("collected: %v", err)
			}
			if _, err := os.Stat(m.path); err != nil {
				t.Error(err)
			}
			d, err := s.Health()
			if len(d.Unresolved) != 1 || d.Unresolved[0].Name != "snapshot/1" || err != nil {
				t.Errorf("health: %+v, %v", d, err)
			}
			if end == "put" {
				m.b.Put(t, s)
				m.heal(t, s)
			} else if err := s.RemoveRef("snapshot/1"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
				t.Errorf("collected: %v", err)
			}
			if _, err := os.Stat(m.path); (err == nil) != (end == "put") {
				t.Errorf("after it: %v", err)
			}
		})
	}
}

// TestDamagedTableHeals checks that a damaged table is replaced by a pull, or from memory.
func TestDamagedTableHeals(t *testing.T) {
	for _, restart := range []bool{false, true} {
		m, s := show(t)
		path := filepath.Join(m.dir, "objects", store.ObjectName(m.table))
		flip(t, path)
		if bad, err := s.Check(t.Context(), "", nil); len(bad) != 1 || bad[0].Digest != m.table || err != nil {
			t.Fatalf("found %+v, %v", bad, err)
		}
		if restart {
			s = m.reopen(t, s)
			if _, err := s.Table(m.table); !errdefs.IsNotFound(err) {
				t.Errorf("after a restart: %v", err)
			}
			m.b.Put(t, s)
		}
		m.heal(t, s)
		if missing, err := s.Missing(""); len(missing) > 0 || err != nil {
			t.Errorf("missing: %+v, %v", missing, err)
		}
		if p, err := os.ReadFile(path); err != nil || digest.FromBytes(p) != m.table {
			t.Errorf("table: %v, or wrong", err)
		}
	}
}

// TestExpiredPinEndsExposure checks that the garbage collection that drops an expired pin also ends the
// exposure of its files.
func TestExpiredPinEndsExposure(t *testing.T) {
	p := storetest.Random(8, 5<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("pin").RawChunks("w", p, 0o644, 1<<20).Put(t, s)
	if err := s.AddRef("pin/x", table, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil || !isExposed(s, table) {
		t.Errorf("before: exposed %v, %v", isExposed(s, table), err)
	}
	if err := s.AddRef("pin/x", table, time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil || isExposed(s, table) {
		t.Errorf("after: exposed %v, %v", isExposed(s, table), err)
	}
	if refs := s.Catalog.Refs(""); len(refs) > 0 {
		t.Errorf("after: %v", refs)
	}
}

// TestCollectWhileHydrating runs garbage collections while hydrations find out where their bytes are
// staged, for the race detector.
func TestCollectWhileHydrating(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("many")
	for i := range 200 {
		b.Raw(fmt.Sprint("raw", i), storetest.Random(uint64(i), 100), 0o644)
	}
	table := b.Put(t, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10 { // without sources: it ends when it knows what is missing
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{}); err == nil {
				t.Error("it is complete")
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if _, err := s.GC(t.Context(), store.GCOptions{DryRun: true}); err != nil {
			t.Error(err)
		}
	}
}
