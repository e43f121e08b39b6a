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
	states     []state    // of the groups; nil: all unknown
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

// A state is what this process knows of a group, beside its mark.
type state byte

const (
	unknown  state = iota
	verified       // by this process, and staged
	suspect        // cannot be read, or is wrong: nobody gets it before it is verified or fetched again
)

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

// Sync makes the staged bytes durable. It returns errdefs.ErrUnavailable if some are missing, because an earlier sync
// failed.
func (f *File) Sync() error {
	st, err := f.open()
	if err != nil {
		return err
	}
	defer f.done(st)
	if err := st.p.Sync("data"); err != nil {
		return err
	}
	if n := st.p.Present(); n < f.Size {
		return fmt.Errorf("%d of %d bytes are staged: %w", n, f.Size, errdefs.ErrUnavailable)
	}
	return nil
}

// claim returns the call of group g, and whether the caller must execute it, as a part of flow; nil
// if the group is present, see has.
func (f *File) claim(st *stage, g int, flow *transfer.Flow, sure bool) (c *call, mine bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hasLocked(st, g, sure) {
		return nil, false
	}
	if c := f.calls[g]; c != nil && c.generation == f.generation {
		return c, false
	}
	c = &call{generation: f.generation, flow: flow, done: make(chan struct{})}
	f.calls[g] = c
	return c, true
}

// has reports whether group g is staged and, if it can be verified by itself, was verified: by this process, or,
// unless sure is set, by who staged it before it was synced in this boot. Readers need not be sure, before the whole
// file is.
func (f *File) has(st *stage, g int, sure bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hasLocked(st, g, sure)
}

// hasLocked is has for a caller that holds mu.
func (f *File) hasLocked(st *stage, g int, sure bool) bool {
	known := f.stateLocked(g)
	if known == suspect || !st.p.Has(g) {
		return false
	}
	return known == verified || f.Layout.Raw() || !sure && st.p.Synced(g)
}

// stateLocked returns the state of group g. The caller holds mu.
func (f *File) stateLocked(g int) state {
	if f.states == nil {
		return unknown
	}
	return f.states[g]
}

// setState sets the state of groups from first to last.
func (f *File) setState(first, last int, to state) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.states == nil {
		f.states = make([]state, f.Layout.Groups())
	}
	for g := first; g <= last; g++ {
		f.states[g] = to
	}
}

// checkPresent returns errdefs.ErrUnavailable unless group g is still present: staged bytes may have been
// dropped.
func (f *File) checkPresent(st *stage, g int, sure bool) error {
	if f.has(st, g, sure) {
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
// of it may not be verified. The caller calls done after reading, with the error of that: what cannot be
// read is fetched again for the next Await. The errors are io.EOF if there are
// no bytes, ErrMoved for a file that is an object, transfer.ErrNoRanges if the file can be fetched
// only as a whole, and errdefs.ErrNotFound if the file has no users.
func (f *File) Await(ctx context.Context, off int64, n int) (_ *os.File, done func(error), err error) {
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
		if err := f.checkPresent(st, g, false); err != nil {
			return nil, nil, err
		}
	}
	return st.data, func(err error) {
		if err != nil {
			f.setState(first, last, suspect)
		}
		f.done(st)
	}, nil
}

// Peek reads bytes of the file that are present. It returns errdefs.ErrUnavailable if one of them is not.
func (f *File) Peek(p []byte, off int64) error {
	st, err := f.open()
	if err != nil {
		return err
	}
	defer f.done(st)
	for g := f.Layout.Find(off); g <= f.Layout.Find(off+int64(len(p))-1); g++ {
		if err := f.checkPresent(st, g, false); err != nil {
			return err
		}
	}
	_, err = st.data.ReadAt(p, off)
	return err
}

// ensure makes group g present for a reader. The work continues when ctx ends: the next reader needs
// it, or the same one, which repeats an interrupted read.
func (f *File) ensure(ctx context.Context, st *stage, g int) error {
	for try := 0; ; try++ {
		c, mine := f.claim(st, g, f.set.Scheduler.NewFlow(transfer.Urgent), false)
		if c == nil {
			return nil
		}
		if mine && !f.spawn(func(ctx context.Context) {
			err := f.withBuffer(ctx, c.flow, func(sl *transfer.Slot) error { return f.fetchGroup(st, sl, g, c, f.Transfer(c.flow)) })
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
	return f.set.Scheduler.Buffers.With(ctx, flow, f.Sources.FirstKey, do)
}

// fetchGroup loads group g into a buffer: from the stage, if that has it right, otherwise it is fetched and staged.
func (f *File) fetchGroup(st *stage, sl *transfer.Slot, g int, c *call, from transfer.Fetch) error {
	_, n := st.p.Chunk(g)
	if st.p.Has(g) { // by an earlier process, but maybe not on the disk
		if right, err := f.recheck(st, g, sl.Buf[:n]); right || err != nil {
			return err
		}
	}
	if err := f.set.Finder.Room(n); err != nil {
		return err
	}
	found, err := f.fetch(sl, g, sl.Buf[:n], from)
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
	f.setState(g, g, verified)
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
	staged := f.has(st, 0, true)
	if staged && f.Layout.Stated {
		return nil
	}
	if !staged || f.read(st, 0, buf) != nil {
		chunks := f.Layout.of(0)
		if err = f.Layout.decode(buf, raw, chunks); err == nil {
			err = f.put(st, 0, buf, make([]filetable.Location, len(chunks)))
		}
	}
	if err != nil {
		return err
	}
	f.setState(0, 0, verified)
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
