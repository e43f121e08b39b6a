package hydrate

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"
)

// errAbandoned ends work that no caller waits for.
var errAbandoned = fmt.Errorf("the download was stopped, because nothing waited for it: %w", errdefs.ErrUnavailable)

var errClosed = fmt.Errorf("the store is closed: %w", errdefs.ErrUnavailable)

// Objects are the complete files and their records.
type Objects interface {
	// Has reports whether a blob is present, as in the table, for these sources. It returns a
	// *verify.Error if it is present with another size.
	Has(b filetable.Blob, from *transfer.Sources) (bool, error)

	// Assembled returns the digest of a file with parts, or "" if it is unknown.
	Assembled(f filetable.File) (digest.Digest, error)

	// Publish makes files objects. It moves their staged files, except those of existing objects.
	Publish(a meta.Arrival) error

	// DoubtChain is called when a blob is an object that was not, or not to the end, fetched by its chain of states, or
	// differs from what was read by it: a source or the chain may have been wrong.
	DoubtChain(ctx context.Context, b filetable.Blob)

	// PutBytes makes p an object.
	PutBytes(p []byte) (digest.Digest, error)

	// Began is called when Live includes the hydration of a table from a group of sources, before looking
	// for present objects.
	Began(table digest.Digest, group string)

	// Ended is called at the end of a hydration, before its waiters are informed. It completes the records
	// if err is nil, and returns the error for the waiters.
	Ended(table digest.Digest, t *filetable.Table, group string, err error) error

	// Reserve reserves disk space for need bytes of a table from a group of sources, beside other
	// reservations, until release. left returns how many of them are still to be written.
	Reserve(table digest.Digest, group string, need int64, left func() int64) (release func(), err error)

	// Order returns the order in which a table is expected to be read by those who use a group of sources; nil
	// if it is unknown.
	Order(table digest.Digest, group string) []filetable.Range

	// Room returns an error if n more bytes would use the reserved free space.
	Room(n int64) error

	// Fits returns an error if n more bytes exceed the quota, and what can be removed is not enough.
	Fits(n int64) error
}

// An Engine hydrates tables. Its methods are safe for concurrent use.
type Engine struct {
	Scheduler *transfer.Scheduler
	Files     *chunkfile.Set
	Area      *staging.Area
	Root      *dirs.Root // of the store
	Objects   Objects
	Linger    time.Duration // how long work continues without a waiter

	// GGUF returns a Sniffer of the header of a GGUF file of a size in bytes; nil: such headers are not known.
	GGUF func(size int64) Sniffer

	Log *slog.Logger

	large    *semaphore.Weighted // the turn to unpack an archive with a large window
	unpacked atomic.Int64        // bytes of all archives

	own maphash.Seed // of the order of scatter

	ctx  context.Context // cancels all work
	stop context.CancelCauseFunc
	work sync.WaitGroup

	mu         sync.Mutex // guards the following; locked before hydration.mu
	closed     bool
	hydrations map[string]*hydration // by key
	fetches    map[string]*blobFetch // by key
	assembling map[string]*turn      // by directory
	began      chan struct{}         // closed when the next hydration begins
}

// Begin initialises an Engine. It is called once, before all other methods.
func (e *Engine) Begin() {
	e.ctx, e.stop = context.WithCancelCause(context.Background())
	e.hydrations, e.fetches, e.assembling = map[string]*hydration{}, map[string]*blobFetch{}, map[string]*turn{}
	e.began = make(chan struct{})
	e.large = semaphore.NewWeighted(1)
	e.own = maphash.MakeSeed()
}

// Close cancels all work and waits for its end.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop(errClosed)
	e.work.Wait()
}

// Began returns a channel that is closed when the next hydration begins.
func (e *Engine) Began() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.began
}

// Live returns what garbage collection must keep: the tables being hydrated, and the digests of the
// objects and blobs being fetched for them.
func (e *Engine) Live() (tables, blobs []digest.Digest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.hydrations {
		tables = append(tables, h.table)
		for i := range h.targets {
			blobs = append(blobs, h.targets[i].digests()...)
		}
	}
	return tables, blobs
}

// Arrived cancels, successfully, the fetches of a file that has become an object and whose sources
// may have it.
func (e *Engine) Arrived(d digest.Digest, may func(from *transfer.Sources) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.fetches {
		if len(b.files) == 1 && b.files[0].Digest == d && may(&b.sources) {
			b.arrived = true
			b.cancel()
		}
	}
}

// A turn is the exclusive use of an assembly directory by a hydration.
type turn struct {
	holder *hydration
	over   chan struct{} // closed at the end
}

// exclusive waits for exclusive use of an assembly directory, until release, and reports whether another
// hydration had it before. That gets the priority of h meanwhile.
func (e *Engine) exclusive(ctx context.Context, h *hydration, dir string) (waited bool, err error) {
	for {
		e.mu.Lock()
		other := e.assembling[dir]
		if other == nil {
			e.assembling[dir] = &turn{h, make(chan struct{})}
			e.mu.Unlock()
			return waited, nil
		}
		e.mu.Unlock()
		waited = true
		h.waitBehind(other.holder)
		select {
		case <-other.over:
			h.waitBehind(nil)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// release ends the exclusive use of the directories of files, as far as h has it.
func (e *Engine) release(h *hydration, files ...*assembly) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range files {
		if turn := e.assembling[a.dir]; turn != nil && turn.holder == h {
			delete(e.assembling, a.dir)
			close(turn.over)
		}
	}
}
