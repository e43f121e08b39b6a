package hydrate

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

var errClosed = fmt.Errorf("the store is closed: %w", errdefs.ErrUnavailable)

// A Publication is a staged file that is durable and verified, and is to be an object.
type Publication struct {
	Staged string // path below the root
	Digest digest.Digest
	Size   int64             // bytes
	Layout *chunkfile.Layout // in which it was brought, or nil
	From   *transfer.Sources // that gave the bytes; nil: they are not from outside
}

// Objects are the complete files, and what is known of them.
type Objects interface {
	// Has says whether a blob is there as the table says, for who has these sources. It returns
	// a *verify.Error if it is there with another size.
	Has(b filetable.Blob, from *transfer.Sources) (bool, error)

	// Assembled returns the digest of a file with parts, empty if it is not known.
	Assembled(f filetable.File) (digest.Digest, error)

	// Publish makes files objects, and records what was found out with them. It takes their staged
	// files, but for objects that are there already.
	Publish(files []Publication, found meta.Arrival) error

	// Wrong is called before what is staged of a file without digests of chunks, and maybe read, is
	// thrown away, because it is not what the digest of the file says.
	Wrong(f *chunkfile.File) error

	// PutBytes makes p an object.
	PutBytes(ctx context.Context, p []byte) (digest.Digest, error)

	// Registered is called when Live has the work, before it is found out what is there.
	Registered(ctx context.Context)

	// Reserve keeps room on the disk for need bytes of a table from a group of sources until release,
	// beside what others have reserved. left says how many of them are still to be written.
	Reserve(ctx context.Context, table digest.Digest, group string, need int64, left func() int64) (release func(), err error)

	// Room returns an error if n bytes more would use what stays in reserve.
	Room(n int64) error
}

// An Engine brings the blobs of tables. Its methods are safe for concurrent use.
type Engine struct {
	Scheduler *transfer.Scheduler
	Files     *chunkfile.Set
	Area      *staging.Area
	Root      *os.Root // of the store
	Objects   Objects
	Linger    time.Duration // how long work goes on that nobody waits for any more
	Log       *slog.Logger

	ctx  context.Context // ends all work
	stop context.CancelFunc
	work sync.WaitGroup

	mu         sync.Mutex // guards what follows; before hydration.mu
	closed     bool
	hydrations map[string]*hydration    // by key
	fetches    map[string]*blobFetch    // by key
	assembling map[string]chan struct{} // by directory: held by who puts a file together there
	began      chan struct{}            // closed when the next hydration begins
}

// Begin makes an Engine ready. It is called once, before all other methods.
func (e *Engine) Begin() {
	e.ctx, e.stop = context.WithCancel(context.Background())
	e.hydrations, e.fetches, e.assembling = map[string]*hydration{}, map[string]*blobFetch{}, map[string]chan struct{}{}
	e.began = make(chan struct{})
}

// Close ends all work, and waits for its end.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop()
	e.work.Wait()
}

// Began returns a channel that is closed when the next hydration begins.
func (e *Engine) Began() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.began
}

// Live returns what collecting has to leave alone: the tables that are being hydrated, and the digests
// of what is brought for them.
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

// Arrived says that a file is an object, whoever brought it: who brings it too, and may have it, need not
// go on.
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

// exclusive waits until nobody else puts a file together in a directory, until release.
func (e *Engine) exclusive(ctx context.Context, dir string) (release func(), err error) {
	e.mu.Lock()
	turn := e.assembling[dir]
	if turn == nil {
		turn = make(chan struct{}, 1)
		e.assembling[dir] = turn
	}
	e.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
