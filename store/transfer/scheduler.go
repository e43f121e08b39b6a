package transfer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/offheap"
	"golang.org/x/time/rate"
)

// Times of a Scheduler. See Pool.
const (
	patience = 200 * time.Millisecond // before a waiting slot takes that of another source
	look     = time.Second            // interval over which the progress of a slot is measured
	aging    = 2 * time.Second        // after which background work is served beside other work
)

// slowWait is how long work of a slow source is served after that of others.
const slowWait = time.Minute

// maxSlow limits the recorded slow sources.
const maxSlow = 4096

// MinRate is the rate in bytes a second below which a transfer loses a slot that other work waits
// for, or a range that another source may have.
const MinRate = 64 << 10

// ErrRevoked is the cause of a slot's context when the slot is given to another source. The holder
// releases the slot and acquires another one.
var ErrRevoked = errors.New("another source goes first")

// A Scheduler shares the resources of a node between sources: the slots of running requests, the
// buffers for their bytes, and the unpackers of archives.
type Scheduler struct {
	Places    *Pool
	Buffers   *Pool
	Unpackers *Pool

	limit *rate.Limiter // of background work, in bytes

	mu     sync.Mutex // guards the following, and all pools and flows
	paused bool
	slow   map[string]bool // sources that last were below MinRate while another one waited
}

// Options are the sizes of the pools of a Scheduler.
type Options struct {
	Connections int // request slots; urgent work has as many of its own
	Chunk       int // bytes of a buffer
	Readers     int // buffers of urgent work; other work shares 2*Connections
	Unpackers   int // as many more are for sources that have none
}

// NewScheduler returns a Scheduler. It starts nothing.
func NewScheduler(o Options) *Scheduler {
	s := &Scheduler{limit: rate.NewLimiter(rate.Inf, 0)}
	s.Places = &Pool{s: s, size: o.Connections, urgent: o.Connections, background: o.Connections, quiet: true}
	s.Buffers = &Pool{s: s, size: 2 * o.Connections, urgent: o.Readers, background: max(2, o.Connections/2), memory: offheap.New(o.Chunk)}
	s.Unpackers = &Pool{s: s, size: o.Unpackers, urgent: o.Unpackers, background: o.Unpackers, first: o.Unpackers, costly: true}
	return s
}

func (s *Scheduler) pools() []*Pool { return []*Pool{s.Places, s.Buffers, s.Unpackers} }

// dispatch grants free slots in all pools. The caller holds mu.
func (s *Scheduler) dispatch() {
	for _, p := range s.pools() {
		p.dispatch()
	}
}

// SetPaused pauses or resumes background work. It does not wait for the end of paused work.
func (s *Scheduler) SetPaused(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
	if paused {
		for _, p := range s.pools() {
			p.yield(true)
		}
	}
	s.dispatch()
}

// Paused reports whether background work is paused.
func (s *Scheduler) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused
}

// SetRate limits the total rate of background work in bytes a second; 0 is no limit.
func (s *Scheduler) SetRate(bytes int64) {
	if bytes <= 0 {
		s.limit.SetLimit(rate.Inf)
		return
	}
	s.limit.SetBurst(int(max(4<<10, bytes/10))) // a tenth of a second: the longest wait of promoted work
	s.limit.SetLimit(rate.Limit(bytes))
}

// A Pool is a number of slots that sources share.
//
// Urgent work has its own slots. Other slots go to the more urgent work first, then to sources that
// are not slow, and then to the source that holds the fewest. A slot that waits longer than
// patience takes one from the source that holds the most, if that has at least two more; if all
// sources have their share, from a source whose slot is below MinRate. It takes one at once from a
// source known to be slow, or if its own source has just waited for one: patience is for one slot,
// not for each. A taken slot is revoked: its context ends. A source therefore never keeps more than
// half of a pool while another one waits, even if it hangs.
//
// Background work gives way at once to waiting work and, in a quiet pool, to all running work that
// progresses. After the time aging it is nevertheless served beside the work of other sources, one
// slot for each source.
type Pool struct {
	s          *Scheduler
	size       int  // slots of work that is not urgent
	urgent     int  // slots of urgent work
	background int  // slots of size that background work may have
	first      int  // slots beyond size, for sources that have none
	quiet      bool // background work waits while other work runs
	costly     bool // the work of a revoked slot is lost: only slots without progress are revoked

	memory *offheap.Pool // of buffers; nil: slots have none

	held    []*Slot              // oldest first
	waiting []*Slot              // oldest first
	ticking bool                 // tick is scheduled
	waited  map[string]time.Time // when a source took a slot that it had waited for; at most maxSlow
}

// A Slot is a slot of a Pool.
type Slot struct {
	// Context ends with the context given to Acquire, or when the slot is revoked.
	Context context.Context

	// Buf is a buffer, for slots of Scheduler.Buffers. It must not be used after Release.
	Buf     []byte
	scratch []byte

	pool   *Pool
	flow   *Flow
	source string
	cancel context.CancelCauseFunc
	bytes  atomic.Int64

	// The following fields are guarded by Scheduler.mu.
	granted chan struct{} // closed when it is granted
	since   time.Time     // start of waiting or holding
	aged    bool          // it was granted although other work runs
	took    bool          // it took a slot of a slow source while it waited
	revoked string        // the source that gets it; empty: not revoked
	seen    int64         // bytes at seenAt
	seenAt  time.Time
	slow    bool // as of seenAt
}

// Acquire waits for a slot for work that source pays for (Source.Key). Its error is that of ctx.
func (p *Pool) Acquire(ctx context.Context, f *Flow, source string) (sl *Slot, err error) {
	sl = p.ask(ctx, f, source)
	select {
	case <-sl.granted:
	case <-ctx.Done():
		sl.Release()
		return nil, context.Cause(ctx)
	}
	if p.memory != nil {
		if sl.Buf, err = p.memory.Take(); err != nil {
			sl.Release()
			return nil, err
		}
	}
	return sl, nil
}

// ask returns a slot that waits, or is already granted.
func (p *Pool) ask(ctx context.Context, f *Flow, source string) *Slot {
	sl := &Slot{pool: p, flow: f, source: source, granted: make(chan struct{}), since: time.Now()}
	sl.Context, sl.cancel = context.WithCancelCause(ctx)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.waiting = append(p.waiting, sl)
	p.dispatch()
	return sl
}

// With calls f with a slot, and again with another one if the slot was revoked meanwhile.
func (p *Pool) With(ctx context.Context, flow *Flow, payer func() string, f func(*Slot) error) error {
	for {
		sl, err := p.Acquire(ctx, flow, payer())
		if err != nil {
			return err
		}
		err = f(sl)
		again := err != nil && ctx.Err() == nil && sl.Revoked()
		sl.Release()
		if !again {
			return err
		}
	}
}

// Scratch returns a second buffer.
func (sl *Slot) Scratch() (_ []byte, err error) {
	if sl.scratch == nil {
		sl.scratch, err = sl.pool.memory.Take()
	}
	return sl.scratch, err
}

// Try is Acquire without waiting: it returns nil if no slot is free.
func (p *Pool) Try(ctx context.Context, f *Flow, source string) *Slot {
	sl := p.ask(ctx, f, source)
	select {
	case <-sl.granted:
		return sl
	default:
		sl.Release()
		return nil
	}
}

// Flow returns the work of the slot.
func (sl *Slot) Flow() *Flow { return sl.flow }

// Progress records that n bytes arrived with the slot.
func (sl *Slot) Progress(n int) { sl.bytes.Add(int64(n)) }

// Revoked reports whether the slot is revoked.
func (sl *Slot) Revoked() bool { return context.Cause(sl.Context) == ErrRevoked }

// Release frees the slot, or stops waiting for it.
func (sl *Slot) Release() {
	p := sl.pool
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	sl.cancel(nil)
	p.waiting = drop(p.waiting, sl)
	p.held = drop(p.held, sl)
	for _, b := range []*[]byte{&sl.Buf, &sl.scratch} {
		if *b != nil {
			p.memory.Put(*b)
			*b = nil
		}
	}
	p.dispatch()
}

func drop(list []*Slot, sl *Slot) []*Slot {
	return slices.DeleteFunc(list, func(o *Slot) bool { return o == sl })
}

// dispatch grants free slots, and schedules tick while slots wait. The caller of this and the
// following methods holds Scheduler.mu.
func (p *Pool) dispatch() {
	now := time.Now()
	for {
		var best *Slot
		held := p.classes()
		for _, w := range p.waiting {
			if p.admits(w, held, now) && (best == nil || p.before(w, best, now)) {
				best = w
			}
		}
		if best == nil {
			break
		}
		p.waiting = drop(p.waiting, best)
		p.held = append(p.held, best)
		best.aged = best.flow.now() == Background && p.busy("", now)
		best.since, best.seenAt = now, now
		close(best.granted)
	}
	if slices.ContainsFunc(p.waiting, func(w *Slot) bool { return w.flow.now() != Background }) ||
		p.quiet && slices.ContainsFunc(p.held, func(h *Slot) bool { return h.flow.now() == Urgent && !h.slow }) {
		p.yield(false)
	}
	for _, w := range p.waiting {
		if !w.took && !p.s.slow[w.source] && (w.flow.now() != Background || !p.s.paused) {
			has := now.Sub(p.waited[w.source]) < aging
			w.took = (has || len(p.s.slow) > 0) && p.take(w, func(h *Slot, n, mine int) bool { return p.s.slow[h.source] && n > mine || has && n >= mine+2 })
		}
	}
	if len(p.waiting) > 0 && !p.ticking {
		p.ticking = true
		time.AfterFunc(patience, p.tick)
	}
}

// yield revokes slots of background work; those granted beside other work only if all is true.
func (p *Pool) yield(all bool) {
	for _, h := range p.held {
		if h.flow.now() == Background && h.revoked == "" && !p.costly && (all || !h.aged) {
			h.revoke(h.source)
		}
	}
}

func (sl *Slot) revoke(to string) {
	sl.revoked = to
	sl.cancel(ErrRevoked)
}

// before reports whether a is served before b.
func (p *Pool) before(a, b *Slot, now time.Time) bool {
	last := func(sl *Slot) bool { return p.s.slow[sl.source] && now.Sub(sl.since) < slowWait }
	if last(a) != last(b) && a.rank(now) == b.rank(now) {
		return last(b)
	}
	return cmp.Or(
		cmp.Compare(a.rank(now), b.rank(now)),
		cmp.Compare(p.share(a), p.share(b)),
		a.since.Compare(b.since),
	) < 0
}

// rank returns the class of a waiting slot. Background work that waited for aging counts as Soon.
func (sl *Slot) rank(now time.Time) Class {
	if sl.flow.now() == Background && now.Sub(sl.since) >= aging {
		return Soon
	}
	return sl.flow.now()
}

// share returns the number of slots that the source of sl has, including those revoked for it,
// among those that sl may have.
func (p *Pool) share(sl *Slot) int { return p.count(sl, sl.source) }

func (p *Pool) count(like *Slot, source string) (n int) {
	for _, h := range p.held {
		if (h.flow.now() == Urgent) == (like.flow.now() == Urgent) && (h.revoked == "" && h.source == source || h.revoked == source) {
			n++
		}
	}
	return n
}

// classes counts the held slots by class.
func (p *Pool) classes() (held [Background + 1]int) {
	for _, h := range p.held {
		held[h.flow.now()]++
	}
	return held
}

// admits reports whether w can have a slot now, where held are those of each class.
func (p *Pool) admits(w *Slot, held [Background + 1]int, now time.Time) bool {
	class, n := w.flow.now(), held[Soon]+held[Background]
	switch {
	case class == Urgent:
		return held[Urgent] < p.urgent
	case n >= p.size+p.first:
		return false
	case class == Background:
		if p.s.paused || held[Background] >= p.background {
			return false
		}
		if p.quiet && (p.busy(w.source, now) || p.busy("", now) && (now.Sub(w.since) < aging || p.share(w) > 0)) {
			return false
		}
	}
	return n < p.size || p.share(w) == 0
}

// busy reports whether work of a source, or of any if source is empty, that is not in the
// background runs and progresses, or waits.
func (p *Pool) busy(source string, now time.Time) bool {
	of := func(sl *Slot) bool { return sl.flow.now() != Background && (source == "" || sl.source == source) }
	return slices.ContainsFunc(p.held, func(h *Slot) bool { return of(h) && !h.slow }) ||
		slices.ContainsFunc(p.waiting, func(w *Slot) bool { return of(w) && now.Sub(w.since) < aging })
}

// tick measures progress and revokes slots for waiting ones.
func (p *Pool) tick() {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.ticking = false
	now := time.Now()
	for _, h := range p.held {
		if d := now.Sub(h.seenAt); d >= look {
			n := h.bytes.Load()
			h.slow = float64(n-h.seen) < MinRate*d.Seconds()
			h.seen, h.seenAt = n, now
			p.s.judge(h)
		}
	}
	for _, w := range p.waiting {
		if now.Sub(w.since) >= patience && (w.flow.now() != Background || !p.s.paused) {
			if p.take(w, func(h *Slot, n, mine int) bool { return !p.costly && n >= mine+2 || h.slow && n > mine }) && !p.costly {
				if len(p.waited) >= maxSlow || p.waited == nil {
					p.waited = map[string]time.Time{}
				}
				p.waited[w.source] = now
			}
		}
	}
	p.dispatch()
}

// judge records whether the source of a slot is slow.
func (s *Scheduler) judge(h *Slot) {
	switch {
	case !h.slow:
		delete(s.slow, h.source)
	case len(s.slow) >= maxSlow || s.slow == nil:
		s.slow = map[string]bool{h.source: true}
	default:
		s.slow[h.source] = true
	}
}

// take revokes a slot of another source for w, if may allows it for a source with n slots when that
// of w has mine. Of a flow the youngest slot is revoked, see Ordered.
func (p *Pool) take(w *Slot, may func(h *Slot, n, mine int) bool) bool {
	mine := p.share(w)
	var victim *Slot
	var most int
	for _, h := range slices.Backward(p.held) {
		if h.revoked != "" || h.source == w.source || (h.flow.now() == Urgent) != (w.flow.now() == Urgent) {
			continue
		}
		n := p.count(w, h.source)
		if n > most && may(h, n, mine) {
			victim, most = h, n
		}
	}
	for _, h := range slices.Backward(p.held) {
		if victim != nil && h.flow.whole() == victim.flow.whole() && (h.flow.now() == Urgent) == (w.flow.now() == Urgent) && h.revoked == "" {
			h.revoke(w.source)
			return true
		}
	}
	return false
}
