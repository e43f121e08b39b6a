package chunkfile

import (
	"context"
	"log/slog"
	"maps"
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

// A Finder finds chunks in objects.
type Finder interface {
	// Find fills buf with those of the consecutive chunks that an object has and that are right,
	// and returns their locations, without an object for the others. from are the sources of the
	// request; objects that these may not have are not used.
	Find(chunks []filetable.Chunk, buf []byte, from *transfer.Sources, right func(c filetable.Chunk, p []byte) error) []filetable.Location

	// Open opens an object found by Find.
	Open(d digest.Digest) (*os.File, error)

	// Wrong is called before staged bytes of a file are replaced that are not right any more. They may have been read.
	Wrong(f *File) error

	// Room returns an error if n more bytes do not fit on the disk.
	Room(n int64) error
}

// Counts are counters since a Set was made.
type Counts struct {
	Received atomic.Int64 // bytes from outside, for readers
	Copied   atomic.Int64 // bytes of chunks copied from objects
	Corrupt  atomic.Int64 // wrong chunks
}

// A Set has the files that are fetched by chunks. Its methods are safe for concurrent use.
type Set struct {
	Scheduler *transfer.Scheduler
	Area      *staging.Area
	Finder    Finder
	Chains    bool // of files without digests are kept
	Log       *slog.Logger
	Counts    Counts

	noShare    atomic.Bool               // the file system cannot share blocks between files
	lastActive atomic.Pointer[time.Time] // when a reader last progressed or had to wait; nil: never

	asideMu sync.Mutex // held by aside
	buffers sync.Pool  // of aside

	idleMu sync.Mutex // guards idle; the last lock
	idle   []*File    // open files of few groups without a current read, least recently read first

	mu     sync.Mutex // guards the following; locked before File.mu
	closed bool
	work   sync.WaitGroup
	files  map[string]*File // by directory
}

// There can be very many files of at most fewGroups groups, so at most maxIdle of them stay open
// without a current read. Opening a file for each read would take longer than reading a page.
const (
	fewGroups = 8
	maxIdle   = 128
)

// Acquire returns the file with digest d and a layout, with one more user. path is one of its
// paths, for messages.
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
		f.newGeneration()
		f.ctx, f.cancel = context.WithCancelCause(context.Background())
		if s.closed {
			f.cancel(nil)
		}
	}
	return f
}

// Release ends a use of a file. The last one cancels its transfers.
func (s *Set) Release(f *File) {
	s.mu.Lock()
	if f.users--; f.users == 0 {
		f.cancel(ErrGone)
	}
	s.unlock(f)
}

// unlock unlocks mu, and drops a file without users and work.
func (s *Set) unlock(f *File) {
	unused := f.users == 0 && f.working == 0 && s.files[f.dir] == f
	if unused {
		delete(s.files, f.dir)
		s.Area.Drop(f.dir)
	}
	s.mu.Unlock()
	if unused {
		f.drop()
	}
}

// readerActive records that a reader progresses or waits for bytes.
func (s *Set) readerActive() {
	now := time.Now()
	s.lastActive.Store(&now)
}

// addIdle records an open file without a current read, and closes the least recently read one if there
// are more than maxIdle.
func (s *Set) addIdle(f *File) {
	s.idleMu.Lock()
	s.idle = append(slices.DeleteFunc(s.idle, func(o *File) bool { return o == f }), f)
	var old *File
	if len(s.idle) > maxIdle {
		old = s.idle[0]
		s.idle = slices.Delete(s.idle, 0, 1)
	}
	s.idleMu.Unlock()
	if old != nil {
		old.closeIdle()
	}
}

// aside calls do with memory for a group: one processor does, beside the work that has the buffers of the Scheduler.
func (s *Set) aside(do func(buf []byte) error) error {
	s.asideMu.Lock()
	defer s.asideMu.Unlock()
	buf, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buf = new(make([]byte, staging.ChunkSize))
	}
	defer s.buffers.Put(buf)
	return do(*buf)
}

// begin records work on a file, until end. It returns the context of the work; ok is false after
// Close.
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
	s.unlock(f)
	s.work.Done()
}

// Close cancels all work, waits for its end, and closes the files, which can still have users.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	files := slices.Collect(maps.Values(s.files))
	for _, f := range files {
		f.cancel(nil)
	}
	s.mu.Unlock()
	s.work.Wait()
	for _, f := range files {
		f.drop()
	}
}
