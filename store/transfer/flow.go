package transfer

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Class is the urgency of work.
type Class int

const (
	Urgent     Class = iota // a reader waits for the bytes
	Soon                    // a reader will need them, or a caller waits for the whole model
	Background              // no caller waits

	classes = Background + 1
)

// A Flow is a piece of work, such as fetching a blob. Its class applies to all its slots.
type Flow struct {
	s     *Scheduler
	of    *Flow // the work that it belongs to, or nil
	class Class // guarded by Scheduler.mu

	slots  map[*Slot]bool // of the whole work, waiting and held; guarded by Scheduler.mu
	limits []*Limiter     // of the whole work

	registries, mirrors atomic.Int64 // bytes, of the whole work

	served chan struct{} // closed by close
	close  func()

	began time.Time
	mu    sync.Mutex // guards spent; the last lock
	spent [stages]clock
}

// A Stage is what the goroutines of a Flow spend their time on.
type Stage int

const (
	Network Stage = iota // a request and its bytes, with pauses between attempts
	Paced                // the rate limit; it is a part of Network
	Hash                 // hashing and unpacking, by any number of goroutines
	InOrder              // the same, by one goroutine: more of them would not help
	Disk                 // writing and syncing

	stages
)

// Spent is the time spent in each Stage, the sum over all goroutines.
type Spent [stages]time.Duration

// A clock is the time that goroutines spend, as sum + n*now for n that are at it.
type clock struct{ n, sum time.Duration }

// NewFlow returns a Flow.
func (s *Scheduler) NewFlow(c Class) *Flow {
	served := make(chan struct{})
	return &Flow{
		s: s, class: c, slots: map[*Slot]bool{}, limits: []*Limiter{s.limit}, began: time.Now(),
		served: served, close: sync.OnceFunc(func() { close(served) }),
	}
}

// Served returns a channel that is closed by Serve, and by Fetch.All for its whole work: when the last chunk has a
// buffer, or because the server does not support ranges.
func (f *Flow) Served() <-chan struct{} { return f.whole().served }

// Serve records that the whole work asks for no further buffers, or for one at a time.
func (f *Flow) Serve() { f.whole().close() }

// Limit limits the rate of the work while it is Background, beside Scheduler.SetRate. It must be called before the
// Flow is used; nil is no limit.
func (f *Flow) Limit(l *Limiter) *Flow {
	if l != nil {
		f.limits = append(f.limits, l)
	}
	return f
}

// step returns how many bytes the work may read at once while it is Background, at most n.
func (f *Flow) step(n int) int {
	for _, l := range f.whole().limits {
		n = l.step(n)
	}
	return n
}

// Enter records that the caller spends time on the whole work, until leave is called.
func (f *Flow) Enter(s Stage) (leave func()) {
	f.whole().enter(s, 1)
	return func() { f.whole().enter(s, -1) }
}

func (f *Flow) enter(s Stage, n time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spent[s].n += n
	f.spent[s].sum -= n * time.Since(f.began)
}

// Spent returns the time spent on the work.
func (f *Flow) Spent() (all Spent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Since(f.began)
	for s, c := range f.spent {
		all[s] = c.sum + c.n*now
	}
	return all
}

// Received returns the bytes that the work has received from registries themselves, and from mirrors.
func (f *Flow) Received() (registries, mirrors int64) { return f.registries.Load(), f.mirrors.Load() }

// count records that n bytes came from an endpoint.
func (f *Flow) count(e *Endpoint, n int) {
	of := &f.whole().registries
	if e.isMirror() {
		of = &f.whole().mirrors
	}
	of.Add(int64(n))
}

// Part returns a Flow that is as urgent as f, and can be promoted separately.
func (f *Flow) Part() *Flow { return &Flow{s: f.s, of: f, class: Background} }

// now returns the class. The caller holds Scheduler.mu.
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

// Class returns the current class of the work.
func (f *Flow) Class() Class {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.now()
}

// Promote makes the work, and its waiting slots, at least as urgent as c.
func (f *Flow) Promote(c Class) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if c < f.class {
		f.set(c)
	}
}

// rest makes a part as urgent as the whole again.
func (f *Flow) rest() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.class != Background {
		f.set(Background)
	}
}

// set sets the class. The caller holds Scheduler.mu.
func (f *Flow) set(c Class) {
	f.class = c
	for sl := range f.whole().slots {
		sl.reclass()
	}
	f.s.dispatch()
}
