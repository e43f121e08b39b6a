package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// stuck is the time after which something that takes milliseconds is stuck, even on a busy machine. It
// is shorter than the minute after which the scheduler takes buffers from slow sources.
const stuck = 50 * time.Second

// patience limits waits for what must happen, however busy the machine is.
const patience = 5 * time.Minute

// ends waits for the end of something.
func ends(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(stuck):
		t.Fatalf("%s: stuck", what)
		return nil
	}
}

// later runs f in a goroutine.
func later(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// readOne reads the byte at off, and compares it.
func readOne(s *store.Store, p []byte, off int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	var one [1]byte
	if _, err := s.Views.View("").ReadAt(context.Background(), digest.FromBytes(p), one[:], int64(off)); err != nil {
		return err
	}
	if one[0] != p[off] {
		return fmt.Errorf("wrong byte at %d", off)
	}
	return nil
}

// exposed stores a table, adds a reference to it and exposes it.
func exposed(t *testing.T, s *store.Store, b *storetest.Builder, o store.ExposeOptions) digest.Digest {
	t.Helper()
	table := b.Put(t, s)
	if err := s.AddRef("snapshot/"+table.Encoded(), table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Expose(t.Context(), table, o); err != nil {
		t.Fatal(err)
	}
	return table
}

// twice returns a table with the same content from two sources: a blob without chunks, and chunks of
// another blob.
func twice(t *testing.T, p []byte) (*storetest.Builder, *storetest.Fetcher) {
	t.Helper()
	c := (&storetest.Compressed{Codec: filetable.CodecZstd, Size: 1 << 20}).Add("b", p)
	b := storetest.NewBuilder("twice").Raw("a", p, 0o644).Compressed(t, c)
	return b, storetest.NewFetcher(p, c.Blob)
}

// A table may have one content twice, once without chunks. Reading it must not panic, because the
// daemon would end, and again at the next read.
func TestReadContentTwice(t *testing.T) {
	p := storetest.Random(60, 3<<20)
	b, f := twice(t, p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	exposed(t, s, b, store.ExposeOptions{Sources: storetest.From(f)})
	if err := ends(t, "read", later(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return readWithin(ctx, s, p)
	})); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func readWithin(ctx context.Context, s *store.Store, p []byte) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	var one [1]byte
	_, err = s.Views.View("").ReadAt(ctx, digest.FromBytes(p), one[:], int64(len(p)-1))
	return err
}

// The process dies when the file has its final name and its marks still exist. If the object was
// collected and the model is pulled again, the marks must not count for bytes that are gone.
func TestMarksWithoutData(t *testing.T) {
	p := storetest.Random(61, 9<<20)
	d := digest.FromBytes(p)
	dir := t.TempDir()
	f := storetest.NewFetcher(p)
	o := store.ExposeOptions{Sources: storetest.From(f)}
	b := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk)
	s, err := store.Open(dir, store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	exposed(t, s, b, o)
	for off := 0; off < len(p); off += 1 << 20 {
		if err := readOne(s, p, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The steps of publish, up to the kill.
	staged, err := filepath.Glob(filepath.Join(dir, "partial", "*", "data"))
	if err != nil || len(staged) != 1 {
		t.Fatalf("staged: %v, %v", staged, err)
	}
	object := filepath.Join(dir, "objects", store.ObjectName(d))
	if err := os.MkdirAll(filepath.Dir(object), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(staged[0], object); err != nil {
		t.Fatal(err)
	}

	s = compareFiles(t, storetest.Open(t, dir, store.Options{}))
	table := b.Put(t, s)
	if err := s.RemoveRef("snapshot/" + table.Encoded()); err != nil {
		t.Fatal(err)
	}
	if r, err := s.GC(t.Context(), store.GCOptions{}); err != nil || r.Objects == 0 {
		t.Fatalf("collected %+v, %v", r, err)
	}
	exposed(t, s, b, o)
	if err := readOne(s, p, 5<<20); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources}); err != nil {
		t.Errorf("hydrate: %v", err)
	}
}

// A reader with good sources neither waits for a job with bad sources nor gets its error, for example a
// job that was resumed after a restart, before the sources were known.
func TestReadBesideFailingJob(t *testing.T) {
	p := storetest.Random(62, 3<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	asked, joined := make(chan struct{}), make(chan struct{})
	worse := fetcherFunc(func(ctx context.Context) error {
		close(asked)
		<-joined
		return errdefs.ErrNotFound
	})
	good := storetest.NewFetcher(p)
	table := exposed(t, s, storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: storetest.From(good)})
	job := later(func() error {
		sources := storetest.FromRepository("other/model", worse, storetest.NewFetcher())
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources, Background: true})
	})
	<-asked
	if err := ends(t, "read", later(func() error { return readOne(s, p, 1<<20) })); err != nil {
		t.Errorf("read: %v", err)
	}
	close(joined)
	if err := ends(t, "job", job); !errdefs.IsNotFound(err) {
		t.Errorf("job: %v", err)
	}
}

// fetcherFunc is a Fetcher that only fails.
type fetcherFunc func(context.Context) error

func (f fetcherFunc) Fetch(ctx context.Context, _ digest.Digest, _, _, _ int64) (io.ReadCloser, int64, error) {
	return nil, 0, f(ctx)
}

// A file becomes complete in another way while a reader's chunk is in transfer.
func TestReadWhileCompletedOtherwise(t *testing.T) {
	p := storetest.Random(63, 6<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	slow, asked, goOn := storetest.NewFetcher(p), make(chan struct{}), make(chan struct{})
	slow.Delay = func(context.Context) { close(asked); <-goOn }
	exposed(t, s, storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: storetest.From(slow)})
	read := later(func() error { return readOne(s, p, 5<<20) })
	<-asked
	if _, err := s.PutBytes(p); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := ends(t, "read", read); err != nil {
		t.Errorf("read: %v", err)
	}
}

// Reading a complete file fetches nothing, also while its table is hydrated.
func TestReadCompleteWhileHydrating(t *testing.T) {
	done, missing := storetest.Random(64, 5<<20), storetest.Random(65, 6<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(done, missing)
	first := storetest.NewBuilder("x").RawChunks("w", done, 0o644, filetable.MaxChunk).Put(t, s)
	if err := s.AddRef("pin/x", first, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Hydrate(t.Context(), first, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	sent := f.Sent(digest.FromBytes(done))
	held, asked, goOn := storetest.NewFetcher(done, missing), make(chan struct{}, 10), make(chan struct{})
	held.Delay = func(context.Context) { asked <- struct{}{}; <-goOn }
	second := storetest.NewBuilder("y").RawChunks("w", done, 0o644, filetable.MaxChunk).RawChunks("x", missing, 0o644, filetable.MaxChunk).Put(t, s)
	job := later(func() error {
		return s.Hydrate(t.Context(), second, store.HydrateOptions{Sources: storetest.From(held)})
	})
	<-asked
	if err := readOne(s, done, 1<<20); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(s.Dir(), "partial", "*")); err != nil || len(left) != 1 {
		t.Errorf("a read of a complete file staged it: %d partials, want 1 (%v)", len(left), err)
	}
	close(goOn)
	if err := ends(t, "job", job); err != nil {
		t.Fatal(err)
	}
	if n := f.Sent(digest.FromBytes(done)); n != sent {
		t.Errorf("%d bytes were fetched again", n-sent)
	}
}

// openFiles returns the number of open files of the process below dir.
func openFiles(t *testing.T, dir string) (files, dirs int) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err != nil || len(to) <= len(dir) || to[:len(dir)] != dir {
			continue
		}
		if info, err := os.Stat(l); err == nil && info.IsDir() { // some stay open
			dirs++
		} else {
			files++
		}
	}
	return files, dirs
}

// Reads of many files do not keep all of them open, and a closed store keeps none.
func TestOpenFilesAreBounded(t *testing.T) {
	const files = 300
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("many")
	f := storetest.NewFetcher()
	var all [][]byte
	for i := range files {
		p := storetest.Random(uint64(1000+i), 5000)
		all = append(all, p)
		f.Blobs[digest.FromBytes(p)] = p
		b.RawChunks(fmt.Sprintf("f%03d", i), p, 0o644, 1000)
	}
	exposed(t, s, b, store.ExposeOptions{Sources: storetest.From(f)})
	for _, p := range all {
		if err := readOne(s, p, 10); err != nil {
			t.Fatal(err)
		}
	}
	if n, _ := openFiles(t, s.Dir()); n > files {
		t.Errorf("%d files are open after a read of each of %d", n, files)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, dirs := openFiles(t, s.Dir()); n+dirs > 0 {
		t.Errorf("%d files and %d directories are open after Close", n, dirs)
	}
}

// A read that continues while the last reference is removed closes its files.
func TestWithdrawClosesFiles(t *testing.T) {
	p := storetest.Random(66, 9<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	before, _ := openFiles(t, s.Dir())
	f, asked, goOn := storetest.NewFetcher(p), make(chan struct{}, 10), make(chan struct{})
	f.Delay = func(context.Context) { asked <- struct{}{}; <-goOn }
	table := exposed(t, s, storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: storetest.From(f)})
	read := later(func() error { // of two chunks
		_, err := s.Views.View("").ReadAt(t.Context(), digest.FromBytes(p), make([]byte, 8<<20), 0)
		return err
	})
	<-asked
	if err := s.RemoveRef("snapshot/" + table.Encoded()); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	_ = ends(t, "read", read) // both are right: the bytes, or an error because the file is gone
	waitFor(t, "its files are closed", func() bool {
		n, _ := openFiles(t, s.Dir())
		return n <= before
	})
}

// Chunks without a codec may be in any order in their blob, and the first ones may be zeros.
func TestPlainChunksAfterZeros(t *testing.T) {
	const kib = 1 << 10
	p := append(make([]byte, 64*kib), storetest.Random(67, 128*kib)...)
	a, b := p[64*kib:128*kib], p[128*kib:]
	blob := append(append(bytes.Clone(a), storetest.Random(68, 64*kib)...), b...) // a gap of 64 KiB
	tb := storetest.NewBuilder("x")
	tb.Table().Blobs = []filetable.Blob{{Digest: digest.FromBytes(blob), Size: int64(len(blob)), Archive: filetable.ArchiveChunks}}
	tb.File(filetable.File{Path: "w", Type: filetable.TypeReg, Mode: 0o644, Size: int64(len(p)), Digest: digest.FromBytes(p),
		Source: &filetable.Source{Blob: digest.FromBytes(blob), Chunks: []filetable.Chunk{
			{Size: 64 * kib},
			{Offset: 64 * kib, Size: 64 * kib, Digest: digest.FromBytes(a), Len: 64 * kib},
			{Offset: 128 * kib, Size: 64 * kib, Digest: digest.FromBytes(b), At: 128 * kib, Len: 64 * kib},
		}}})
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := tb.Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blob))}); err != nil {
		t.Error(err)
	}
}

// A raised rate takes effect at once, also for work that waits because of the old rate.
func TestRateIsRaised(t *testing.T) {
	p := storetest.Random(69, 3<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p)
	table := exposed(t, s, storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: storetest.From(f)})
	s.SetRate(100)
	job := later(func() error {
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f), Background: true})
	})
	waitFor(t, "the fetch begins", func() bool { return f.Sent(digest.FromBytes(p)) > 0 })
	s.SetRate(0)
	if err := ends(t, "job", job); err != nil {
		t.Error(err)
	}
}

// A registry that does not answer must not block readers of models from other registries.
func TestReadBesideDeadRegistry(t *testing.T) {
	dead, alive := storetest.Random(70, 80<<20), storetest.Random(71, 3<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	hung := storetest.NewFetcher(dead)
	hung.Allow = func(int64, int64) bool { return false }
	exposed(t, s, storetest.NewBuilder("x").RawChunks("w", dead, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: storetest.From(hung)})
	exposed(t, s, storetest.NewBuilder("y").RawChunks("w", alive, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: storetest.From(storetest.NewFetcher(alive))})
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i := range 16 {
		waiting.Go(func() {
			_, _ = s.Views.View("").ReadAt(ctx, digest.FromBytes(dead), make([]byte, 1), int64(i)*(4<<20))
		})
	}
	waitFor(t, "the fetch begins", func() bool { return hung.Calls(digest.FromBytes(dead)) >= 8 })
	if err := ends(t, "read of another model", later(func() error { return readOne(s, alive, 1<<20) })); err != nil {
		t.Error(err)
	}
}

// Removing a reference does not withdraw files that a reference made meanwhile needs.
func TestExposeWhileOthersGo(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher()
	var ended atomic.Bool
	var removed atomic.Int64
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() {
			for !ended.Load() {
				if err := s.RemoveRef("snapshot/none"); err != nil {
					t.Error(err)
				}
				removed.Add(1)
			}
		})
	}
	lost := 0
	for i := range 60 {
		p := storetest.Random(uint64(5000+i), 100)
		table := exposed(t, s, storetest.NewBuilder(fmt.Sprint(i)).RawChunks("w", p, 0o644, 50), store.ExposeOptions{Sources: storetest.From(f)})
		before := removed.Load()
		waitFor(t, "others go", func() bool { return removed.Load() > before+4 })
		if !isExposed(s, table) {
			lost++
		}
	}
	ended.Store(true)
	g.Wait()
	if lost > 0 {
		t.Errorf("%d tables with a reference are not exposed any more", lost)
	}
}

// isExposed reports whether incomplete files of a table can be read.
func isExposed(s *store.Store, table digest.Digest) bool { return len(s.Views.Early(table)) > 0 }
