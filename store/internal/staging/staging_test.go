package staging

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/storetest/disktest"
	"github.com/opencontainers/go-digest"
)

func area(t *testing.T, dir string) *Area {
	t.Helper()
	root, err := dirs.Open(dir, Keeps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	a, err := New(root)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestFailedSync checks that after a failed fsync no staged byte is trusted: the kernel would still
// return it from the page cache.
func TestFailedSync(t *testing.T) {
	disk := disktest.New(t, "ext4", t.TempDir(), 128<<20)
	a := area(t, disk.Dir)
	const chunks = 8
	p, err := a.Open("x", chunks*ChunkSize, RawPieces(chunks*ChunkSize), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	disk.FailWrites(1)
	for i := range chunks {
		if err := p.Write(i, bytes.Repeat([]byte{1}, ChunkSize)); err != nil {
			t.Fatalf("write: %v", err)
		}
	}
	if err := p.Sync("data"); err == nil {
		t.Fatal("the disk did not fail")
	}
	if p.Lost() == nil || p.Has(0) || p.Present() > 0 {
		t.Errorf("lost: %v, first chunk there: %v, %d bytes", p.Lost(), p.Has(0), p.Present())
	}
	if p.Sync("data") == nil || p.Write(0, make([]byte, ChunkSize)) == nil {
		t.Error("it can be used after that")
	}
	if n := a.Marked("x", chunks*ChunkSize, nil); n > 0 {
		t.Errorf("%d bytes are found again", n)
	}
}

// TestCollect checks that only partials that are neither held nor in use are removed.
func TestCollect(t *testing.T) {
	dir := t.TempDir()
	a := area(t, dir)
	old := time.Now().Add(-2 * TTL)
	for _, name := range []string{"old", "held", "new"} {
		p, err := a.Open(name, 10, RawPieces(10), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Write(0, []byte("0123456789")); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"data", "."} {
			if name != "new" {
				if err := os.Chtimes(filepath.Join(dir, Top, name, file), old, old); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	crashed := filepath.Join(dir, Top, gone+"x") // while it was removed
	if err := os.MkdirAll(filepath.Join(crashed, "y"), 0o700); err != nil {
		t.Fatal(err)
	}
	a.Hold("held")
	for _, dry := range []bool{true, false} {
		if n, err := a.Collect(dry); err != nil || n != 1 {
			t.Errorf("dry %v: %d, %v", dry, n, err)
		}
	}
	if n, err := a.Collect(false); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	if _, err := os.Stat(crashed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a crash left: %v", err)
	}
	a.Drop("held")
	if n, err := a.Collect(false); err != nil || n != 1 {
		t.Errorf("after it was let go: %d, %v", n, err)
	}
	if n := a.Marked("new", 10, nil); n != 10 {
		t.Errorf("%d bytes of what is new", n)
	}
	a.Hold("new")
	for _, want := range []int64{10, 0} {
		if err := a.Tidy("new"); err != nil {
			t.Fatal(err)
		}
		if n := a.Marked("new", 10, nil); n != want {
			t.Errorf("tidied: %d bytes, want %d", n, want)
		}
		a.Drop("new")
	}
}

// TestResumeSingle checks that the only chunk of a blob, if it was written, is present after a restart
// in the same boot, whatever was left at its path.
func TestResumeSingle(t *testing.T) {
	for name, grid := range map[string][]int64{"archive": nil, "file": {0}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, Top, "one", "left"), 0o700); err != nil {
				t.Fatal(err)
			}
			a := area(t, dir)
			for _, write := range []bool{false, true} {
				p, err := a.Open("one", 10, RawPieces(10), grid)
				if err != nil || p.Resumed || a.Marked("one", 10, func() []int64 { return grid }) != 0 {
					t.Fatalf("%v, what was not written is there: %t", err, p.Resumed)
				}
				if write {
					err = p.Write(0, []byte("0123456789"))
				}
				if err := errors.Join(err, p.Close()); err != nil {
					t.Fatal(err)
				}
			}
			if b, err := os.ReadFile(filepath.Join(dir, DataPath("one", grid))); string(b) != "0123456789" {
				t.Errorf("staged: %q, %v", b, err)
			}
			for boot, want := range map[string]int64{"another": 0, a.boot: 10} {
				b := area(t, dir)
				b.boot = boot
				if n := b.Marked("one", 10, func() []int64 { return grid }); n != want {
					t.Errorf("boot %s: %d bytes, want %d", boot, n, want)
				}
			}
		})
	}
}

// TestResume checks that written chunks are present after a restart in the same boot, and only synced
// ones after a reboot.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	a := area(t, dir)
	const size = 3 * ChunkSize
	stage := func(chunks ...int) {
		t.Helper()
		p, err := a.Open("x", size, RawPieces(size), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range chunks {
			if err := p.Write(i, make([]byte, ChunkSize)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	p, err := a.Open("x", size, RawPieces(size), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Write(0, make([]byte, ChunkSize)), p.checkpoint([]int{0}), p.Close()); err != nil {
		t.Fatal(err)
	}
	stage(2)
	for boot, want := range map[string]int64{a.boot: 2 * ChunkSize, "another": ChunkSize} {
		b := area(t, dir)
		b.boot = boot
		if n := b.Marked("x", size, nil); n != want {
			t.Errorf("boot %s: %d bytes, want %d", boot, n, want)
		}
	}
}

// TestSynced checks that what was synced counts as such only in the boot in which it was, whatever processes and boots
// come after it, and not if a version marked it that did not know the boot.
func TestSynced(t *testing.T) {
	const size = 3 * ChunkSize
	dir := t.TempDir()
	open := func(boot string) *Partial {
		t.Helper()
		a := area(t, dir)
		a.boot = boot
		p, err := a.Open("x", size, RawPieces(size), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	write := func(p *Partial, i int) {
		t.Helper()
		if err := errors.Join(p.Write(i, make([]byte, ChunkSize)), p.checkpoint([]int{i})); err != nil {
			t.Fatal(err)
		}
	}
	p := open("one")
	write(p, 0)
	if err := errors.Join(p.Write(1, make([]byte, ChunkSize)), p.Close()); err != nil {
		t.Fatal(err)
	}
	check := func(boot string, want ...bool) (last *Partial) {
		t.Helper()
		for range 2 {
			p := open(boot)
			last = p
			for i, want := range want {
				if p.Synced(i) != want || want && !p.Has(i) {
					t.Errorf("boot %s: chunk %d: synced %t, want %t", boot, i, p.Synced(i), want)
				}
			}
			t.Cleanup(func() { p.Close() })
		}
		return last
	}
	check("one", true, false, false)
	write(check("two", false, false, false), 2)
	check("two", false, false, true)
	check("one", false, false, false)
	if n := area(t, dir).Marked("x", size, nil); n != 2*ChunkSize {
		t.Errorf("%d bytes are there, want those of two chunks", n)
	}
	if err := os.WriteFile(filepath.Join(dir, Top, "x", "marks"), []byte{2, 1, 0}, 0o600); err != nil {
		t.Fatal(err)
	}
	check("one", false, false, false)
}

// TestMarksOfAnotherLength checks that damaged marks do not count, whoever asks: a fetch that does not
// know that it resumes would blame its source for the bytes of the disk.
func TestMarksOfAnotherLength(t *testing.T) {
	const size = 3 * ChunkSize
	for _, length := range []int64{1, 2, 4} {
		dir := t.TempDir()
		a := area(t, dir)
		p, err := a.Open("x", size, RawPieces(size), nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := p.Write(i, make([]byte, ChunkSize)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(p.Close(), os.Truncate(filepath.Join(dir, Top, "x", "marks"), length)); err != nil {
			t.Fatal(err)
		}
		marked := a.Marked("x", size, nil)
		if p, err = a.Open("x", size, RawPieces(size), nil); err != nil {
			t.Fatal(err)
		}
		if marked != 0 || p.Present() != 0 || p.Resumed {
			t.Errorf("%d of 3 marks: %d bytes are marked, %d present, resumed %t", length, marked, p.Present(), p.Resumed)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestEmptied checks that a directory whose file has become an object is gone after a start, and no other one.
func TestEmptied(t *testing.T) {
	const size = 3 * ChunkSize
	dir := t.TempDir()
	a := area(t, dir)
	for name, pieces := range map[string][]Piece{
		"published": RawPieces(size), "left": RawPieces(size), "fragments": {{Size: size, File: "assembly-1/data"}},
	} {
		if err := a.Make("assembly-1"); err != nil {
			t.Fatal(err)
		}
		p, err := a.Open(name, size, pieces, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Write(0, make([]byte, ChunkSize)), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(dir, Top, "published", "data"), filepath.Join(dir, "object")); err != nil {
		t.Fatal(err)
	}
	a = area(t, dir)
	for name, want := range map[string]int64{"published": 0, "left": ChunkSize, "fragments": ChunkSize} {
		_, err := os.Stat(filepath.Join(dir, Top, name))
		if n := a.Marked(name, size, nil); n != want || (err == nil) != (want > 0) {
			t.Errorf("%s: %d bytes are marked, want %d; its directory: %v", name, n, want, err)
		}
	}
}

// TestDirs checks that the directories of a blob are known while they are on the disk, also after a restart.
func TestDirs(t *testing.T) {
	dir := t.TempDir()
	a := area(t, dir)
	d := digest.FromString("blob")
	names := []string{BlobDir(d, "layout", "one"), BlobDir(d, "layout", "two"), BlobDir(d, "another", "one")}
	slices.Sort(names)
	others := []string{BlobDir(digest.FromString("other"), "layout", "one"), "assembly-" + d.Encoded()}
	check := func(a *Area, want ...string) {
		t.Helper()
		got := a.Dirs(d)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	check(a)
	for _, name := range append(others, names...) {
		p, err := a.Open(name, 10, RawPieces(10), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Write(0, []byte("0123456789")), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	a.Hold(BlobDir(d, "held", "but not there"))
	check(a, names...)
	check(area(t, dir), names...)
	if err := a.Remove(names[1]); err != nil {
		t.Fatal(err)
	}
	check(a, names[0], names[2])
	a.Hold(names[2])
	if err := errors.Join(a.Tidy(names[0]), a.Tidy(names[2])); err != nil {
		t.Fatal(err)
	}
	check(a, names[2])
	a.Drop(names[2])
	if err := errors.Join(a.Tidy(names[2]), a.Make(names[0])); err != nil {
		t.Fatal(err)
	}
	check(a, names[0])
}

// TestOpenTogether opens a directory, which an earlier version left with other content, many times at once:
// nobody removes what another one has made.
func TestOpenTogether(t *testing.T) {
	a := area(t, t.TempDir())
	p, err := a.Open("x", 3*ChunkSize, RawPieces(3*ChunkSize), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	for i := range 20 {
		g.Go(func() {
			p, err := a.Open("x", 20*ChunkSize, RawPieces(20*ChunkSize), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(p.Write(i, make([]byte, ChunkSize)), p.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	g.Wait()
	if n := a.Marked("x", 20*ChunkSize, nil); n != 20*ChunkSize {
		t.Errorf("%d chunks are there, want 20", n/ChunkSize)
	}
}
