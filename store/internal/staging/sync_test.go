package staging_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/storetest"
	"golang.org/x/sys/unix"
)

// TestCheckpointBlocksNoWriter checks that while a checkpoint waits for the disk, chunks can be written,
// read and counted, also by the goroutine that started it.
func TestCheckpointBlocksNoWriter(t *testing.T) {
	disk := storetest.NewSlowDisk(t)
	root, err := dirs.Open(disk.Dir, staging.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	area, err := staging.New(root)
	if err != nil {
		t.Fatal(err)
	}
	const chunks = 200 // more than the chunks between two checkpoints
	grid := make([]int64, chunks)
	for i := range grid {
		grid[i] = int64(i)
	}
	// FUSE locks the file that it syncs, so the test uses two files.
	pieces := []staging.Piece{{Size: chunks / 2, File: "data"}, {Off: chunks / 2, Size: chunks / 2, File: "more"}}
	p, err := area.Open("x", chunks, pieces, grid)
	if err != nil {
		t.Fatal(err)
	}
	write := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := p.Write(i, []byte{1}); err != nil {
				return err
			}
		}
		return nil
	}
	// Exactly one checkpoint: further writes to the file would wait for the disk.
	storetest.WithinLimit(t, "writing what a checkpoint begins with", func() error { return write(0, 64) })
	if got := <-disk.Syncing; got != "partial/x/data" {
		t.Fatalf("fsync of %s", got)
	}
	storetest.WithinLimit(t, "writing", func() error { return write(chunks/2, chunks) })
	storetest.WithinLimit(t, "reading", func() error { _, err := p.ReadAt(make([]byte, chunks/2), chunks/2); return err })
	storetest.WithinLimit(t, "counting", func() error {
		if n := p.Present(); n != 64+chunks/2 || !p.Has(chunks-1) {
			t.Errorf("%d bytes are there, want %d", n, 64+chunks/2)
		}
		return p.Lost()
	})
	storetest.WithinLimit(t, "opening another", func() error {
		q, err := area.Open("y", chunks, staging.RawPieces(chunks), grid)
		if err != nil {
			return err
		}
		return q.Close()
	})
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	disk.Release()
	area.Close()
	marks, err := root.ReadFile("partial/x/marks")
	if n := bytes.Count(marks, []byte{3}); err != nil || n != 64 {
		t.Errorf("%d chunks are marked synced, %v; want 64", n, err)
	}
}

// TestDiskUnderNoLock checks that while the disk takes long to create or remove staged files, others can be
// opened, held and looked for.
func TestDiskUnderNoLock(t *testing.T) {
	for name, tc := range map[string]struct {
		op string
		do func(*staging.Area) error // with the file x of a blob
	}{
		"open": {"create", func(a *staging.Area) error {
			p, err := a.Open("x", 2*staging.ChunkSize, staging.RawPieces(2*staging.ChunkSize), nil)
			if err != nil {
				return err
			}
			return p.Close()
		}},
		"collect": {"unlink", func(a *staging.Area) error {
			if n, err := a.Collect(false); err != nil || n != 1 {
				t.Errorf("collected %d, %v; want 1", n, err)
			}
			return nil
		}},
		"tidy": {"unlink", func(a *staging.Area) error { return a.Tidy("x") }},
	} {
		t.Run(name, func(t *testing.T) {
			disk := storetest.NewSlowDisk(t)
			root, err := dirs.Open(disk.Dir, staging.Keeps)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			if tc.op == "unlink" {
				if err := root.MkdirAll("partial/x", 0o700); err != nil {
					t.Fatal(err)
				}
				if err := root.WriteFile("partial/x/data", []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
				old := time.Now().Add(-2 * staging.TTL)
				for _, path := range []string{"x/data", "x"} {
					if err := os.Chtimes(filepath.Join(disk.Dir, staging.Top, path), old, old); err != nil {
						t.Fatal(err)
					}
				}
			}
			area, err := staging.New(root)
			if err != nil {
				t.Fatal(err)
			}
			disk.Slow(func(op, path string) bool { return op == tc.op && !strings.HasPrefix(path, "partial/y") })
			done := make(chan error, 1)
			go func() { done <- tc.do(area) }()
			<-disk.Syncing
			storetest.WithinLimit(t, "holding", func() error { area.Hold("y"); area.Drop("y"); area.Hold("x"); area.Drop("x"); return nil })
			storetest.WithinLimit(t, "opening another", func() error {
				q, err := area.Open("y", 2*staging.ChunkSize, staging.RawPieces(2*staging.ChunkSize), nil)
				if err != nil {
					return err
				}
				return q.Close()
			})
			if tc.op == "unlink" { // it is out of the way
				storetest.WithinLimit(t, "opening the same", func() error {
					q, err := area.Open("x", 10, staging.RawPieces(10), nil)
					if err != nil {
						return err
					}
					return q.Close()
				})
			}
			disk.Release()
			if err := <-done; err != nil {
				t.Error(err)
			}
			left, err := filepath.Glob(filepath.Join(disk.Dir, staging.Top, ".*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// TestUsage checks that the disk usage is right, and that directories are read again only after a use.
func TestUsage(t *testing.T) {
	disk := storetest.NewSlowDisk(t)
	root, err := dirs.Open(disk.Dir, staging.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	area, err := staging.New(root)
	if err != nil {
		t.Fatal(err)
	}
	const size = 3 * staging.ChunkSize
	open := func(area *staging.Area, name string) *staging.Partial {
		t.Helper()
		p, err := area.Open(name, size, staging.RawPieces(size), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	write := func(area *staging.Area, name string, chunk int) {
		t.Helper()
		p := open(area, name)
		if err := errors.Join(p.Write(chunk, make([]byte, staging.ChunkSize)), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		write(area, fmt.Sprint("other", i), 0)
	}
	var read sync.Map
	disk.Slow(func(op, path string) bool {
		if op == "readdir" {
			read.Store(path, true)
		}
		return false
	})
	check := func(area *staging.Area, reads int) {
		t.Helper()
		want := allocated(t, filepath.Join(disk.Dir, staging.Top))
		read.Clear()
		if got, err := area.Usage(); got != want || err != nil {
			t.Errorf("usage %d, %v; want %d", got, err, want)
		}
		n := 0
		for range read.Range {
			n++
		}
		if n != reads {
			t.Errorf("%d directories were read, want %d", n, reads)
		}
	}
	check(area, 20)
	check(area, 0)
	write(area, "other3", 1)
	check(area, 1)
	check(area, 0)
	p := open(area, "other4")
	for i := range 2 { // it is in use
		if err := p.Write(1+i, make([]byte, staging.ChunkSize)); err != nil {
			t.Fatal(err)
		}
		check(area, 1)
	}
	if err := errors.Join(p.Close(), area.Remove("other5")); err != nil {
		t.Fatal(err)
	}
	check(area, 1)
	check(area, 0)
	again, err := staging.New(root)
	if err != nil {
		t.Fatal(err)
	}
	check(again, 19)
	check(again, 0)
}

// TestUsageTwice checks that directories that two calls read at the same time count once.
func TestUsageTwice(t *testing.T) {
	disk := storetest.NewSlowDisk(t)
	disk.Slow(func(string, string) bool { return false })
	root, err := dirs.Open(disk.Dir, staging.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	area, err := staging.New(root)
	if err != nil {
		t.Fatal(err)
	}
	p, err := area.Open("x", 2*staging.ChunkSize, staging.RawPieces(2*staging.ChunkSize), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Write(0, make([]byte, staging.ChunkSize)), p.Close()); err != nil {
		t.Fatal(err)
	}
	disk.Slow(func(op, _ string) bool { return op == "readdir" })
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if _, err := area.Usage(); err != nil {
				t.Error(err)
			}
		})
	}
	for range 2 {
		<-disk.Syncing
	}
	disk.Release()
	calls.Wait()
	want := allocated(t, filepath.Join(disk.Dir, staging.Top))
	if got, err := area.Usage(); got != want || err != nil {
		t.Errorf("usage %d, %v; want %d", got, err, want)
	}
}

// allocated returns the disk usage of the files below a directory, in bytes.
func allocated(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && !e.IsDir() {
			err = unix.Lstat(path, &st)
			n += st.Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
