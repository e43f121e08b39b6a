package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

func schedule() *Scheduler {
	return NewScheduler(Options{Connections: 8, Chunk: 16, Readers: 8, Unpackers: 2})
}

// holdAll keeps taking slots for a source and holds each until it is revoked or ctx is done, with
// progress of the given bytes a second.
func holdAll(ctx context.Context, g *sync.WaitGroup, p *Pool, f *Flow, source string, n int, bytes int) {
	for range n {
		g.Go(func() {
			for ctx.Err() == nil {
				sl, err := p.Acquire(ctx, f, source)
				if err != nil {
					return
				}
				for sl.Context.Err() == nil {
					select {
					case <-sl.Context.Done():
					case <-time.After(100 * time.Millisecond):
						sl.Progress(bytes / 10)
					}
				}
				sl.Release()
			}
		})
	}
}

func held(p *Pool, source string) (n int) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, h := range p.held {
		if h.account.source == source {
			n++
		}
	}
	return n
}

// inUse returns how many slots are held or wait.
func inUse(p *Pool) int {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	n := len(p.held)
	for _, a := range p.accounts {
		for c := range a.waiting {
			n += a.waiting[c].Len()
		}
	}
	return n
}

// A source that holds all slots of a pool keeps at most half of them when another one waits, whether
// its slots hang, are slow or make progress.
func TestHalfForLaterSources(t *testing.T) {
	for name, bytes := range map[string]int{"hung": 0, "trickling": 2000, "fast": 100 << 20} {
		for class, pool := range map[string]func(*Scheduler) *Pool{
			"places": func(s *Scheduler) *Pool { return s.Places }, "buffers": func(s *Scheduler) *Pool { return s.Buffers },
			"readers": func(s *Scheduler) *Pool { return s.Buffers },
		} {
			t.Run(name+" "+class, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := schedule()
					p, c, n := pool(s), Soon, 16
					if class == "readers" {
						c, n = Urgent, 8
					}
					var g sync.WaitGroup
					ctx, cancel := context.WithCancel(t.Context())
					holdAll(ctx, &g, p, s.NewFlow(c), "attacker", 40, bytes)
					time.Sleep(time.Minute)
					if class == "places" {
						n = 8
					}
					if got := held(p, "attacker"); got != n {
						t.Fatalf("alone it holds %d of %d", got, n)
					}
					holdAll(ctx, &g, p, s.NewFlow(c), "victim", 40, 100<<20)
					time.Sleep(3 * time.Second)
					if a, v := held(p, "attacker"), held(p, "victim"); v < n/2 || a+v != n {
						t.Errorf("attacker holds %d, victim %d of %d", a, v, n)
					}
					cancel()
					g.Wait()
				})
			})
		}
	}
}

// A source that comes later gets its half as soon as it has waited for one slot, also if it acquires
// one at a time, and before it is known that the others hang.
func TestHalfAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		holdAll(ctx, &g, s.Buffers, s.NewFlow(Soon), "attacker", 40, 0)
		synctest.Wait()
		start, f := time.Now(), s.NewFlow(Soon)
		for range 8 {
			sl, err := s.Buffers.Acquire(ctx, f.Part(), "victim")
			if err != nil {
				t.Fatal(err)
			}
			defer sl.Release()
		}
		if d := time.Since(start); d > 2*patience {
			t.Errorf("half of the buffers took %v", d)
		}
		cancel()
		g.Wait()
	})
}

// A source that took a slot and gave up before it got it is forgotten like all others.
func TestSourcesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		p := s.Buffers
		var slots []*Slot
		for range p.size {
			sl, err := p.Acquire(t.Context(), s.NewFlow(Soon), "holder")
			if err != nil {
				t.Fatal(err)
			}
			slots = append(slots, sl)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*patience)
		defer cancel()
		if _, err := p.Acquire(ctx, s.NewFlow(Soon), "visitor"); err == nil {
			t.Fatal("a revoked slot was granted before it was released")
		}
		time.Sleep(2 * aging)
		for _, sl := range slots {
			sl.Release()
		}
		time.Sleep(2 * aging)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(p.accounts) != 0 {
			t.Errorf("%d sources are left", len(p.accounts))
		}
	})
}

// Sources that hang lose their slots one after the other, however many they are.
func TestManyHungSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 100 {
			holdAll(ctx, &g, s.Places, s.NewFlow(Soon), fmt.Sprint("attacker ", i), 1, 0)
		}
		time.Sleep(time.Minute)
		start, f := time.Now(), s.NewFlow(Soon)
		for range 5 {
			sl, err := s.Places.Acquire(ctx, f, "victim")
			if err != nil {
				t.Fatal(err)
			}
			sl.Release()
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("five places took %v", d)
		}
		cancel()
		g.Wait()
		time.Sleep(aging)
		synctest.Wait()
		if n := len(s.Places.accounts); n != 0 {
			t.Errorf("%d accounts without slots", n)
		}
	})
}

// An unpacker is revoked only if its source makes no progress, and a source without one gets one beside
// the running ones.
func TestUnpackers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		holdAll(ctx, &g, s.Unpackers, s.NewFlow(Soon), "busy", 5, 100<<20)
		time.Sleep(time.Minute)
		if n := held(s.Unpackers, "busy"); n != 2+1 && n != 2 {
			t.Errorf("%d unpackers", n)
		}
		one, err := s.Unpackers.Acquire(ctx, s.NewFlow(Soon), "other")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if one.Revoked() {
			t.Error("no source had less")
		}
		one.Release()
		cancel()
		g.Wait()

		ctx, cancel = context.WithCancel(t.Context())
		for i := range 4 {
			holdAll(ctx, &g, s.Unpackers, s.NewFlow(Soon), fmt.Sprint("hung ", i), 1, 0)
		}
		time.Sleep(time.Minute)
		start := time.Now()
		if one, err = s.Unpackers.Acquire(ctx, s.NewFlow(Soon), "victim"); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("waited %v for hung ones", d)
		}
		one.Release()
		cancel()
		g.Wait()
	})
}

// An unpacker that makes progress is not revoked, whatever its source did elsewhere.
func TestUnpackerOfSlowSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		holdAll(ctx, &g, s.Places, s.NewFlow(Soon), "source", 9, 0) // one waits: the others are found slow
		time.Sleep(10 * time.Second)
		var unpackers []*Slot
		for range 2 {
			sl, err := s.Unpackers.Acquire(ctx, s.NewFlow(Soon), "source")
			if err != nil {
				t.Fatal(err)
			}
			unpackers = append(unpackers, sl)
		}
		for i := range 4 {
			holdAll(ctx, &g, s.Unpackers, s.NewFlow(Soon), fmt.Sprint("other ", i), 1, 100<<20)
		}
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			for _, sl := range unpackers {
				if sl.Progress(10 << 20); sl.Revoked() {
					t.Fatal("an unpacker that makes progress is revoked")
				}
			}
		}
		for _, sl := range unpackers {
			sl.Release()
		}
		cancel()
		g.Wait()
	})
}

// Try revokes no slot, since it does not wait for it.
func TestTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		var slots []*Slot
		for range 8 {
			sl, err := s.Places.Acquire(ctx, s.NewFlow(Soon), "hung")
			if err != nil {
				t.Fatal(err)
			}
			slots = append(slots, sl)
		}
		holdAll(ctx, &g, s.Places, s.NewFlow(Soon), "hung", 1, 0) // waits: the others are found slow
		time.Sleep(10 * time.Second)
		if sl := s.Places.Try(ctx, s.NewFlow(Soon), "other"); sl != nil {
			t.Error("a ninth place")
		}
		for _, sl := range slots {
			if sl.Revoked() {
				t.Error("a slot is revoked")
			}
			sl.Release()
		}
		cancel()
		g.Wait()
	})
}

// A source of which many slots wait is served beside others, and so is a slow source in time.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for _, source := range []string{"a", "b", "c"} {
			holdAll(ctx, &g, s.Places, s.NewFlow(Soon), source, 100, 100<<20)
		}
		time.Sleep(10 * time.Second)
		for _, source := range []string{"a", "b", "c"} {
			if n := held(s.Places, source); n < 2 || n > 3 {
				t.Errorf("%s holds %d of 8", source, n)
			}
		}
		holdAll(ctx, &g, s.Places, s.NewFlow(Soon), "slow", 5, 1<<10)
		var n int
		for range 10 * 60 * 3 { // for three minutes
			time.Sleep(100 * time.Millisecond)
			n = max(n, held(s.Places, "slow"))
		}
		if n == 0 {
			t.Error("a slow source is never served")
		}
		cancel()
		g.Wait()
	})
}

// Background work waits while readers make progress, but not forever, not for readers without progress,
// and not once a caller waits for it.
func TestBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		back := s.NewFlow(Background)
		holdAll(ctx, &g, s.Places, back, "model", 20, 100<<20)
		time.Sleep(time.Second)
		if n := held(s.Places, "model"); n != 8 {
			t.Errorf("alone: %d", n)
		}
		rctx, stop := context.WithCancel(ctx)
		var readers sync.WaitGroup
		holdAll(rctx, &readers, s.Places, s.NewFlow(Urgent), "reader", 2, 100<<20)
		time.Sleep(aging / 4)
		if n := held(s.Places, "model"); n != 0 {
			t.Errorf("beside a reader: %d", n)
		}
		time.Sleep(3 * time.Second)
		if n := held(s.Places, "model"); n != 1 {
			t.Errorf("beside a reader for long: %d", n)
		}
		own, ended := context.WithCancel(ctx)
		var same sync.WaitGroup
		holdAll(own, &same, s.Places, s.NewFlow(Urgent), "model", 1, 100<<20)
		time.Sleep(time.Minute)
		if n := held(s.Places, "model"); n != 1 && n != 2 { // the reader's, and one that began before
			t.Errorf("beside a reader of the same model: %d", n)
		}
		ended()
		same.Wait()
		back.Promote(Soon)
		time.Sleep(time.Millisecond)
		if n := held(s.Places, "model"); n != 8 {
			t.Errorf("promoted: %d", n)
		}
		stop()
		readers.Wait()
		cancel()
		g.Wait()
	})
}

// Paused work does not run until it is resumed or promoted.
func TestPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		f := s.NewFlow(Background)
		holdAll(ctx, &g, s.Places, f, "model", 3, 1<<20)
		time.Sleep(time.Second)
		s.SetPaused(true)
		time.Sleep(time.Minute)
		if n := held(s.Places, "model"); n != 0 {
			t.Errorf("paused: %d", n)
		}
		f.Promote(Soon)
		time.Sleep(time.Second)
		if n := held(s.Places, "model"); n != 3 {
			t.Errorf("promoted: %d", n)
		}
		cancel()
		g.Wait()
	})
}

// Ordered uses all chunks once and in order, however often buffers are revoked.
func TestOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		var g sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 6)
		var filled atomic.Int64
		for i := range 6 {
			g.Go(func() {
				next, staged := 0, map[int]bool{}
				var mu sync.Mutex
				errs <- s.Buffers.Ordered(ctx, s.NewFlow(Soon), func() string { return fmt.Sprint(i % 3) }, 200, func(c int, sl *Slot) error {
					filled.Add(1)
					mu.Lock()
					there := staged[c]
					mu.Unlock()
					if !there {
						select {
						case <-time.After(time.Duration(50+c%7*100) * time.Millisecond):
						case <-sl.Context.Done():
							return context.Cause(sl.Context)
						}
					}
					mu.Lock()
					staged[c] = true
					mu.Unlock()
					return nil
				}, func(c int, _ *Slot) error {
					if c != next {
						return fmt.Errorf("chunk %d instead of %d", c, next)
					}
					next++
					time.Sleep(time.Millisecond)
					return nil
				})
			})
			time.Sleep(700 * time.Millisecond) // later sources revoke buffers of earlier ones
		}
		for range 6 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if n := filled.Load(); n < 6*200 || n > 2*6*200 {
			t.Errorf("%d fills of %d chunks", n, 6*200)
		}
		cancel()
		g.Wait()
		if n := inUse(s.Buffers); n != 0 {
			t.Errorf("%d slots are held or wait", n)
		}
	})
}

// A server provides bytes, or hangs.
type server struct {
	bytes int           // of a read; 0 means that it hangs
	every time.Duration // between reads
	err   error
	calls atomic.Int64
}

func (s *server) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	s.calls.Add(1)
	if s.err != nil {
		return nil, 0, s.err
	}
	return &body{s, ctx, n}, off, nil
}

type body struct {
	s    *server
	ctx  context.Context
	left int64
}

func (b *body) Close() error { return nil }

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	var tick <-chan time.Time
	if b.s.bytes > 0 {
		tick = time.After(b.s.every)
	}
	select {
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	case <-tick:
	}
	n := min(len(p), b.s.bytes, int(b.left))
	b.left -= int64(n)
	return n, nil
}

// canceled is an error of a source that wraps context.Canceled.
type canceled struct{}

func (canceled) Error() string { return "the client connection is closing" }
func (canceled) Unwrap() error { return context.Canceled }

// A range is fetched from another source if the first one hangs, is slow or fails, also from one that
// is added later; a slow source without alternative is waited for.
func TestRange(t *testing.T) {
	good := func() *server { return &server{bytes: 1 << 20, every: 10 * time.Millisecond} }
	for name, tc := range map[string]struct {
		first *server
		later *server // added after 5 seconds
		also  *server
		want  error
		max   time.Duration
		calls int64 // maximum number of requests to also; 0 is no limit
	}{
		"good":                             {first: good(), max: time.Second},
		"hung":                             {first: &server{}, also: good(), max: 2 * time.Second},
		"trickling":                        {first: &server{bytes: 200, every: time.Second}, also: good(), max: 2 * time.Second},
		"hung, one joins":                  {first: &server{}, later: good(), max: 8 * time.Second},
		"slow beside one that has nothing": {first: &server{err: errdefs.ErrNotFound}, also: &server{bytes: 50 << 10, every: time.Second}, max: 90 * time.Second, calls: 1},
		"slow alone":                       {first: &server{bytes: 50 << 10, every: time.Second}, max: 90 * time.Second},
		"canceled":                         {first: &server{err: canceled{}}, also: good(), max: time.Second},
		"canceled alone":                   {first: &server{err: canceled{}}, want: canceled{}, max: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var from Sources
				var received atomic.Int64
				list := []Source{{Name: "first/x", Fetcher: tc.first}}
				if tc.also != nil {
					list = append(list, Source{Name: "also/x", Fetcher: tc.also})
				}
				from.Set("a", list)
				s := schedule()
				f := Fetch{Scheduler: s, Size: 8 << 20, From: &from, Flow: s.NewFlow(Soon), Received: &received}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.later != nil {
					go func() {
						time.Sleep(5 * time.Second)
						from.Set("b", []Source{{Name: "later/x", Fetcher: tc.later}})
					}()
				}
				start := time.Now()
				_, err := f.Range(ctx, nil, make([]byte, 4<<20), 0, nil)
				d := time.Since(start)
				if tc.want == nil && err != nil || tc.want != nil && err == nil || errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
				if d > tc.max {
					t.Errorf("it took %v", d)
				}
				if tc.want == nil && received.Load() < 4<<20 {
					t.Errorf("%d bytes", received.Load())
				}
				if tc.calls > 0 && tc.also.calls.Load() > tc.calls {
					t.Errorf("%d requests", tc.also.calls.Load())
				}
				if n := inUse(s.Places); n != 0 {
					t.Errorf("%d places are held or wait", n)
				}
			})
		})
	}
}

// TestRate checks that the rates of the scheduler and of the work limit background transfers only, until these are
// promoted, and that a rate may become lower while bytes arrive.
func TestRate(t *testing.T) {
	const mebi = 1 << 20
	fast, slow := [2]time.Duration{0, time.Second}, [2]time.Duration{3500 * time.Millisecond, 5 * time.Second}
	for name, tt := range map[string]struct {
		class    Class
		all, own int64
		during   func(s *Scheduler, f *Flow) // after 3 ms
		took     [2]time.Duration
	}{
		"all":             {class: Background, all: mebi, took: slow},
		"all, awaited":    {class: Soon, all: mebi, took: fast},
		"own":             {class: Background, own: mebi, took: slow},
		"own, awaited":    {class: Soon, own: mebi, took: fast},
		"own is lower":    {class: Background, all: 16 * mebi, own: mebi, took: slow},
		"all is lower":    {class: Background, all: mebi, own: 16 * mebi, took: slow},
		"becomes lower":   {class: Background, during: func(s *Scheduler, _ *Flow) { s.SetRate(mebi) }, took: slow},
		"becomes awaited": {class: Background, own: mebi, during: func(_ *Scheduler, f *Flow) { f.Promote(Soon) }, took: fast},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := schedule()
				s.SetRate(tt.all)
				flow := s.NewFlow(tt.class)
				if tt.own > 0 {
					flow.Limit(NewLimiter(tt.own))
				}
				var from Sources
				var received atomic.Int64
				from.Set("a", []Source{{Name: "a/b", Fetcher: &server{bytes: 1 << 17, every: time.Millisecond}}, {Name: "c/d", Fetcher: &server{}}})
				f := Fetch{Scheduler: s, Size: 8 << 20, From: &from, Flow: flow.Part(), Received: &received}
				if tt.during != nil {
					time.AfterFunc(3*time.Millisecond, func() { tt.during(s, flow) })
				}
				start := time.Now()
				if _, err := f.Range(t.Context(), nil, make([]byte, 4<<20), 0, nil); err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d < tt.took[0] || d > tt.took[1] {
					t.Errorf("took %v", d)
				}
			})
		})
	}
}
