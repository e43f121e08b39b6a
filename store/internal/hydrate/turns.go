package hydrate

import (
	"cmp"
	"context"
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// parallelBlobs is the number of targets of a table that are fetched concurrently. Connections
// limit the transfers; this only keeps them busy when blobs are small.
const parallelBlobs = 32

// parallelSmall is the number of additional concurrent targets of at most one chunk. They wait for
// the disk rather than for the network, and concurrent syncs share the work of the disk.
const parallelSmall = 96

// fetchTargets fetches targets in the order of turns, and concurrently hashes the files assembled from them. It stops
// at the first error.
func (e *Engine) fetchTargets(ctx context.Context, h *hydration, missing []int, wish wish, assemblies []*assembly) error {
	fragments := map[digest.Digest]chan struct{}{} // closed when verified
	for _, i := range missing {
		if b := h.targets[i].Blob; b.Archive == filetable.ArchiveFragments {
			fragments[b.Digest] = make(chan struct{})
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, a := range assemblies {
		all.Go(func() error {
			err := a.complete(ctx, e, func(ctx context.Context, d digest.Digest) error {
				select {
				case <-fragments[d]:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			if err == nil && !a.copied { // others may wait for it
				err = a.publish(ctx, e, &h.from, h.group)
				e.release(h, a)
			}
			return err
		})
	}
	for q := newTurns(ctx, e, h, missing, wish, all); len(q.missing) > 0; {
		i, begun, leave, err := q.next(ctx)
		if err != nil {
			return cmp.Or(all.Wait(), err)
		}
		all.Go(func() error {
			defer begun()
			if ctx.Err() != nil { // nothing starts after a failure
				return ctx.Err()
			}
			if err := e.fetch(ctx, h, i, begun); err != nil {
				return err // and keeps its place, because ctx ends later
			}
			leave()
			h.finish(i, StateComplete)
			if t := &h.targets[i]; fragments[t.Blob.Digest] != nil && len(t.Files) == 0 {
				close(fragments[t.Blob.Digest])
			}
			return nil
		})
	}
	return all.Wait()
}

// turns are the targets of a hydration that have not started:
//
//	parts and whole targets of the recorded order → small targets → heads and then own parts → the others; a serial
//	target starts when the one before is underWay
//
// Those that readers wait for start before all of them.
type turns struct {
	h       *hydration
	missing []int
	wish    wish
	urgent  int // of missing, at its begin: readers wait for them, and the others may be paused

	tiny, large, wanted chan struct{} // the places of running targets

	ordered chan struct{}  // closed when the parts of the recorded order are present; nil: they are
	begin   func()         // begins what is ahead
	ahead   chan struct{}  // closed when heads and own parts are present; nil: they are
	busy    chan struct{}  // closed when the serial target that started last is underWay; nil: it is
	waiting sync.WaitGroup // early targets that have started and are not underWay
}

func newTurns(ctx context.Context, e *Engine, h *hydration, missing []int, wish wish, all *errgroup.Group) *turns {
	q := &turns{
		h: h, missing: missing, wish: wish,
		tiny: make(chan struct{}, parallelSmall), large: make(chan struct{}, parallelBlobs), wanted: make(chan struct{}, parallelBlobs),
	}
	if len(wish.parts) > 0 { // which readers follow from now on
		done := make(chan struct{})
		q.ordered = done
		all.Go(func() error {
			defer close(done)
			e.inOrder(ctx, h, wish.parts)
			return nil
		})
	}
	if len(wish.heads)+len(wish.own) > 0 {
		done := make(chan struct{})
		q.ahead = done
		q.begin = sync.OnceFunc(func() {
			all.Go(func() error {
				defer close(done)
				q.waiting.Wait()
				e.fetchHeads(ctx, h, wish.heads)
				e.inOwnOrder(ctx, h, wish.own)
				return nil
			})
		})
	}
	return q
}

// next waits until a target can start, and removes it from missing. The caller calls begun when it is underWay, and at
// its end leave and begun.
func (q *turns) next(ctx context.Context) (i int, begun, leave func(), err error) {
	for {
		i = q.missing[0]
		t, early, places := &q.h.targets[i], q.wish.early[i], q.large
		serial := t.serial()
		switch {
		case q.urgent > 0:
			places, serial = q.wanted, false
		case q.ordered != nil && !q.wish.whole[i]:
			places = nil
		case q.ahead != nil && !early:
			q.begin()
			places = nil
		case t.Blob.Size <= staging.ChunkSize:
			places, serial = q.tiny, false
		case serial && q.busy != nil:
			places = nil
		}
		select {
		case places <- struct{}{}:
			q.missing, q.urgent = q.missing[1:], max(0, q.urgent-1)
			return i, q.start(early, serial), func() { <-places }, nil
		case <-q.ordered:
			q.ordered = nil
		case <-q.ahead:
			q.ahead = nil
		case <-q.busy:
			q.busy = nil
		case <-q.h.hurry:
			q.urgent = q.h.wantedFirst(q.missing)
		case <-ctx.Done():
			return 0, nil, nil, ctx.Err()
		}
	}
}

// start returns what is called when a target is underWay.
func (q *turns) start(early, serial bool) (begun func()) {
	busy := make(chan struct{})
	if serial {
		q.busy = busy
	}
	if early {
		q.waiting.Add(1)
	}
	return sync.OnceFunc(func() {
		close(busy)
		if early {
			q.waiting.Done()
		}
	})
}
