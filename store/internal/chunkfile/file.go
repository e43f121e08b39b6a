package chunkfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ErrMoved means that a file has become an object.
var ErrMoved = errors.New("the file has become an object")

// ErrGone means that a file has no users any more.
var ErrGone = fmt.Errorf("no longer referenced: %w", errdefs.ErrNotFound)

// A File is a file that is fetched by chunks.
type File struct {
	set    *Set
	dir    string
	Digest digest.Digest
	Size   int64 // bytes
	Path   string
	Layout *Layout

	// Sources are those of all its users.
	Sources transfer.Sources

	moved chan struct{} // closed when it is an object

	// The following fields are guarded by Set.mu.
	users   int // number of users
	working int // running calls and reads
	ctx     context.Context
	cancel  context.CancelCauseFunc

	opening sync.Mutex // held while the stage is opened; locked before mu

	mu         sync.Mutex // guards the following
	stage      *stage     // nil: not open
	dropped    bool       // the set no longer has it, so nobody would close a new stage
	verified   []bool     // staged groups that this process has verified
	calls      map[int]*call
	generation *generation  // the current one
	reading    map[int]bool // groups about to be read ahead
	streams    streams

	sequence atomic.Pointer[Sequence] // that has groups of it; nil: none
}

// A generation is the time during which a file has users. Calls of an earlier one no longer stage bytes,
// because staging may have started again.
type generation struct {
	before *generation
	writes sync.WaitGroup // writes to the stage
}

// newGeneration starts a generation.
func (f *File) newGeneration() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation = &generation{before: f.generation}
}

// beginWrite records that a call is about to stage bytes, until done. It returns ErrGone for a call of
// an earlier generation.
func (f *File) beginWrite(c *call) (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.generation != f.generation {
		return nil, ErrGone
	}
	c.generation.writes.Add(1)
	return c.generation.writes.Done, nil
}

// A call is a group being fetched, shared by all that need it.
type call struct {
	generation *generation
	flow       *transfer.Flow
	done       chan struct{} // closed at the end
	err        error         // valid after done is closed
}

// Moved reports whether the file has become an object.
func (f *File) Moved() bool {
	select {
	case <-f.moved:
		return true
	default:
		return false
	}
}

// Move records that the file has become an object, and removes the staged bytes.
func (f *File) Move() error {
	f.mu.Lock()
	if !f.Moved() {
		close(f.moved)
	}
	f.mu.Unlock()
	f.retire()
	return f.set.Area.Remove(f.dir)
}

// Present returns the number of present bytes, 0 if the file is not open.
func (f *File) Present() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Moved() {
		return f.Size
	}
	if f.stage == nil {
		return 0
	}
	return f.stage.p.Present()
}

// Staged returns the path of the staged file, below the root of the store.
func (f *File) Staged() string { return staging.DataPath(f.dir, f.Layout.Grid()) }

// Sync makes the staged bytes durable.
func (f *File) Sync() error {
	st, err := f.open()
	if err != nil {
		return err
	}
	defer f.done(st)
	return st.p.Sync("data")
}

// claim returns the call of group g, and whether the caller must execute it, as a part of flow; nil
// if the group is present.
func (f *File) claim(st *stage, g int, flow *transfer.Flow) (c *call, mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hasLocked(st, g) {
		return nil, false
	}
	if c := f.calls[g]; c != nil && c.generation == f.generation {
		return c, false
	}
	c = &call{generation: f.generation, flow: flow, done: make(chan struct{})}
	f.calls[g] = c
	return c, true
}

// hasLocked reports whether group g is staged and, if it can be verified by itself, was verified by this process, or before
// it was staged in this boot: readers get it before the digest of the file is compared. The caller holds mu.
func (f *File) hasLocked(st *stage, g int) bool {
	return st.p.Has(g) && (f.Layout.Unverified || f.verified != nil && f.verified[g] || st.p.Synced(g))
}

// markVerified records that group g is staged and verified.
func (f *File) markVerified(g int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.verified == nil {
		f.verified = make([]bool, f.Layout.Groups())
	}
	f.verified[g] = true
}

// has is hasLocked without holding mu.
func (f *File) has(st *stage, g int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hasLocked(st, g)
}

// checkPresent returns errdefs.ErrUnavailable unless group g is still present: staged bytes may have been
// dropped.
func (f *File) checkPresent(st *stage, g int) error {
	if f.has(st, g) {
		return nil
	}
	return fmt.Errorf("group %d of %d: %w", g, st.p.Chunks(), errdefs.ErrUnavailable)
}

// endCall ends a call.
func (f *File) endCall(c *call, g int, err error) {
	f.mu.Lock()
	if f.calls[g] == c {
		delete(f.calls, g)
	}
	f.mu.Unlock()
	c.err = err
	close(c.done)
}

// Promote raises the class of all running transfers to c.
func (f *File) Promote(c transfer.Class) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, call := range f.calls {
		call.flow.Promote(c)
	}
}

// Await fetches the groups of the n bytes of the file from off on, limited to its end, and waits
// until they are present. It returns an open file with these bytes at the same offset; other bytes
// of it may be unverified. The caller calls done after reading. The errors are io.EOF if there are
// no bytes, ErrMoved for a file that is an object, transfer.ErrNoRanges if the file can be fetched
// only as a whole, and errdefs.ErrNotFound if the file has no users.
func (f *File) Await(ctx context.Context, off int64, n int) (_ *os.File, done func(), err error) {
	n = int(min(int64(n), f.Size-off))
	if off < 0 || n <= 0 {
		return nil, nil, io.EOF
	}
	st, err := f.open()
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			f.done(st)
		}
	}()
	first, last := f.Layout.Find(off), f.Layout.Find(off+int64(n)-1)
	f.recordRead(st, first, last)
	for g := first; g <= last; g++ {
		if err := f.ensure(ctx, st, g); err != nil {
			return nil, nil, err
		}
		if err := f.checkPresent(st, g); err != nil {
			return nil, nil, err
		}
	}
	return st.data, func() { f.done(st) }, nil
}

// ensure makes group g present for a reader. The work continues when ctx ends: the next reader needs
// it, or the same one, which repeats an interrupted read.
func (f *File) ensure(ctx context.Context, st *stage, g int) error {
	for try := 0; ; try++ {
		c, mine := f.claim(st, g, f.set.Scheduler.NewFlow(transfer.Urgent))
		if c == nil {
			return nil
		}
		if mine && !f.spawn(func(ctx context.Context) {
			err := f.withBuffer(ctx, c.flow, func(sl *transfer.Slot) error { return f.fetchGroup(st, sl, g, c, f.transfer(c.flow).Get) })
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			f.endCall(c, g, err)
		}, st) {
			f.endCall(c, g, ErrGone)
		}
		c.flow.Promote(transfer.Urgent)
		f.set.readerActive()
		select {
		case <-c.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		// A call of another reader may have failed for a reason that does not apply here.
		if c.err != nil && (mine || try > 0) && !errors.Is(c.err, transfer.ErrRevoked) {
			return c.err
		}
	}
}

// spawn runs work on the file in a goroutine, with a use of the stage, unless the file has no
// users.
func (f *File) spawn(work func(context.Context), st *stage) bool {
	ctx, ok := f.set.begin(f)
	if !ok {
		return false
	}
	f.mu.Lock()
	st.users++
	f.mu.Unlock()
	go func() {
		defer f.set.end(f)
		defer f.done(st)
		work(ctx)
	}()
	return true
}

// withBuffer calls do with a buffer, and again if the buffer is revoked.
func (f *File) withBuffer(ctx context.Context, flow *transfer.Flow, do func(*transfer.Slot) error) error {
	return f.set.Scheduler.Buffers.With(ctx, flow, f.Sources.Payer, do)
}

// Fill fetches all of the file and verifies it. Others may fetch parts of it concurrently. Unless
// its chunks are verified as parts of it (Layout.Stated), the file is hashed in order, which can
// return a *verify.Error: while bytes arrive or, if readers wait and flow is in the background,
// afterwards, but not after limit. If the server does not support ranges it starts again, see
// transfer.Fetch.All.
func (f *File) Fill(ctx context.Context, flow *transfer.Flow, limit *Patience, anew func()) error {
	st, err := f.open()
	if err != nil {
		return err
	}
	defer f.done(st)
	w := newWhole(f, st, flow, limit)
	var use func(int, *transfer.Slot) error
	if !f.Layout.Stated {
		use = func(g int, sl *transfer.Slot) error { return w.use(g, sl) }
	}
	err = f.transfer(flow).All(ctx, st.p.Chunks(), func(g int, sl *transfer.Slot, get transfer.Get) error {
		return f.fill(st, sl, g, get, w)
	}, use, func() {
		w = newWhole(f, st, flow, limit)
		anew()
	})
	if err != nil {
		return err
	}
	return w.finish(ctx)
}

// fill loads group g into a buffer: from disk if w needs it, or with fetchGroup unless another call is
// fetching it.
func (f *File) fill(st *stage, sl *transfer.Slot, g int, get transfer.Get, w *whole) error {
	for try := 0; ; try++ {
		c, mine := f.claim(st, g, sl.Flow())
		switch {
		case c == nil && w.hashesLater():
			return nil
		case c == nil:
			off, n := st.p.Chunk(g)
			_, err := st.data.ReadAt(sl.Buf[:n], off)
			return err
		case mine:
			err := f.fetchGroup(st, sl, g, c, get)
			f.endCall(c, g, err)
			return err
		}
		select {
		case <-c.done:
		case <-sl.Context.Done():
			return context.Cause(sl.Context)
		}
		// A reader's lack of ranges does not affect a sequential fetch.
		if c.err != nil && try > 0 && !errors.Is(c.err, transfer.ErrRevoked) && !errors.Is(c.err, transfer.ErrNoRanges) {
			return c.err
		}
	}
}

// fetchGroup fetches group g into a buffer and stages it.
func (f *File) fetchGroup(st *stage, sl *transfer.Slot, g int, c *call, get transfer.Get) error {
	off, n := st.p.Chunk(g)
	if st.p.Has(g) { // by an earlier process, but maybe not on the disk
		if _, err := st.data.ReadAt(sl.Buf[:n], off); err == nil && f.Layout.right(g, sl.Buf[:n]) {
			f.markVerified(g)
			return nil
		}
	}
	if err := f.set.Finder.Room(n); err != nil {
		return err
	}
	found, err := f.fetch(sl, g, sl.Buf[:n], get)
	if err != nil {
		return err
	}
	done, err := f.beginWrite(c)
	if err != nil {
		return err
	}
	defer done()
	defer sl.Flow().Enter(transfer.Disk)()
	if err := f.put(st, g, sl.Buf[:n], found); err != nil {
		return err
	}
	f.markVerified(g)
	return nil
}

// Put stages and verifies a file of one group from raw, the bytes of its Span. buf is memory for
// its content.
func (f *File) Put(raw, buf []byte) error {
	st, err := f.open()
	if err != nil {
		return err
	}
	defer f.done(st)
	buf = buf[:f.Size]
	staged := f.has(st, 0)
	switch {
	case staged && f.Layout.Stated:
		return nil
	case staged:
		_, err = st.data.ReadAt(buf, 0)
	default:
		if err = f.Layout.decode(buf, raw, f.Layout.Chunks); err == nil {
			err = f.put(st, 0, buf, make([]filetable.Location, len(f.Layout.Chunks)))
		}
	}
	if err != nil {
		return err
	}
	f.markVerified(0)
	if f.Layout.Stated {
		return nil
	}
	return verify.Bytes(f.Digest, buf)
}

// isZero reports whether all chunks are zeros, which need not be written.
func isZero(chunks []filetable.Chunk) bool {
	_, n := span(chunks)
	return n == 0
}
