package chunkfile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// memory is a transfer.Fetcher of one blob.
type memory struct {
	blob  []byte
	whole bool // does not support ranges

	mu    sync.Mutex
	asked map[int64]int // number of requests, by offset
	order []int64       // offsets of all requests
}

func (m *memory) Fetch(_ context.Context, _ digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole {
		off, n = 0, int64(len(m.blob))
	}
	m.asked[off]++
	m.order = append(m.order, off)
	return io.NopCloser(bytes.NewReader(m.blob[off : off+n])), off, nil
}

// noObjects is the Finder of a store without objects.
type noObjects struct{}

func (noObjects) Find(chunks []filetable.Chunk, _ []byte, _ *transfer.Sources, _ func(filetable.Chunk, []byte) error) []filetable.Location {
	return make([]filetable.Location, len(chunks))
}
func (noObjects) Open(digest.Digest) (*os.File, error) { return nil, errdefs.ErrNotFound }
func (noObjects) Wrong(*File) error                    { return nil }
func (noObjects) Room(int64) error                     { return nil }

// newFile returns a file of the given number of groups, each one chunk of size bytes, with a user.
func newFile(t *testing.T, groups, size int) (*Set, *File, *memory) {
	t.Helper()
	file, m := newBlob(groups, size)
	s := newSet(t, t.TempDir())
	return s, acquire(s, file, m), m
}

// newBlob returns the file of newFile and its blob.
func newBlob(groups, size int) (filetable.File, *memory) {
	const apart = 2 * MaxGap // between two chunks in the blob
	m := &memory{blob: make([]byte, groups*apart), asked: map[int64]int{}}
	file := filetable.File{Size: int64(groups * size), Source: &filetable.Source{}}
	var all []byte
	for i := range groups {
		p := m.blob[i*apart:][:size]
		copy(p, bytes.Repeat([]byte{byte(i), 1}, size/2))
		all = append(all, p...)
		file.Source.Chunks = append(file.Source.Chunks, filetable.Chunk{
			Offset: int64(i * size), Size: int64(size), Digest: digest.FromBytes(p), At: int64(i * apart), Len: int64(size),
		})
	}
	file.Digest = digest.FromBytes(all)
	return file, m
}

// newSet returns a Set below a directory, which another one may have used.
func newSet(t *testing.T, dir string) *Set {
	t.Helper()
	root, err := dirs.Open(dir, staging.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	area, err := staging.New(root)
	if err != nil {
		t.Fatal(err)
	}
	s := &Set{
		Scheduler: transfer.NewScheduler(transfer.Options{Connections: 1, Chunk: filetable.MaxChunkLen, Readers: 2, Unpackers: 1}),
		Area:      area, Finder: noObjects{}, Log: slog.New(slog.DiscardHandler),
	}
	t.Cleanup(s.Close)
	return s
}

// acquire acquires a file of newBlob.
func acquire(s *Set, file filetable.File, m *memory) *File {
	blob := filetable.Blob{Digest: digest.FromBytes(m.blob), Size: int64(len(m.blob)), Archive: filetable.ArchiveChunks}
	f := s.Acquire(file.Digest, file.Size, "f", NewLayout(file, blob, "group"))
	f.Sources.Set("test", []transfer.Source{{Name: "host/repository", Fetcher: m}})
	return f
}

// readAt waits for bytes and reads them.
func readAt(ctx context.Context, f *File, b []byte, off int64) (int, error) {
	data, done, err := f.Await(ctx, off, len(b))
	if err != nil {
		return 0, err
	}
	n, err := data.ReadAt(b, off)
	done(err)
	return n, err
}

// TestAheadOnce checks that a group that is about to be read ahead, and waits for a buffer, is not read
// ahead again by the next read.
func TestAheadOnce(t *testing.T) { synctest.Test(t, testAheadOnce) }

func testAheadOnce(t *testing.T) {
	const size = 1000
	s, f, m := newFile(t, 32, size)
	var busy []*transfer.Slot // all buffers but those of readers
	for {
		sl := s.Scheduler.Buffers.Try(t.Context(), s.Scheduler.NewFlow(transfer.Soon), "other")
		if sl == nil {
			break
		}
		busy = append(busy, sl)
	}
	b := make([]byte, size)
	read := func(g int) error { _, err := readAt(t.Context(), f, b, int64(g*size)); return err }
	for _, g := range []int{0, 1, 2, 3, 2, 3} {
		if err := read(g); err != nil {
			t.Fatal(err)
		}
	}
	at := func() (working, reading int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.working, len(f.reading)
	}
	// Groups 2 and 3, then up to 6, then up to 11. The calls that the reads made themselves end soon.
	synctest.Wait()
	if working, reading := at(); working != 10 || reading != 10 {
		t.Fatalf("%d are at work for %d groups, want 10 for 10", working, reading)
	}
	for _, sl := range busy {
		sl.Release()
	}
	s.work.Wait()
	if len(f.reading) != 0 || len(m.asked) != 12 {
		t.Errorf("%d groups are about to be read ahead, %d were asked for; want 0 and 12", len(f.reading), len(m.asked))
	}
	for off, n := range m.asked {
		if n != 1 {
			t.Errorf("bytes at %d were asked for %d times", off, n)
		}
	}
	s.Release(f)
	if err := read(4); !errdefs.IsNotFound(err) {
		t.Errorf("read of a file without users: %v", err)
	}
	if len(f.reading) != 0 {
		t.Errorf("%d groups are about to be read ahead of a file without users", len(f.reading))
	}
}

// TestReadersDoNotEndFill: readers of a file on a server without ranges get an error each time. The
// work that fetches the file sequentially meets their calls, and continues.
func TestReadersDoNotEndFill(t *testing.T) {
	const size, groups = 1000, 64
	s, f, m := newFile(t, groups, size)
	m.whole = true
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for i := range 8 {
		readers.Go(func() {
			b := make([]byte, size)
			for g := i; ctx.Err() == nil; g += 7 {
				if _, err := readAt(ctx, f, b, int64(g%groups*size)); err != nil && !errors.Is(err, transfer.ErrNoRanges) && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	_, err := f.Fill(t.Context(), s.Scheduler.NewFlow(transfer.Soon), &Patience{}, func() {})
	if n := f.Present(); err != nil || n != groups*size {
		t.Errorf("%d bytes of %d, %v", n, groups*size, err)
	}
	cancel()
	readers.Wait()
}
