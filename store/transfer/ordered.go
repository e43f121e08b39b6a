package transfer

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Ordered fills n chunks with buffers of the pool, concurrently, and uses them in order, unless use
// is nil.
//
// fill fetches chunk i into the buffer, and must end with the slot's context. Each slot has its own
// Flow, a part of f. fill may be called again for a chunk whose buffer was revoked before its turn,
// and must be cheap if its bytes are staged. use receives chunk i in the buffer; calls do not
// overlap. payer returns the source that pays for the next buffer (Source.Key).
//
// The buffer taken last is revoked first, and belongs to the last of the chunks with buffers. The
// chunk that use waits for therefore has a buffer if any chunk has, and concurrent calls cannot
// deadlock.
func (p *Pool) Ordered(ctx context.Context, f *Flow, payer func() string, n int, fill func(int, *Slot) error, use func(int, *Slot) error) error {
	g, group := errgroup.WithContext(ctx)
	o := &ordered{n: n, changed: make(chan struct{}), fill: fill, use: use}
	for o.wait(group) {
		sl, err := p.Acquire(group, f.Part(), payer())
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		i := o.take()
		if i == n-1 {
			f.Serve()
		}
		g.Go(o.work(group, i, sl))
	}
	return cmp.Or(g.Wait(), context.Cause(ctx))
}

// ordered is the state of one Ordered.
type ordered struct {
	n         int
	fill, use func(int, *Slot) error

	mu      sync.Mutex // guards the following
	next    int        // the first chunk that never had a buffer
	again   []int      // chunks whose buffer was revoked
	used    int        // number of finished chunks; with use, the chunk whose turn it is
	changed chan struct{}
}

// announce wakes all waiters. It requires the mutex.
func (o *ordered) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// wait returns true when a chunk needs a buffer, and false when all chunks are finished or ctx is
// done.
func (o *ordered) wait(ctx context.Context) bool {
	for {
		o.mu.Lock()
		wanted, done, changed := o.next < o.n || len(o.again) > 0, o.used == o.n, o.changed
		o.mu.Unlock()
		if wanted || done || ctx.Err() != nil {
			return wanted && ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// take returns the first chunk that needs a buffer. There is one, since only take removes them.
func (o *ordered) take() (i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.again) == 0 {
		o.next++
		return o.next - 1
	}
	first := slices.Index(o.again, slices.Min(o.again))
	i = o.again[first]
	o.again = slices.Delete(o.again, first, first+1)
	return i
}

// work returns the work of a slot: to fill a chunk, and to use it in its turn.
func (o *ordered) work(ctx context.Context, i int, sl *Slot) func() error {
	return func() error {
		defer sl.Release()
		if err := o.fill(i, sl); err != nil {
			if ctx.Err() == nil && sl.Revoked() {
				o.giveBack(i)
				return nil
			}
			return err
		}
		sl.flow.rest() // a reader that waited for it now has it
		for o.use != nil {
			o.mu.Lock()
			turn, changed := o.used == i, o.changed
			o.mu.Unlock()
			if turn {
				break
			}
			select {
			case <-changed:
			case <-sl.Context.Done():
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				o.giveBack(i)
				return nil
			}
		}
		if o.use != nil {
			if err := o.use(i, sl); err != nil {
				return err
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.used++
		o.announce()
		return nil
	}
}

func (o *ordered) giveBack(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.again = append(o.again, i)
	o.announce()
}
