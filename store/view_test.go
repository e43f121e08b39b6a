package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// viewed exposes a table in its own view, as a pull does.
func viewed(t *testing.T, s *store.Store, view string, b *storetest.Builder, o store.ExposeOptions) (store.View, digest.Digest) {
	t.Helper()
	table := b.Put(t, s)
	var names []string
	for _, src := range o.Sources {
		names = append(names, src.Name)
	}
	if err := s.AddRef(view, table, time.Time{}, names...); err != nil {
		t.Fatal(err)
	}
	o.View = view
	if err := s.Views.Expose(t.Context(), table, o); err != nil {
		t.Fatal(err)
	}
	return s.Views.View(view), table
}

// TestPresentReadsOnce: mounts do not read again a complete file that is being compared with what its readers used.
func TestPresentReadsOnce(t *testing.T) {
	p := storetest.Random(6, 64<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p)
	v, _ := viewed(t, s, "snapshot/1", storetest.NewBuilder("m").RawChunks("w", p, 0o644, chunk), store.ExposeOptions{Sources: storetest.FromRepository("own/model", f)})
	other := storetest.NewBuilder("other").Raw("w", p, 0o644).Put(t, s)
	if err := s.Hydrate(t.Context(), other, store.HydrateOptions{Sources: storetest.FromRepository("other/model", f)}); err != nil {
		t.Fatal(err)
	}
	before := bytesRead(t)
	for range 20 {
		if err := s.Views.Present("snapshot/1"); err != nil {
			t.Fatal(err)
		}
	}
	d := digest.FromBytes(p)
	waitFor(t, "the file is compared", func() bool { return inView(t, v, d) != nil })
	s.Close()
	if n := bytesRead(t) - before; n > 2*int64(len(p)) {
		t.Errorf("%d bytes are read of a file of %d", n, len(p))
	}
}

// bytesRead returns the number of bytes that this process has read.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscanf(bytes.NewReader(b), "rchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// inView returns the file of an object in a view, or nil.
func inView(t *testing.T, v store.View, d digest.Digest) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(filepath.Join(v.Dir(), store.ObjectName(d)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return info
}

// withheld fails the test if an object is in a view or can be read there.
func withheld(t *testing.T, when string, s *store.Store, v store.View, d digest.Digest) {
	t.Helper()
	if inView(t, v, d) != nil {
		t.Errorf("%s: the file is in the view", when)
	}
	if f, err := v.OpenObject(d); !errdefs.IsNotFound(err) {
		t.Errorf("%s: opened: %v, %v", when, f, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if n, err := v.ReadAt(ctx, d, make([]byte, 10), 0); err == nil {
		t.Errorf("%s: %d bytes were read", when, n)
	}
}

// TestMountedBeforeItIsThere: an attacker's table names a private file and is exposed before the file
// is on the node. After the owner's pull, the attacker's view does not have the file; the owner reads
// it early, in another way, and has it.
func TestMountedBeforeItIsThere(t *testing.T) {
	p, dir := storetest.Random(40, 9<<20), t.TempDir()
	d := digest.FromBytes(p)
	open := func() *store.Store {
		s, err := store.Open(dir, store.Options{Reserve: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	defer func() { s.Close() }()
	thief := storetest.NewBuilder("thief").RawChunks("x", p, 0o644, 1<<20)
	stolen, theft := viewed(t, s, "snapshot/1", thief, store.ExposeOptions{Sources: evil(hung(p))})
	withheld(t, "before", s, stolen, d)

	f := storetest.NewFetcher(p)
	owner := good(storetest.Private{Fetcher: f})
	own, table := viewed(t, s, "snapshot/2", storetest.NewBuilder("owner").RawChunks("w", p, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: owner})
	got := make([]byte, 1000)
	if n, err := own.ReadAt(t.Context(), d, got, 5<<20); n != len(got) || err != nil || !bytes.Equal(got, p[5<<20:][:n]) {
		t.Errorf("the owner reads early: %d bytes, %v; or they are wrong", n, err)
	}
	_, before, err := own.LazyFile(d)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: owner}); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		withheld(t, when, s, stolen, d)
		object, err := os.Stat(filepath.Join(s.ObjectsDir(), store.ObjectName(d)))
		if err != nil || !os.SameFile(object, inView(t, own, d)) {
			t.Errorf("%s: the owner does not have the file itself: %v", when, err)
		}
		if _, after, err := own.LazyFile(d); after != before || err != nil {
			t.Errorf("%s: identity %s, was %s: %v", when, after, before, err)
		}
	}
	check("complete")
	for range 2 {
		if err := s.Views.Present("snapshot/1"); err != nil {
			t.Fatal(err)
		}
		check("shown again")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open()
		stolen, own = s.Views.View("snapshot/1"), s.Views.View("snapshot/2")
		check("after a restart")
		if err := s.Views.Present("snapshot/1"); err != nil {
			t.Fatal(err)
		}
		check("shown after a restart")
		if err := s.Views.Expose(t.Context(), theft, store.ExposeOptions{View: "snapshot/1", Sources: evil(hung(p))}); err != nil {
			t.Fatal(err)
		}
		check("exposed again")
	}
	// A source that provides all bytes may have the file.
	if err := s.Hydrate(t.Context(), theft, store.HydrateOptions{Sources: evil(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "its chunks are compared", func() bool { return inView(t, stolen, d) != nil })
	if !os.SameFile(inView(t, own, d), inView(t, stolen, d)) {
		t.Error("who has the file too does not get it")
	}
}

// TestViewsAreRemoved: objects are removed with their links in all views.
func TestViewsAreRemoved(t *testing.T) {
	p := storetest.Random(41, 3<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	sources := good(storetest.NewFetcher(p))
	var views []store.View
	for _, name := range []string{"snapshot/1", "snapshot/2"} {
		v, table := viewed(t, s, name, storetest.NewBuilder(name).RawChunks("w", p, 0o644, 1<<20), store.ExposeOptions{Sources: sources})
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}); err != nil {
			t.Fatal(err)
		}
		views = append(views, v)
	}
	if n := inView(t, views[0], d).Sys().(*syscall.Stat_t).Nlink; n != 3 {
		t.Errorf("the object has %d names, want 3", n)
	}
	for i, want := range []bool{true, false} {
		if err := s.RemoveRef([]string{"snapshot/1", "snapshot/2"}[i]); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if inView(t, views[i], d) != nil || (inView(t, views[1], d) != nil) != want {
			t.Errorf("%d gone: in views %v, %v", i+1, inView(t, views[0], d), inView(t, views[1], d))
		}
	}
	if _, err := os.Stat(filepath.Join(s.Dir(), "views", "snapshot", "2")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the view: %v", err)
	}
}

// TestViewOfRemovedReference: a reference with the name of a removed one, as that of a snapshot whose id is used again,
// does not get its view, also if a crash has left that.
func TestViewOfRemovedReference(t *testing.T) {
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprintf("view left %t", left), func(t *testing.T) {
			p := storetest.Random(48, 3<<20)
			d := digest.FromBytes(p)
			s, dir := (*store.Store)(nil), t.TempDir()
			open := func() (err error) {
				s, err = store.Open(dir, store.Options{Reserve: 1})
				return err
			}
			if err := open(); err != nil {
				t.Fatal(err)
			}
			defer func() { s.Close() }()
			owner := good(storetest.Private{Fetcher: storetest.NewFetcher(p)})
			v, table := viewed(t, s, "snapshot/2", storetest.NewBuilder("owner").RawChunks("w", p, 0o644, 1<<20), store.ExposeOptions{Sources: owner})
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: owner}); err != nil {
				t.Fatal(err)
			}
			if inView(t, v, d) == nil {
				t.Fatal("the owner does not have the file")
			}
			if err := errors.Join(s.Close(), os.Remove(filepath.Join(dir, "store.db")), open()); err != nil {
				t.Fatal(err)
			}
			if err := s.AddRef("snapshot/2", table, time.Time{}); err != nil || inView(t, v, d) == nil {
				t.Errorf("a lost reference: its view is gone, or %v", err)
			}
			if err := s.RemoveRef("snapshot/2"); err != nil {
				t.Fatal(err)
			}
			if inView(t, v, d) != nil {
				t.Error("the view is left")
			}
			if left {
				path := filepath.Join(v.Dir(), store.ObjectName(d))
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.Link(filepath.Join(s.ObjectsDir(), store.ObjectName(d)), path)); err != nil {
					t.Fatal(err)
				}
			}
			thief := storetest.NewBuilder("thief").RawChunks("x", p, 0o644, 1<<20)
			stolen, _ := viewed(t, s, "snapshot/2", thief, store.ExposeOptions{Sources: evil(hung(p))})
			withheld(t, "the name is used again", s, stolen, d)
		})
	}
}

// TestDamageLeavesViews: a damaged object is removed from all views; when it is repaired, it is in the
// same views again.
func TestDamageLeavesViews(t *testing.T) {
	p := storetest.Random(42, 3<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	sources := good(storetest.Private{Fetcher: storetest.NewFetcher(p)})
	v, table := viewed(t, s, "snapshot/1", storetest.NewBuilder("x").RawChunks("w", p, 0o644, 1<<20), store.ExposeOptions{Sources: sources})
	bring := func() {
		t.Helper()
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}); err != nil {
			t.Fatal(err)
		}
	}
	_, before, err := v.LazyFile(d)
	if err != nil {
		t.Fatal(err)
	}
	same := func(when string) {
		t.Helper()
		if _, after, err := v.LazyFile(d); after != before || err != nil {
			t.Errorf("%s: identity %s, was %s: %v", when, after, before, err)
		}
	}
	bring()
	same("complete")
	path := filepath.Join(s.ObjectsDir(), store.ObjectName(d))
	flip(t, path)
	if bad, err := s.Check(t.Context(), table, nil); len(bad) != 1 || err != nil {
		t.Fatalf("found %v, %v", bad, err)
	}
	if inView(t, v, d) != nil {
		t.Error("a damaged file is in a view")
	}
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{View: "snapshot/1", Sources: sources}); err != nil {
		t.Fatal(err)
	}
	bring()
	if object, err := os.Stat(path); err != nil || !os.SameFile(object, inView(t, v, d)) {
		t.Errorf("after it was fetched again: %v, %v", inView(t, v, d), err)
	}
	same("after it was fetched again")
	// Present restores links that a power failure has removed.
	if err := os.RemoveAll(v.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Present("snapshot/1"); err != nil || inView(t, v, d) == nil {
		t.Errorf("after the view was lost: %v", err)
	}
	same("after the view was lost")
}

// TestPresentAgain: a view that had its whole model is completed again after an object was damaged and
// repaired, or collected.
func TestPresentAgain(t *testing.T) {
	s, err := store.Open(t.TempDir(), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, q := storetest.Random(46, 2<<20), storetest.Random(47, 1<<20)
	f := storetest.NewFetcher(p, q)
	b := storetest.NewBuilder("x").RawChunks("w", p, 0o644, 1<<20).RawChunks("v", q, 0o644, 1<<20)
	o := store.ExposeOptions{Sources: good(f)}
	v, table := viewed(t, s, "snapshot/1", b, o)
	if err := s.AddRef("snapshot/1", table, time.Time{}, o.Sources[0].Name); err != nil {
		t.Fatal(err)
	}
	bring := func() {
		t.Helper()
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources}); err != nil {
			t.Fatal(err)
		}
	}
	bring()
	for round := range 3 {
		for range 2 {
			if err := s.Views.Present("snapshot/1"); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range []digest.Digest{digest.FromBytes(p), digest.FromBytes(q)} {
			object, err := os.Stat(filepath.Join(s.ObjectsDir(), store.ObjectName(d)))
			if err != nil || !os.SameFile(object, inView(t, v, d)) {
				t.Fatalf("round %d: %s is not in the view: %v", round, d, err)
			}
		}
		flip(t, filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(p))))
		if bad, err := s.Check(t.Context(), table, nil); len(bad) != 1 || err != nil {
			t.Fatalf("found %v, %v", bad, err)
		}
		if inView(t, v, digest.FromBytes(p)) != nil {
			t.Error("a damaged file is in the view")
		}
		bring()
	}
}

// TestLieBeforeCrash: a file was read in chunks that do not match its content, and the process died
// before that was found. The file does not keep its identity.
func TestLieBeforeCrash(t *testing.T) {
	p, lie, dir := storetest.Random(44, 3<<20), storetest.Random(45, 3<<20), t.TempDir()
	d := digest.FromBytes(p)
	b := storetest.NewBuilder("liar").RawChunks("w", p, 0o644, 1<<20)
	for i, c := range b.Table().Files[0].Source.Chunks {
		b.Table().Files[0].Source.Chunks[i].Digest = digest.FromBytes(lie[c.Offset:][:c.Size])
	}
	f := storetest.NewFetcher()
	f.Blobs[d] = lie
	s, err := store.Open(dir, store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.Close() }()
	v, _ := viewed(t, s, "snapshot/1", b, store.ExposeOptions{Sources: evil(f)})
	_, before, err := v.LazyFile(d)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 10)
	if _, err := v.ReadAt(t.Context(), d, got, 0); err != nil || !bytes.Equal(got, lie[:10]) {
		t.Fatalf("read %x, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = store.Open(dir, store.Options{Reserve: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutBytes(p); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Present("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if _, after, err := s.Views.View("snapshot/1").LazyFile(d); after == before || err != nil {
		t.Errorf("identity %s, was %s: %v", after, before, err)
	}
}

// TestWrongIsRemembered: after a restart it is still known that bytes of a file were read that the disk had changed:
// it does not keep its identity.
func TestWrongIsRemembered(t *testing.T) {
	const chunk = filetable.MaxChunk
	p, dir := storetest.Random(43, 4*chunk), t.TempDir()
	d := digest.FromBytes(p)
	s := storetest.Open(t, dir, store.Options{Reserve: 1})
	f := storetest.NewFetcher(p)
	o := store.ExposeOptions{View: "snapshot/1", Sources: storetest.From(f)}
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, chunk).Stated(t, p).Put(t, s)
	if err := s.AddRef(o.View, table, time.Time{}, o.Sources[0].Name); err != nil {
		t.Fatal(err)
	}
	interrupted(t, s, table, p, 2*chunk)
	markSynced(t, dir)
	if _, err := biggestStaged(t, dir).WriteAt([]byte{p[chunk+5] ^ 4}, chunk+5); err != nil {
		t.Fatal(err)
	}
	var v store.View
	var before digest.Digest
	open := func() {
		t.Helper()
		s = storetest.Open(t, dir, store.Options{Reserve: 1})
		if err := s.Views.Expose(t.Context(), table, o); err != nil {
			t.Fatal(err)
		}
		v = s.Views.View(o.View)
	}
	kept := func() bool {
		_, now, err := v.LazyFile(d)
		return err == nil && now == before
	}
	open()
	var err error
	if _, before, err = v.LazyFile(d); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1)
	if _, err := v.ReadAt(t.Context(), d, got, chunk+5); err != nil || got[0] == p[chunk+5] || !kept() {
		t.Fatalf("read %d, it is %d: %v", got[0], p[chunk+5], err)
	}
	f.Allow = func(int64, int64) bool { return false }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := later(func() error { return s.Hydrate(ctx, table, store.HydrateOptions{Sources: o.Sources}) })
	waitFor(t, "the damage is found", func() bool { return !kept() })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open()
	if kept() {
		t.Error("the identity is the same after a restart")
	}
	f.Allow = nil
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources}); err != nil {
		t.Fatal(err)
	}
	if kept() {
		t.Error("the identity is the same when it is complete")
	}
}
