package lazy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return f
}

// TestPassthrough opens a file in all ways at the same time.
func TestPassthrough(t *testing.T) {
	const size = 4 << 20
	p := newPlace(t)
	file := p.add(t, 1, size, size)
	d := startDaemon(t, p.args()...)
	check := func(what string, f *os.File, passthrough int64) {
		t.Helper()
		if err := readAt(f, 1, 0, size); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if s := d.stats(); s.PassthroughOpens != passthrough {
			t.Errorf("%s: %+v, want %d opens by passthrough", what, s, passthrough)
		}
	}
	a := open(t, p.path(file))
	check("incomplete", a, 0)
	p.complete(t, file)
	b := open(t, p.path(file))
	check("complete, but a cached handle is open", b, 0)
	a.Close()
	b.Close()
	c := open(t, p.path(file))
	for deadline := time.Now().Add(2 * time.Minute); d.stats().PassthroughOpens == 0 && time.Now().Before(deadline); {
		c.Close() // the kernel reports a close later
		c = open(t, p.path(file))
	}
	check("complete", c, 1)
	reads := d.stats().Reads
	e := open(t, p.path(file))
	check("complete, by passthrough already", e, 2)
	if s := d.stats(); s.Reads != reads {
		t.Errorf("read through the daemon: %+v", s)
	}

	// A successor uses the same backing file, also after the object was removed from the store.
	d.kill()
	check2 := readAt(c, 1, 0, size) // without a daemon
	if check2 != nil {
		t.Error(check2)
	}
	d = startDaemon(t, p.args()...)
	check("after a takeover", open(t, p.path(file)), 1)
	if err := os.Rename(p.object(file), p.partial(file)); err != nil {
		t.Fatal(err)
	}
	g := open(t, p.path(file))
	check("evicted, by passthrough still", g, 2)
	d.tell("unmount")
}

// TestMixedTakeover has handles of both kinds open when the daemon is killed.
func TestMixedTakeover(t *testing.T) {
	const size = 2 << 20
	p := newPlace(t)
	cached, direct := p.add(t, 1, size, size), p.add(t, 2, size, size)
	p.complete(t, direct)
	d := startDaemon(t, p.args()...)
	a, b := open(t, p.path(cached)), open(t, p.path(direct))
	p.complete(t, cached)
	for range 3 {
		d.kill()
		d = startDaemon(t, p.args()...)
		open(t, p.path(cached))
		open(t, p.path(direct))
		if s := d.stats(); s.Opens != 2 || s.PassthroughOpens != 1 {
			t.Fatalf("%+v", s)
		}
		if err := errors.Join(readAt(a, 1, 0, size), readAt(b, 2, 0, size)); err != nil {
			t.Error(err)
		}
	}
	d.tell("unmount")
}

// TestDirectIO reads without the page cache, as some loaders of weights do.
func TestDirectIO(t *testing.T) {
	const size = 4 << 20
	p := newPlace(t)
	partial, whole := p.add(t, 1, size, size), p.add(t, 2, size, size)
	p.complete(t, whole)
	d := startDaemon(t, p.args()...)
	buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(buf)
	want := make([]byte, size)
	for seed, file := range map[uint64]digest.Digest{1: partial, 2: whole} {
		f, err := os.OpenFile(p.path(file), os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		clear(buf)
		content(want, seed, 0)
		if _, err := f.ReadAt(buf, 0); err != nil || !bytes.Equal(buf, want) {
			t.Errorf("file %d: %v", seed, err)
		}
		f.Close()
	}
	d.tell("unmount")
}

// TestNoPassthrough reads complete files through the daemon.
func TestNoPassthrough(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	p.complete(t, file)
	d := startDaemon(t, p.args("--no-passthrough")...)
	if err := readOnce(p.path(file), 1, false); err != nil {
		t.Error(err)
	}
	if s := d.stats(); s.PassthroughOpens != 0 || s.ObjectReads == 0 {
		t.Errorf("%+v", s)
	}
	// The successor may use passthrough, but the mount was made without it.
	d.kill()
	d = startDaemon(t, p.args()...)
	open(t, p.path(file))
	if s := d.stats(); s.PassthroughOpens != 0 || s.Takeovers != 1 {
		t.Errorf("%+v", s)
	}
	d.tell("unmount")
}

// TestOpenRace opens and closes a file in many goroutines while it becomes complete: the kernel returns
// EIO if both kinds of handles exist at the same time.
func TestOpenRace(t *testing.T) {
	p := newPlace(t)
	const files = 50
	var all []digest.Digest
	for i := range files {
		all = append(all, p.add(t, uint64(i), 8192, 8192))
	}
	d := startDaemon(t, p.args()...)
	var running sync.WaitGroup
	for i, file := range all {
		for range 4 {
			running.Go(func() {
				for range 20 {
					f, err := os.Open(p.path(file))
					if err != nil {
						t.Error(err)
						return
					}
					if err := errors.Join(readAt(f, uint64(i), 0, 8192), f.Close()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		p.complete(t, file)
	}
	running.Wait()
	if s := d.stats(); s.PassthroughOpens == 0 || s.ReadErrors != 0 || s.Opens != files*4*20 {
		t.Errorf("%+v\n%s", s, d.log)
	}
	d.tell("unmount")
}

// TestManyFiles looks up, reads and takes over thousands of files.
func TestManyFiles(t *testing.T) {
	const files = 4000
	p := newPlace(t)
	var all []digest.Digest
	for i := range files {
		all = append(all, p.add(t, uint64(i), 4096, 4096))
	}
	d := startDaemon(t, p.args()...)
	held := make([]*os.File, files)
	for i, file := range all {
		held[i] = open(t, p.path(file))
	}
	d.kill()
	d = startDaemon(t, p.args()...)
	for i, f := range held {
		if err := readAt(f, uint64(i), 0, 4096); err != nil {
			t.Fatalf("file %d: %v\n%s", i, err, d.log)
		}
	}
	d.tell("unmount")
}

// TestManyReaders has thousands of waiting reads; they use little memory, and all end.
func TestManyReaders(t *testing.T) {
	const files, size = 1000, 2 << 20
	p := newPlace(t)
	var all []digest.Digest
	for i := range files {
		d := digest.FromString(fmt.Sprint("sparse", i))
		if i == 0 {
			p.add(t, 0, 8, 8) // makes the directory
		}
		if err := errors.Join(os.WriteFile(p.partial(d), nil, 0o644), os.Truncate(p.partial(d), size)); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	d := startDaemon(t, p.args()...)
	var running sync.WaitGroup
	for _, file := range all {
		f := open(t, p.path(file))
		running.Go(func() {
			p := make([]byte, 4096)
			if _, err := f.ReadAt(p, 4096); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "reads wait", func() bool { return d.stats().Waiting >= maxBackground/2 })
	if kb := residentKB(t, d.cmd.Process.Pid); kb > 300<<10 {
		t.Errorf("%d KiB of memory for reads that wait", kb)
	}
	for _, file := range all {
		p.set(t, file, ".have", size)
	}
	running.Wait()
	d.tell("unmount")
}

func residentKB(t *testing.T, pid int) (kb int) {
	t.Helper()
	p, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var total int
	if _, err := fmt.Sscan(string(p), &total, &kb); err != nil {
		t.Fatal(err)
	}
	return kb * os.Getpagesize() / 1024
}

// TestLarge reads around and beyond 4 GiB of a sparse file.
func TestLarge(t *testing.T) {
	const size = 5<<30 + 123
	p := newPlace(t)
	file := p.add(t, 7, 8, 8)
	if err := os.Truncate(p.partial(file), size); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p.partial(file), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	mark := []byte("here")
	for _, off := range []int64{4<<30 - 2, 5 << 30, size - 4} {
		if _, err := f.WriteAt(mark, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	p.set(t, file, ".have", size)
	d := startDaemon(t, p.args()...)
	g := open(t, p.path(file))
	for _, off := range []int64{4<<30 - 2, 5 << 30, size - 4} {
		got := make([]byte, 4)
		if _, err := g.ReadAt(got, off); err != nil || string(got) != string(mark) {
			t.Errorf("at %d: %q, %v", off, got, err)
		}
	}
	d.tell("unmount")
}

// TestBad reads a file whose Source returns an error, and later bytes.
func TestBad(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	bad := p.partial(file) + ".bad"
	if err := os.WriteFile(bad, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := startDaemon(t, p.args()...)
	f := open(t, p.path(file))
	if err := readAt(f, 1, 0, 4096); !errors.Is(err, unix.EIO) {
		t.Errorf("got %v, want %v", err, unix.EIO)
	}
	if s := d.stats(); s.ReadErrors == 0 {
		t.Errorf("%+v", s)
	}
	if err := os.Remove(bad); err != nil {
		t.Fatal(err)
	}
	if err := readAt(f, 1, 0, 1<<20); err != nil {
		t.Error(err)
	}
	d.tell("unmount")
}
