package expose

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Options are what a Set needs. All are required.
type Options struct {
	Dir     string // of the store
	DB      *meta.DB
	Objects *object.Objects
	Area    *staging.Area
	Files   *chunkfile.Set
	Engine  *hydrate.Engine
	Log     *slog.Logger

	// Table returns a stored table, or errdefs.ErrNotFound.
	Table func(table digest.Digest) (*filetable.Table, error)

	// Reserve reserves space for exposed files of a table from a group of sources, until left, which returns how
	// many bytes are still to be written, returns 0.
	Reserve func(table digest.Digest, group string, left func() int64) error
}

// Views are the views of a Set, for the users of the store. All methods are safe for concurrent use.
type Views struct{ set *Set }

// Views returns the views.
func (s *Set) Views() Views { return Views{s} }

// A Set has the views of a store and the files that are exposed in them. All methods are safe for concurrent
// use.
type Set struct {
	Options

	// Failed counts the failed reads of incomplete files.
	Failed atomic.Int64

	ctx  context.Context    // ends with Close
	stop context.CancelFunc // called with mu
	work sync.WaitGroup

	// exposing serialises Expose and Withdraw. Locked before a bbolt transaction.
	exposing sync.Mutex

	mu        sync.Mutex // guards the following
	index     index
	presented map[string]presented // by view that has all of its table

	recordings map[recorded]*recording
}

// New returns a Set without exposed files.
func New(o Options) *Set {
	s := &Set{Options: o, index: newIndex(), presented: map[string]presented{}, recordings: map[recorded]*recording{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

var errClosed = fmt.Errorf("the store is closed: %w", errdefs.ErrUnavailable)

// Close ends Expose, and the comparison of objects that have arrived: they are compared when their views are shown
// again.
func (s *Set) Close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.work.Wait()
	s.SaveOrders()
}

// Forget forgets views whose references are removed.
func (s *Set) Forget(views ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range views {
		delete(s.presented, name)
	}
}
