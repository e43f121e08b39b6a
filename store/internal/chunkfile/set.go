package chunkfile

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// A Finder has chunks that objects have.
type Finder interface {
	// Find fills buf with those of the chunks, which follow each other in it, that an object has and
	// that are right, and says where: no object for the others. from are the sources of who asks; bytes that
	// these could not give are not found.
	Find(chunks []filetable.Chunk, buf []byte, from *transfer.Sources, right func(c filetable.Chunk, p []byte) error) []filetable.Location

	// Open opens an object that Find named.
	Open(d digest.Digest) (*os.File, error)

	// Room returns an error if n bytes more do not fit on the disk.
	Room(n int64) error
}

// Counts are what happened since a Set was made.
type Counts struct {
	Received atomic.Int64 // bytes from outside, for readers
	Copied   atomic.Int64 // bytes of chunks that an object had already
	Corrupt  atomic.Int64 // chunks that were wrong
}

// A Set has the files that are brought by their chunks. Its methods are safe for concurrent use.
type Set struct {
	Scheduler *transfer.Scheduler
	Area      *staging.Area
	Root      *os.Root // of the store
	Finder    Finder
	Log       *slog.Logger
	Counts    Counts

	noShare atomic.Bool // the file system can not share blocks between files

	mu     sync.Mutex // guards what follows; before File.mu
	closed bool
	work   sync.WaitGroup
	files  map[string]*File // by directory
}

// Acquire returns the file with digest d that comes as the layout says, with one more user. path is one
// of its paths, for messages.
func (s *Set) Acquire(d digest.Digest, size int64, path string, l *Layout) *File {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := l.Dir(d)
	f := s.files[dir]
	if f == nil {
		f = &File{set: s, Digest: d, Size: size, Path: path, Layout: l, dir: dir, moved: make(chan struct{}), calls: map[int]*call{}, reading: map[int]bool{}}
		if s.files == nil {
			s.files = map[string]*File{}
		}
		s.files[dir] = f
		s.Area.Hold(dir)
	}
	if f.users++; f.users == 1 {
		f.begin()
		f.ctx, f.cancel = context.WithCancel(context.Background())
		if s.closed {
			f.cancel()
		}
	}
	return f
}

// Release ends a use of a file. When nobody uses it, what is on its way for it ends.
func (s *Set) Release(f *File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.users--; f.users == 0 {
		f.cancel()
	}
	s.forget(f)
}

// forget drops a file that nobody uses and nothing works on. Who calls it holds mu.
func (s *Set) forget(f *File) {
	if f.users > 0 || f.working > 0 || s.files[f.dir] != f {
		return
	}
	delete(s.files, f.dir)
	s.Area.Drop(f.dir)
	f.retire()
}

// begin says that something works on a file, until end. It returns the context that the work ends
// with; work does not begin after Close.
func (s *Set) begin(f *File) (ctx context.Context, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || f.users == 0 {
		return nil, false
	}
	f.working++
	s.work.Add(1)
	return f.ctx, true
}

func (s *Set) end(f *File) {
	s.mu.Lock()
	f.working--
	s.forget(f)
	s.mu.Unlock()
	s.work.Done()
}

// Close ends all work, and waits for its end.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	for _, f := range s.files {
		f.cancel()
	}
	s.mu.Unlock()
	s.work.Wait()
}
