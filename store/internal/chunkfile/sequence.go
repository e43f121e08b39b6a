package chunkfile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ballast-dev/ballast/store/transfer"
	"golang.org/x/sync/errgroup"
)

// A Part is a group of a file.
type Part struct {
	File  *File
	Group int
	Flow  *transfer.Flow // the work that it belongs to
}

// A Sequence is parts of files in the order in which they are expected to be read. Fill fetches them in this order,
// and a reader that follows it makes those that come next Soon, from Attach to Detach.
type Sequence struct {
	parts []Part
	at    map[*File][]int32 // by group: the position in parts and 1; 0: not in it

	mu      sync.Mutex
	streams streams
}

// NewSequence returns a Sequence of the first occurrences of parts.
func NewSequence(parts []Part) *Sequence {
	q := &Sequence{at: map[*File][]int32{}, streams: streams{{head: -1, window: maxAhead}}} // a reader is expected at its begin
	for _, p := range parts {
		at := q.at[p.File]
		if at == nil {
			at = make([]int32, p.File.Layout.Groups())
			q.at[p.File] = at
		}
		if at[p.Group] == 0 {
			q.parts = append(q.parts, p)
			at[p.Group] = int32(len(q.parts))
		}
	}
	return q
}

// Attach makes readers of the files follow the sequence.
func (q *Sequence) Attach() {
	for f := range q.at {
		f.sequence.Store(q)
	}
}

// Detach ends Attach. A file that has another sequence by now keeps it.
func (q *Sequence) Detach() {
	for f := range q.at {
		f.sequence.CompareAndSwap(q, nil)
	}
}

// Fill fetches the parts that are not present, in order and as many at a time as there are buffers. payer is as for
// transfer.Pool.Ordered.
func (q *Sequence) Fill(ctx context.Context, payer func() string) error {
	g, ctx := errgroup.WithContext(ctx)
	var err error
	for _, p := range q.parts {
		var present bool
		if present, err = p.File.present(p.Group); present {
			continue
		}
		var sl *transfer.Slot
		if err == nil {
			sl, err = p.File.set.Scheduler.Buffers.Acquire(ctx, p.Flow.Part(), payer())
		}
		if err != nil {
			break
		}
		g.Go(func() error {
			err := p.File.make(sl, p.Group)
			again := err != nil && ctx.Err() == nil && sl.Revoked()
			sl.Release()
			if again {
				return p.File.withBuffer(ctx, p.Flow.Part(), func(sl *transfer.Slot) error { return p.File.make(sl, p.Group) })
			}
			return err
		})
	}
	return cmp.Or(g.Wait(), err)
}

// maxJitter is how far the reads of concurrent readers that follow a sequence together are apart, in parts.
const maxJitter = maxAhead

// read records a read of groups of f, and makes what comes next Soon. It returns false if the sequence does not have
// them, or the reader does not follow it.
func (q *Sequence) read(f *File, first, last int) bool {
	at := q.at[f][first : last+1]
	if slices.Contains(at, 0) {
		return false
	}
	from, to := int(slices.Min(at))-1, int(slices.Max(at))-1
	q.mu.Lock()
	follows, ahead := q.streams.read(from, to, maxJitter, maxJitter)
	q.mu.Unlock()
	if ahead > 0 {
		f.set.readerActive()
	}
	for i, p := range q.parts[to+1 : min(to+1+2*ahead, len(q.parts))] {
		p.File.soon(p.Group, i < ahead)
	}
	return follows
}

// present reports whether group g is present, also in the object that the file has become.
func (f *File) present(g int) (bool, error) {
	st, err := f.open()
	if err != nil {
		if errors.Is(err, ErrMoved) {
			return true, nil
		}
		return false, err
	}
	defer f.done(st)
	return f.has(st, g, false), nil
}

// make makes group g present, for the holder of a buffer, unless it is being fetched already.
func (f *File) make(sl *transfer.Slot, g int) error {
	st, err := f.open()
	if err != nil {
		if errors.Is(err, ErrMoved) {
			return nil
		}
		return err
	}
	defer f.done(st)
	return f.makeIn(st, sl, g)
}

// makeIn is make in an open stage.
func (f *File) makeIn(st *stage, sl *transfer.Slot, g int) error {
	c, mine := f.claim(st, g, sl.Flow(), false)
	if !mine {
		return nil
	}
	err := f.fetchGroup(st, sl, g, c, f.Transfer(c.flow))
	f.endCall(c, g, err)
	return err
}

// soon makes group g present before a reader needs it, or, without start, lets a running call do so: in the
// background that would be revoked, and lose what is under way. It does not wait.
func (f *File) soon(g int, start bool) {
	f.mu.Lock()
	c := f.calls[g]
	idle := start && c == nil && !f.reading[g] && !(f.stage != nil && f.hasLocked(f.stage, g, false))
	if idle {
		f.reading[g] = true
	}
	f.mu.Unlock()
	if c != nil {
		c.flow.Promote(transfer.Soon)
	}
	if !idle {
		return
	}
	ctx, ok := f.set.begin(f)
	if !ok {
		f.endReadAhead(g)
		return
	}
	go func() {
		defer f.set.end(f)
		defer f.endReadAhead(g)
		// An error is reported when the group is read.
		_ = f.withBuffer(ctx, f.set.Scheduler.NewFlow(transfer.Soon), func(sl *transfer.Slot) error { return f.make(sl, g) })
	}()
}
