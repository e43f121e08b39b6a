package transfer

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/offheap"
)

// Times of a Scheduler. See Pool.
const (
	patience = 200 * time.Millisecond // before a waiting slot takes that of another source
	look     = time.Second            // interval over which the progress of a slot is measured; see Endpoint.Gather
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

	limit  *Limiter
	pieces pieces

	mu     sync.Mutex // guards the following, and all pools and flows
	paused bool
	slow   map[string]bool // sources that last were below MinRate while another one waited; at most maxSlow
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
	s := &Scheduler{
		limit: NewLimiter(0), slow: map[string]bool{},
		pieces: pieces{most: max(1, o.Connections/2), readers: map[pieceKey]*pieceReader{}, lanes: map[lane]*queue{}},
	}
	s.Places = &Pool{s: s, size: o.Connections, urgent: o.Connections, background: o.Connections, quiet: true}
	s.Buffers = &Pool{s: s, size: 2 * o.Connections, urgent: o.Readers, background: max(2, o.Connections/2), memory: offheap.New(o.Chunk)}
	s.Unpackers = &Pool{s: s, size: o.Unpackers, urgent: o.Unpackers, background: o.Unpackers, first: o.Unpackers, costly: true}
	for _, p := range s.pools() {
		p.accounts = map[string]*account{}
	}
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
func (s *Scheduler) SetRate(bytes int64) { s.limit.Set(bytes) }

// A Pool is a number of slots that sources share.
//
// Urgent work has its own slots. Other slots go to the more urgent work first, then to sources that
// are not slow, and then to the source that has the fewest; sources with equal shares take turns. A
// source that waits longer than patience takes slots from those that hold at least two more than it;
// it takes a slot below MinRate also from a source that holds one more, at once if that source is
// known to be slow and it is not. A source waits once, not for each slot. A taken slot is revoked:
// its context ends. A source therefore never keeps more than half of a pool while another one waits,
// even if it hangs.
//
// Background work gives way at once to waiting work and, in a quiet pool, to all running work that
// progresses. After the time aging it is nevertheless served beside the work of other sources, one
// slot for each source.
//
// What a slot costs depends on the size of the pool, not on how many slots or sources wait: each
// source has its own queue, and of these only those of sources that hold slots are passed over.
type Pool struct {
	s          *Scheduler
	size       int  // slots of work that is not urgent
	urgent     int  // slots of urgent work
	background int  // slots of size that background work may have
	first      int  // slots beyond size, for sources that have none
	quiet      bool // background work waits while other work runs
	costly     bool // the work of a revoked slot is lost: only slots without progress are revoked

	memory *offheap.Pool // of buffers; nil: slots have none

	held     []*Slot               // oldest first
	accounts map[string]*account   // by source
	turns    [classes][2]list.List // accounts with waiting slots; [1] those that are served after others
	ticking  bool                  // tick is scheduled
}

// An account is what a source has in a Pool.
type account struct {
	source  string
	share   [2]int // slots that it holds or that are revoked for it; [1] of urgent work
	waiting [classes]list.List
	turn    [classes]*list.Element // in Pool.turns
	late    [classes]int           // index of its turn in Pool.turns
	took    time.Time              // when it last took a slot of another source
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
	cancel context.CancelCauseFunc
	bytes  atomic.Int64
	gather atomic.Int64              // Endpoint.Gather of the source that is asked
	begun  atomic.Pointer[time.Time] // when the answer of a server began; nil: it has not

	// The following fields are guarded by Scheduler.mu.
	account *account
	class   Class         // of flow
	queued  *list.Element // in account.waiting
	granted chan struct{} // closed when it is granted
	since   time.Time     // start of waiting
	aged    bool          // it was granted although other work runs
	revoked *account      // which gets it; nil: not revoked
	seen    int64         // bytes at seenAt
	seenAt  time.Time
	slow    bool // as of seenAt
}

// Acquire waits for a slot for work that source pays for (Source.Key). Its error is that of ctx.
func (p *Pool) Acquire(ctx context.Context, f *Flow, source string) (sl *Slot, err error) {
	sl = p.ask(ctx, f, source, true)
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

// ask returns a slot that waits, or is already granted. It revokes a slot for it only if take is set.
func (p *Pool) ask(ctx context.Context, f *Flow, source string, take bool) *Slot {
	sl := &Slot{pool: p, flow: f, granted: make(chan struct{}), since: time.Now()}
	sl.Context, sl.cancel = context.WithCancelCause(ctx)
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if sl.account = p.accounts[source]; sl.account == nil {
		sl.account = &account{source: source}
		p.accounts[source] = sl.account
	}
	f.whole().slots[sl] = true
	sl.class = f.now()
	p.enqueue(sl)
	p.dispatch()
	if take {
		p.take(sl.account, sl.class, sl.since)
	}
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
	sl := p.ask(ctx, f, source, false)
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

// expect records which endpoint is asked with the slot, if there is one.
func (sl *Slot) expect(e *Endpoint) {
	if sl != nil {
		sl.gather.Store(int64(e.gather()))
	}
}

// begin records that the answer of a server has begun.
func (sl *Slot) begin() { sl.begun.Store(new(time.Now())) }

// Revoked reports whether the slot is revoked.
func (sl *Slot) Revoked() bool { return context.Cause(sl.Context) == ErrRevoked }

// Release frees the slot, or stops waiting for it.
func (sl *Slot) Release() {
	p := sl.pool
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	sl.cancel(nil)
	if sl.queued != nil {
		p.dequeue(sl)
	} else if i := slices.Index(p.held, sl); i >= 0 {
		sl.count(-1)
		p.held = slices.Delete(p.held, i, i+1)
	}
	delete(sl.flow.whole().slots, sl)
	p.forget(sl.account)
	if sl.revoked != nil {
		p.forget(sl.revoked)
	}
	for _, b := range []*[]byte{&sl.Buf, &sl.scratch} {
		if *b != nil {
			p.memory.Put(*b)
			*b = nil
		}
	}
	p.dispatch()
}
