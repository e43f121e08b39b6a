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

// A Class says how urgent work is.
type Class int

const (
	Urgent     Class = iota // a reader waits for the bytes
	Soon                    // a reader will want them, or somebody waits for the whole model
	Background              // nobody waits
)

// The times of a Scheduler. See Pool.
const (
	patience = 200 * time.Millisecond // before a waiting slot takes another's
	look     = time.Second            // over which the progress of a slot is taken
	aging    = 2 * time.Second        // after which work that nobody waits for is served beside other work
)

// slowWait is how long work of a source that was slow is served after that of others.
const slowWait = time.Minute

// maxSlow is how many slow sources are remembered.
const maxSlow = 4096

// MinRate is how many bytes a second a transfer brings at least, if it is to keep a slot that somebody
// else waits for, or a range that another source may have.
const MinRate = 64 << 10

// ErrRevoked is the cause of the end of a slot's context when the slot is given to another source.
// Whoever had it releases it and asks for another.
var ErrRevoked = errors.New("another source goes first")

// A Scheduler shares what a node has between sources: the places of running requests, the buffers
// that hold what they bring, and the unpackers of archives.
type Scheduler struct {
	Places    *Pool
	Buffers   *Pool
	Unpackers *Pool

	limit *rate.Limiter // of work in the background, in bytes

	mu     sync.Mutex // guards what follows, and all pools and flows
	paused bool
	slow   map[string]bool // sources that last brought less than MinRate while another waited
}

// Options are the sizes of the pools of a Scheduler.
type Options struct {
	Connections int // places; urgent work has as many of its own
	Chunk       int // bytes of a buffer
	Readers     int // buffers of urgent work; all others share 2*Connections
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

// SetPaused stops work in the background, or lets it go on. It does not wait for what is stopped.
func (s *Scheduler) SetPaused(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
	for _, p := range s.pools() {
		if paused {
			p.yield(true)
		}
		p.dispatch()
	}
}

// Paused says whether work in the background is stopped.
func (s *Scheduler) Paused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused
}

// SetRate limits all work in the background together to a number of bytes a second; 0 is no limit.
func (s *Scheduler) SetRate(bytes int64) {
	if bytes <= 0 {
		s.limit.SetLimit(rate.Inf)
		return
	}
	s.limit.SetBurst(int(max(4<<10, bytes/10))) // a tenth of a second: who is promoted waits no longer
	s.limit.SetLimit(rate.Limit(bytes))
}

// A Flow is one piece of work, such as bringing a blob. All its slots are as urgent as it is.
type Flow struct {
	s     *Scheduler
	of    *Flow // the work that it is a part of, or nil
	class Class // guarded by Scheduler.mu
}

// NewFlow returns a Flow.
func (s *Scheduler) NewFlow(c Class) *Flow { return &Flow{s: s, class: c} }

// Part returns a Flow that is as urgent as f, and can be promoted alone.
func (f *Flow) Part() *Flow { return &Flow{s: f.s, of: f, class: Background} }

// now returns the class. Who calls it holds Scheduler.mu.
func (f *Flow) now() Class {
	if f.of == nil {
		return f.class
	}
	return min(f.class, f.of.now())
}

func (f *Flow) whole() *Flow {
	if f.of == nil {
		return f
	}
	return f.of.whole()
}

// Class returns how urgent the work is now.
func (f *Flow) Class() Class {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.now()
}

// Promote makes the work at least as urgent as c, and what it waits for too.
func (f *Flow) Promote(c Class) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if c >= f.class {
		return
	}
	f.class = c
	for _, p := range f.s.pools() {
		p.dispatch()
	}
}

// rest makes a part as urgent as the whole again.
func (f *Flow) rest() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.class = Background
	for _, p := range f.s.pools() {
		p.dispatch()
	}
}

// A Pool is a number of slots that sources share.
//
// Urgent work has slots of its own. All others are given to the more urgent work first, then to
// sources that were not seen to be slow, and then to the source that holds fewest. A slot that waits
// for longer than patience takes one from the source that holds most, if that is at least two more than
// its own has; if all have their share, from a source whose slot brings less than MinRate. Of a source
// that was seen to be slow it takes one at once, and so does who has waited for one of them a moment ago:
// patience is for one slot, not for each. What is taken is revoked: its context ends. So a source never keeps
// more than half of a pool while another waits, whatever it lets hang.
//
// Work in the background gives way at once to whoever waits, and where the pool is quiet to all that
// runs and brings something; after the time aging it is served beside the work of other sources all the
// same, one slot for each source.
type Pool struct {
	s          *Scheduler
	size       int  // slots of work that is not urgent
	urgent     int  // slots of work that is
	background int  // slots of size that work in the background may have
	first      int  // slots beyond size, for sources that have none
	quiet      bool // background work waits while other work runs
	costly     bool // what is revoked is lost: only who brings nothing loses it

	memory *offheap.Pool // of buffers; nil: slots have none

	held    []*Slot              // oldest first
	waiting []*Slot              // oldest first
	ticking bool                 // tick is to come
	waited  map[string]time.Time // when a source took a slot that it had waited for; at most maxSlow
}

// A Slot is one of a Pool.
type Slot struct {
	// Context ends with the context that the slot was asked with, or when the slot is revoked.
	Context context.Context

	// Buf is a buffer, for slots of Scheduler.Buffers. Nothing of it may be kept beyond Release.
	Buf     []byte
	scratch []byte

	pool   *Pool
	flow   *Flow
	source string
	cancel context.CancelCauseFunc
	bytes  atomic.Int64

	// What follows is guarded by Scheduler.mu.
	granted chan struct{} // closed when it is held
	since   time.Time     // that it waits, or is held
	aged    bool          // it was served although other work runs
	took    bool          // it took a slot of a slow source while it waited
	revoked string        // the source that gets it; empty: not revoked
	seen    int64         // bytes at the time seenAt
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

// ask returns a slot that waits, or is granted already.
func (p *Pool) ask(ctx context.Context, f *Flow, source string) *Slot {
	sl := &Slot{pool: p, flow: f, source: source, granted: make(chan struct{}), since: time.Now()}
	sl.Context, sl.cancel = context.WithCancelCause(ctx)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.waiting = append(p.waiting, sl)
	p.dispatch()
	return sl
}

// With calls f with a slot, again with another one when the slot was revoked meanwhile.
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

// Scratch returns a second buffer, for who has one.
func (sl *Slot) Scratch() (_ []byte, err error) {
	if sl.scratch == nil {
		sl.scratch, err = sl.pool.memory.Take()
	}
	return sl.scratch, err
}

// Try is Acquire for who does not wait: it returns nil if no slot can be had now.
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

// Flow returns the work that the slot is for.
func (sl *Slot) Flow() *Flow { return sl.flow }

// Progress says that n bytes were brought with the slot.
func (sl *Slot) Progress(n int) { sl.bytes.Add(int64(n)) }

// Revoked says whether the slot is wanted back.
func (sl *Slot) Revoked() bool { return context.Cause(sl.Context) == ErrRevoked }

// Release gives the slot back, or gives up waiting for it.
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

// dispatch grants what can be granted, and sees to it that those who wait on are looked after. Who
// calls it, and what follows, holds Scheduler.mu.
func (p *Pool) dispatch() {
	now := time.Now()
	for {
		var best *Slot
		for _, w := range p.waiting {
			if p.admits(w, now) && (best == nil || p.before(w, best, now)) {
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
			w.took = p.take(w, func(h *Slot, n, mine int) bool { return p.s.slow[h.source] && n > mine || has && n >= mine+2 })
		}
	}
	if len(p.waiting) > 0 && !p.ticking {
		p.ticking = true
		time.AfterFunc(patience, p.tick)
	}
}

// yield revokes slots of work in the background; those that were served beside other work only if
// all is asked for.
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

// before says whether a is served before b.
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

// rank is the class of a slot that waits. Work that has waited for long is as good as other work.
func (sl *Slot) rank(now time.Time) Class {
	if sl.flow.now() == Background && now.Sub(sl.since) >= aging {
		return Soon
	}
	return sl.flow.now()
}

// share returns how many slots the source of sl has, or will have when what was revoked for it is
// given back, among those that sl may have.
func (p *Pool) share(sl *Slot) int { return p.count(sl, sl.source) }

func (p *Pool) count(like *Slot, source string) (n int) {
	for _, h := range p.held {
		if (h.flow.now() == Urgent) == (like.flow.now() == Urgent) && (h.revoked == "" && h.source == source || h.revoked == source) {
			n++
		}
	}
	return n
}

// admits says whether a slot can be had now by w.
func (p *Pool) admits(w *Slot, now time.Time) bool {
	var held [Background + 1]int
	for _, h := range p.held {
		held[h.flow.now()]++
	}
	switch w.flow.now() {
	case Urgent:
		return held[Urgent] < p.urgent
	case Background:
		if p.s.paused || held[Background] >= p.background {
			return false
		}
		if p.quiet && (p.busy(w.source, now) || p.busy("", now) && (now.Sub(w.since) < aging || p.share(w) > 0)) {
			return false
		}
	}
	n := held[Soon] + held[Background]
	return n < p.size || n < p.size+p.first && p.share(w) == 0
}

// busy says whether work of a source, or of any if it is empty, that is not in the background runs and
// brings something, or waits.
func (p *Pool) busy(source string, now time.Time) bool {
	of := func(sl *Slot) bool { return sl.flow.now() != Background && (source == "" || sl.source == source) }
	return slices.ContainsFunc(p.held, func(h *Slot) bool { return of(h) && !h.slow }) ||
		slices.ContainsFunc(p.waiting, func(w *Slot) bool { return of(w) && now.Sub(w.since) < aging })
}

// tick looks after those who wait.
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

// judge remembers whether the source of a slot is slow.
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

// take revokes a slot of another source for w, if there is one that may be taken: of a source with n slots,
// when that of w has mine. Of a flow the youngest goes, see Ordered.
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
