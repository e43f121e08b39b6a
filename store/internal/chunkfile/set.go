package chunkfile

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

	noShare atomic.Bool  // the file system can not share blocks between files
	loading atomic.Int64 // when a reader last got on, or had to wait for bytes, in ns since 1970

	resting sync.Mutex // guards idle; nothing else is locked while it is held
	idle    []*File    // of few groups, open, and not read now; the one that was read last is the last

	mu     sync.Mutex // guards what follows; before File.mu
	closed bool
	work   sync.WaitGroup
	files  map[string]*File // by directory
}

// There can be very many files of at most fewGroups groups, so no more than maxIdle of them stay open when nobody
// reads them. To open one anew for each read takes longer than to read a page.
const (
	fewGroups = 8
	maxIdle   = 128
)

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

// loads says that a reader gets on, or waits for bytes.
func (s *Set) loads() { s.loading.Store(time.Now().UnixNano()) }

// rest takes note of a file that is open and not read now, and closes the one that has rested longest if there
// are more than maxIdle.
func (s *Set) rest(f *File) {
	s.resting.Lock()
	s.idle = append(slices.DeleteFunc(s.idle, func(o *File) bool { return o == f }), f)
	var old *File
	if len(s.idle) > maxIdle {
		old = s.idle[0]
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	s.resting.Unlock()
	if old != nil {
		old.sleep()
	}
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
