package transfer

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// Some mirrors share pieces of a blob that are larger than a chunk. Such an Endpoint is asked for whole aligned
// pieces. The ranges that want bytes of one piece share a request: a reader, which holds the slot, fills their
// buffers one after the other as the bytes arrive.
//
// A reader never waits for a range: bytes that no range wants yet are dropped, and such a range asks for the piece
// anew. What ends a reader ends what waits for it, and the ranges go on as they do after a request of their own.
//
// Of each work, one reader reads from a source at first, then one more after each piece, up to half as many as there
// are connections, and besides these, what something more urgent waits for. Meanwhile other readers get all of their
// ranges, which have a buffer each. If more of them read, nodes that begin together have more pieces under way from the
// origin, and each of these comes late.

// pieces are the readers of a Scheduler.
type pieces struct {
	most int // largest value of queue.most

	mu      sync.Mutex                // guards the following
	readers map[pieceKey]*pieceReader // those that can still take ranges
	lanes   map[lane]*queue           // those that read, or wait for their turn
}

// A lane is what readers take turns in.
type lane struct {
	work   *Flow
	source string
}

// A queue is the readers of a lane.
type queue struct {
	most    int // that read at a time
	reading int
	waiting []*pieceReader
}

// A pieceKey identifies a piece of a blob at a source.
type pieceKey struct {
	source, blob string
	start        int64
}

// A pieceReader reads one piece.
type pieceReader struct {
	key    pieceKey
	end    int64
	flow   *Flow
	cancel context.CancelCauseFunc

	turn    chan struct{} // closed when it may read, or refused is set
	refused error

	// The following fields are guarded by pieces.mu.
	past    int64   // bytes before it are read, or being read
	waiting []*want // in order
	reading *want
}

// A want is a part of a range that lies in one piece.
type want struct {
	f    Fetch
	hold *Slot
	off  int64
	buf  []byte

	done    chan struct{} // closed when the following are set
	got     int
	private bool
	err     error
}

// fill fills buf with the bytes from at, which are those of one or more pieces of a source.
func (r *rangeFetch) fill(ctx context.Context, src Source, buf []byte, at int64) (n int, err error) {
	size := src.Endpoint.Piece
	var all []*want
	var readers []*pieceReader
	for off := at; off < at+int64(len(buf)); {
		start := off / size * size
		end := min(start+size, r.Size)
		w := &want{f: r.Fetch, hold: r.hold, off: off, buf: buf[off-at : min(end-at, int64(len(buf)))], done: make(chan struct{})}
		all = append(all, w)
		readers = append(readers, r.join(ctx, src, w, start, end))
		off = end
	}
	for i, w := range all {
		if err != nil {
			r.Scheduler.pieces.leave(readers[i], w, ErrRevoked)
			if w.got > 0 {
				r.have = min(r.have, int(w.off-r.off)) // it replaced bytes of another source
			}
			continue
		}
		r.await(ctx, readers[i], w)
		n += w.got
		if err = w.err; w.got > 0 {
			r.From.addProvider(src.Key(), w.private)
		}
	}
	return n, err
}

// await waits for the end of a want. Meanwhile the reader is at least as urgent as the range.
func (r *rangeFetch) await(ctx context.Context, p *pieceReader, w *want) {
	tick := time.NewTicker(patience)
	defer tick.Stop()
	for {
		p.flow.Promote(r.Flow.Class())
		r.Scheduler.pieces.hurry(p)
		select {
		case <-w.done:
			return
		case <-ctx.Done():
			r.Scheduler.pieces.leave(p, w, context.Cause(ctx))
			return
		case <-tick.C:
		}
	}
}

// join adds a want to the reader of its piece, and starts one if there is none that can take it.
func (r *rangeFetch) join(ctx context.Context, src Source, w *want, start, end int64) *pieceReader {
	ps := &r.Scheduler.pieces
	key := pieceKey{src.Key(), r.Blob.String(), start}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.readers[key]
	if p == nil || p.past > w.off {
		own, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // others join
		p = &pieceReader{key: key, end: end, flow: r.Flow.Part(), cancel: cancel, turn: make(chan struct{}), past: start}
		ps.readers[key] = p
		asked := maps.Clone(r.asked)
		go func() { // the last want waits for it
			err := p.run(own, ps, r.Fetch, src, asked)
			cancel(nil)
			p.finish(ps, err)
		}()
	}
	i, _ := slices.BinarySearchFunc(p.waiting, w.off, func(other *want, off int64) int { return cmp.Compare(other.off, off) })
	p.waiting = slices.Insert(p.waiting, i, w)
	return p
}

// leave withdraws a want, and waits for the end of its use.
func (ps *pieces) leave(p *pieceReader, w *want, cause error) {
	ps.mu.Lock()
	i := slices.Index(p.waiting, w)
	if i < 0 {
		if p.reading == w {
			p.cancel(ErrRevoked) // others ask anew
		}
		ps.mu.Unlock()
		<-w.done
		return
	}
	w.err = cause
	p.waiting = slices.Delete(p.waiting, i, i+1)
	last := len(p.waiting) == 0 && p.reading == nil
	if last {
		p.forget(ps)
	}
	ps.mu.Unlock()
	if last {
		p.cancel(cause)
	}
}

func (p *pieceReader) lane() lane { return lane{p.flow.whole(), p.key.source} }

// hurries reports whether p reads out of turn. What others work at may be paused.
func (p *pieceReader) hurries() bool {
	c := p.flow.Class()
	return c == Urgent || c < p.flow.whole().Class()
}

// enter waits until p may read; exit ends that. It returns errSilent if the source hangs, or the error of ctx.
func (ps *pieces) enter(ctx context.Context, p *pieceReader) error {
	ps.mu.Lock()
	q := ps.lanes[p.lane()]
	if q == nil {
		q = &queue{most: 1}
		ps.lanes[p.lane()] = q
	}
	if q.waiting = append(q.waiting, p); q.reading < q.most || p.hurries() {
		q.end(p, nil)
	}
	ps.mu.Unlock()
	select {
	case <-p.turn:
	case <-ctx.Done():
		ps.mu.Lock()
		q.end(p, context.Cause(ctx))
		ps.mu.Unlock()
	}
	return p.refused
}

// end ends the waiting of p: it reads, unless it is refused.
func (q *queue) end(p *pieceReader, refused error) {
	i := slices.Index(q.waiting, p)
	if i < 0 {
		return
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if p.refused = refused; refused == nil {
		q.reading++
	}
	close(p.turn)
}

// hurry lets p read if it hurries.
func (ps *pieces) hurry(p *pieceReader) {
	if !p.hurries() {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if q := ps.lanes[p.lane()]; q != nil {
		q.end(p, nil)
	}
}

// exit ends the reading of p. Those that wait need not find out as it did that the source hangs.
func (ps *pieces) exit(p *pieceReader, e *Endpoint, err error) {
	var refused error
	if errors.Is(err, errSlow) && e.silent() {
		refused = errSilent
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	q := ps.lanes[p.lane()]
	if q.reading--; err == nil {
		q.most = min(q.most+1, ps.most)
	}
	for len(q.waiting) > 0 && (refused != nil || q.reading < q.most) {
		q.end(q.waiting[0], refused)
	}
	if q.reading == 0 {
		delete(ps.lanes, p.lane())
	}
}

// run reads the piece until no range waits for it.
func (p *pieceReader) run(ctx context.Context, ps *pieces, f Fetch, src Source, asked map[string]error) (err error) {
	if err := ps.enter(ctx, p); err != nil {
		return err
	}
	defer func() { ps.exit(p, src.Endpoint, err) }()
	f.Flow = p.flow
	return f.request(ctx, src, asked, p.key.start, p.end-p.key.start, func(a answer) (err error) {
		at, began := p.key.start, time.Now()
		defer func() {
			if !f.paced() {
				src.Endpoint.received(at-p.key.start, time.Since(began))
			}
		}()
		for w := p.next(ps); w != nil; w = p.next(ps) {
			if _, err := io.CopyN(io.Discard, &dropped{a, f, src.Endpoint}, w.off-at); err != nil {
				return err
			}
			w.got, err = w.f.receive(a, src, w.buf, w.hold)
			at = w.off + int64(w.got)
			w.private = w.got > 0 && IsPrivate(a.body)
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// next ends the want that was read, and returns the next one. If there is none, next returns nil, the reader takes
// no more, and finish ends the last one.
func (p *pieceReader) next(ps *pieces) *want {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for len(p.waiting) > 0 && p.waiting[0].off < p.past { // another range got the same bytes
		p.waiting[0].err = ErrRevoked
		close(p.waiting[0].done)
		p.waiting = p.waiting[1:]
	}
	if len(p.waiting) == 0 {
		p.forget(ps)
		return nil
	}
	if p.reading != nil {
		close(p.reading.done)
	}
	p.reading, p.waiting = p.waiting[0], p.waiting[1:]
	p.past = p.reading.off + int64(len(p.reading.buf))
	return p.reading
}

// forget makes the reader take no more wants. The caller holds pieces.mu.
func (p *pieceReader) forget(ps *pieces) {
	if ps.readers[p.key] == p {
		delete(ps.readers, p.key)
	}
}

// finish ends the wants that are left, with the error of run.
func (p *pieceReader) finish(ps *pieces, err error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.forget(ps)
	if p.reading != nil {
		p.waiting = append(p.waiting, p.reading)
	}
	for _, w := range p.waiting {
		w.err = err
		close(w.done)
	}
	p.waiting, p.reading = nil, nil
}

// dropped reads bytes that no range wants as Fetch.read reads others.
type dropped struct {
	answer
	f Fetch
	e *Endpoint
}

// Read implements io.Reader.
func (d *dropped) Read(b []byte) (int, error) {
	background := d.f.Flow.Class() == Background
	if background {
		b = b[:d.f.Flow.step(len(b))]
	}
	n, err := d.body.Read(b)
	d.place.Progress(n)
	d.e.count(n)
	if background && n > 0 {
		if werr := d.f.spend(d.ctx, n); werr != nil {
			return n, werr
		}
	}
	return n, err
}
