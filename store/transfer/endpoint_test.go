package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A mirrored blob is read through a mirror and its origin.
type mirrored struct {
	t              *testing.T
	mirror, origin *server
	endpoint       *Endpoint
	from           Sources
	fetch          Fetch
}

func newMirrored(t *testing.T, mirror, origin *server) *mirrored {
	m := &mirrored{t: t, mirror: mirror, origin: origin, endpoint: &Endpoint{Name: "mirror", Mirror: true, Counts: &Counts{}}}
	m.from.Set("a", m.sources())
	s := schedule()
	m.fetch = Fetch{Scheduler: s, Size: 1 << 40, From: &m.from, Flow: s.NewFlow(Soon), Received: new(atomic.Int64)}
	return m
}

func (m *mirrored) sources() []Source {
	return []Source{{Name: "a/b", Endpoint: m.endpoint, Fetcher: m.mirror}, {Name: "a/b", Endpoint: &Endpoint{Name: "origin"}, Fetcher: m.origin}}
}

// ranges fetches n ranges of 4 MiB, six at a time, and returns how long it took.
func (m *mirrored) ranges(n int64) time.Duration {
	m.t.Helper()
	start := time.Now()
	var next atomic.Int64
	var g sync.WaitGroup
	for range 6 {
		g.Go(func() {
			buf := make([]byte, 4<<20)
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if _, err := m.fetch.Range(m.t.Context(), nil, buf, i<<22, nil); err != nil {
					m.t.Error(err)
				}
			}
		})
	}
	g.Wait()
	return time.Since(start)
}

// quick is a server that gives 4 MiB in 0.2 seconds.
func quick() *server { return &server{bytes: 256 << 10, every: 12 * time.Millisecond} }

// TestMirrorFaults checks how much time a mirror that fails costs, and that it is used again when it is well.
func TestMirrorFaults(t *testing.T) {
	for name, fault := range map[string]func(*server){
		"dead":      func(s *server) { s.err = errdefs.ErrUnavailable },
		"hung":      func(s *server) { s.bytes = 0 },
		"trickling": func(s *server) { s.bytes, s.every = 7<<10, 100*time.Millisecond }, // 70 KiB/s, above MinRate
		"empty":     func(s *server) { s.err = errdefs.ErrNotFound },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMirrored(t, quick(), quick())
				direct := m.ranges(600)
				if n := m.origin.calls.Load(); n > 0 {
					t.Errorf("the origin got %d requests beside a mirror that is well", n)
				}
				fault(m.mirror)
				m.mirror.calls.Store(0)
				if took := m.ranges(600); took > direct+5*time.Second {
					t.Errorf("600 ranges took %v, and %v without the fault", took, direct)
				}
				if n := m.mirror.calls.Load(); n > 30 {
					t.Errorf("the mirror got %d of 600 requests", n)
				}
				m.ranges(1200)
				*m.mirror = server{bytes: 256 << 10, every: 12 * time.Millisecond}
				time.Sleep(time.Minute)
				m.origin.calls.Store(0)
				m.ranges(60)
				if n := m.origin.calls.Load(); n > 12 {
					t.Errorf("the origin got %d of 60 requests a minute after the mirror is well again", n)
				}
			})
		})
	}
}

// TestMirrorMisses checks that a range that a mirror does not have is one range.
func TestMirrorMisses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, quick(), quick())
		for i := range int64(20) {
			if m.mirror.err = nil; i == 2 {
				m.mirror.err = errdefs.ErrNotFound
			}
			if _, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<20), i<<20, nil); err != nil {
				t.Fatal(err)
			}
		}
		if mirror, origin := m.mirror.calls.Load(), m.origin.calls.Load(); mirror != 20 || origin != 1 {
			t.Errorf("the mirror got %d requests and the origin %d, want 20 and 1", mirror, origin)
		}
		if failures, bytes := failures(m.endpoint), m.endpoint.Counts.Bytes.Load(); failures != 1 || bytes != 19<<20 {
			t.Errorf("counted %d failures and %d bytes", failures, bytes)
		}
		if direct, mirrors := m.fetch.Flow.Received(); direct != 1<<20 || mirrors != 19<<20 {
			t.Errorf("the work received %d bytes from the registry and %d from the mirror", direct, mirrors)
		}
	})
}

// TestMirrorReasons checks that it is known why a mirror was left.
func TestMirrorReasons(t *testing.T) {
	broken := errors.New("connection reset")
	for want, mirror := range map[Reason]*server{
		Absent: {err: errdefs.ErrNotFound}, Failed: {err: fmt.Errorf("%w: %s", broken, strings.Repeat("é", maxLeft))}, Slow: {bytes: 1 << 10, every: 100 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMirrored(t, mirror, quick())
			if last := m.endpoint.Counts.Last(); last != (Left{}) {
				t.Errorf("before: %v", last)
			}
			if _, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<20), 0, nil); err != nil {
				t.Fatal(err)
			}
			last := m.endpoint.Counts.Last()
			if m.endpoint.Counts.Left(want) != 1 || failures(m.endpoint) != 1 || last.Reason != want || last.At.IsZero() {
				t.Errorf("%s: %+v", want, last)
			}
			switch {
			case want == Slow && (!strings.Contains(last.Text, errSlow.Error()) || !strings.Contains(last.Text, "kB in ")), want == Failed && !strings.Contains(last.Text, broken.Error()):
				t.Errorf("%s: %v", want, last.Text)
			case len(last.Text) > maxLeft+len("…") || !utf8.ValidString(last.Text):
				t.Errorf("%s: a text of %d bytes, %q", want, len(last.Text), last.Text)
			}
		})
	}
}

// TestAbsentOrigin checks that a source without the blob is not asked for each range, and does not disturb those that
// run.
func TestAbsentOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, &server{err: errdefs.ErrNotFound}, &server{bytes: 64 << 10, every: 50 * time.Millisecond})
		m.from.Set("a", []Source{{Name: "content store", Fetcher: m.mirror}, {Name: "a/b", Fetcher: m.origin}})
		m.ranges(40)
		if n := m.mirror.calls.Load(); n > 6+5 { // the ranges that begin together, and after 1, 2, 4, 8 and 16 seconds
			t.Errorf("the source without the blob got %d requests", n)
		}
		if n := m.origin.calls.Load(); n > 40+11 {
			t.Errorf("the other one got %d requests for 40 ranges: running ones were interrupted", n)
		}
		slow := newMirrored(t, m.mirror, &server{bytes: 2 << 10, every: 100 * time.Millisecond}) // slower than MinRate
		slow.from.Set("a", []Source{{Name: "content store", Fetcher: slow.mirror}, {Name: "a/b", Fetcher: slow.origin}})
		var both sync.WaitGroup
		for off := range int64(2) { // the second one begins without asking the content store
			both.Go(func() {
				if _, err := slow.fetch.Range(t.Context(), nil, make([]byte, 256<<10), off<<20, nil); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(500 * time.Millisecond)
		}
		both.Wait()
		if n := slow.origin.calls.Load(); n != 2 {
			t.Errorf("a slow origin got %d requests for 2 ranges: what has not the blob is no better", n)
		}
		gone := errors.New("404 at the registry")
		m.from.Set("a", []Source{{Name: "content store", Fetcher: m.mirror}, {Name: "a/b", Endpoint: &Endpoint{Name: "origin"}, Fetcher: &server{err: fmt.Errorf("%w: %w", gone, errdefs.ErrNotFound)}}})
		for range 2 { // also when the content store is asked last
			if _, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<10), 0, nil); !errors.Is(err, gone) {
				t.Errorf("the error is not that of the registry: %v", err)
			}
		}
	})
}

// TestMirrorNotAsked checks that a mirror that is not asked for a blob is not well because of that.
func TestMirrorNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, &server{err: fmt.Errorf("private: %w", ErrNotAsked)}, quick())
		m.endpoint.leave(time.Now(), failed, nil)
		rests := m.endpoint.Resting()
		time.Sleep(2 * time.Second)
		if src, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<20), 0, nil); err != nil || src.Endpoint.Mirror {
			t.Errorf("got %v, %v", src.Endpoint.Name, err)
		}
		if n := failures(m.endpoint); n != 1 || !m.endpoint.Resting().Equal(rests) {
			t.Errorf("%d failures, and rests until %v, want 1 and %v", n, m.endpoint.Resting(), rests)
		}
		if !m.endpoint.enter(true) || m.endpoint.enter(true) {
			t.Error("not one request finds out whether it is well again")
		}
		m.from.Set("a", m.sources()[:1])
		if _, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<20), 0, nil); !errdefs.IsNotFound(err) {
			t.Errorf("the mirror alone: %v", err)
		}
	})
}

// TestSlowLink checks that a mirror stays in use if the origin is as slow as it is.
func TestSlowLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := func() *server { return &server{bytes: 20 << 10, every: 100 * time.Millisecond} } // 200 KiB/s
		m := newMirrored(t, slow(), slow())
		m.ranges(60)
		if n := m.origin.calls.Load(); n > 8 {
			t.Errorf("the origin got %d of 60 requests", n)
		}
	})
}

// TestPatience checks that an endpoint has its own time to begin an answer, and to send the first byte of it.
func TestPatience(t *testing.T) {
	for _, tt := range []struct {
		patience, gather time.Duration
		mirror           bool
	}{{0, 0, false}, {5 * time.Second, 0, true}, {0, 5 * time.Second, true}, {0, 2 * time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			m := newMirrored(t, &server{bytes: 4 << 20, every: 3500 * time.Millisecond}, quick()) // the header comes at once
			m.endpoint.Patience, m.endpoint.Gather = tt.patience, tt.gather
			src, err := m.fetch.Range(t.Context(), nil, make([]byte, 256<<10), 0, nil)
			if err != nil || src.Endpoint.Mirror != tt.mirror {
				t.Errorf("%+v: the bytes came from %s, %v", tt, src.Endpoint.Name, err)
			}
		})
	}
}

// late is a server whose header takes a time.
type late struct {
	Fetcher
	header time.Duration
}

func (s late) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	if err := Wait(ctx, s.header, nil); err != nil {
		return nil, 0, err
	}
	return s.Fetcher.Fetch(ctx, d, size, off, n)
}

// TestLateHeader checks that a mirror of which the first part is long in coming, as it is where many nodes read from one,
// has the same time whether its header comes before or with that part, and a longer one while others come; urgent work waits
// for a header for Patience only.
func TestLateHeader(t *testing.T) {
	for _, tt := range []struct {
		class         Class
		header, first time.Duration
		heard         bool // 20 seconds later
		mirror        bool
	}{
		{Soon, 25 * time.Second, 0, false, true},
		{Soon, 25 * time.Second, 25 * time.Second, false, true},
		{Soon, 32 * time.Second, 0, false, false},
		{Soon, 45 * time.Second, 0, true, true},
		{Soon, 55 * time.Second, 0, true, false},
		{Background, 25 * time.Second, 0, false, true},
		{Background, 45 * time.Second, 0, true, true},
		{Urgent, 9 * time.Second, 25 * time.Second, false, true},
		{Urgent, 9 * time.Second, 35 * time.Second, true, false},
		{Urgent, 25 * time.Second, 0, true, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMirrored(t, &server{bytes: 4 << 20, every: tt.first}, quick())
			m.endpoint.Patience, m.endpoint.Gather, m.endpoint.LongGather = 10*time.Second, 30*time.Second, 2*time.Minute
			if tt.heard {
				time.AfterFunc(20*time.Second, m.endpoint.hear)
			}
			m.fetch.Flow = m.fetch.Scheduler.NewFlow(tt.class)
			list := m.sources()
			list[0].Fetcher = late{m.mirror, tt.header}
			m.from.Set("a", list)
			src, err := m.fetch.Range(t.Context(), nil, make([]byte, 256<<10), 0, nil)
			if err != nil || src.Endpoint.Mirror != tt.mirror {
				t.Errorf("%+v: the bytes came from %s, %v", tt, src.Endpoint.Name, err)
			}
		})
	}
}

// A burstServer passes on parts of 4 MiB when it has all of one, as dfdaemon does.
type burstServer struct {
	every time.Duration // between parts; 0 after the first one: it hangs
	calls atomic.Int64
}

func (s *burstServer) Fetch(ctx context.Context, _ digest.Digest, _, off, n int64) (io.ReadCloser, int64, error) {
	s.calls.Add(1)
	r, w := io.Pipe()
	go func() {
		for at := int64(0); at < n; at += 4 << 20 {
			after := time.After(cmp.Or(s.every, time.Second))
			if s.every == 0 && at > 0 {
				after = nil
			}
			select {
			case <-after:
				w.Write(make([]byte, min(n-at, 4<<20)))
			case <-ctx.Done():
				w.CloseWithError(ctx.Err())
				return
			}
		}
		w.Close()
	}()
	return r, off, nil
}

// TestBursts checks that a piece that comes in bursts is not given up, whatever is known about the origin, and that one
// that does not come any more is.
func TestBursts(t *testing.T) {
	for name, tt := range map[string]struct {
		every, gather, long time.Duration
		heard               bool // the mirror sends other bytes
		known               bool // the rate of the origin
		mirror              bool // all bytes are from it
		most                time.Duration
	}{
		"bursts":                     {every: 4 * time.Second, gather: 30 * time.Second, mirror: true, most: 50 * time.Second},
		"bursts, and a fast origin":  {every: 4 * time.Second, gather: 30 * time.Second, known: true, mirror: true, most: 50 * time.Second},
		"rare bursts":                {every: 29 * time.Second, gather: 30 * time.Second, known: true, mirror: true, most: 6 * time.Minute},
		"too rare bursts":            {every: 31 * time.Second, gather: 30 * time.Second, most: 70 * time.Second},
		"it hangs after a burst":     {gather: 30 * time.Second, most: 70 * time.Second}, // two are waited for
		"late bursts":                {every: 45 * time.Second, gather: 30 * time.Second, long: 2 * time.Minute, heard: true, mirror: true, most: 10 * time.Minute},
		"late bursts, and no others": {every: 45 * time.Second, gather: 30 * time.Second, long: 2 * time.Minute, most: 70 * time.Second},
		"it never comes":             {gather: 30 * time.Second, long: 2 * time.Minute, heard: true, most: 5 * time.Minute},
		"a mirror that sends evenly": {every: 4 * time.Second, most: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, mirror := newMirrored(t, quick(), quick()), &burstServer{every: tt.every}
				m.endpoint.Gather, m.endpoint.LongGather, m.endpoint.Piece = tt.gather, tt.long, 16<<20
				list := m.sources()
				list[0].Fetcher = mirror
				m.from.Set("a", list)
				if tt.heard {
					ended := make(chan struct{})
					defer close(ended)
					go func() {
						for {
							m.endpoint.hear()
							select {
							case <-time.After(time.Second):
							case <-ended:
								return
							}
						}
					}()
				}
				if tt.known {
					list[1].Endpoint.received(100<<20, time.Second)
				}
				if took := m.ranges(15); took > tt.most { // the first one is in the middle of a piece
					t.Errorf("15 ranges took %v", took)
				}
				if n := m.origin.calls.Load(); n > 0 == tt.mirror {
					t.Errorf("the origin got %d requests", n)
				}
			})
		})
	}
}

// TestBurstsKeepTheirSlots checks that a source that sends in bursts is not slow for the sources that wait.
func TestBurstsKeepTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, mirror := newMirrored(t, quick(), quick()), &burstServer{every: 4 * time.Second}
		m.endpoint.Gather, m.endpoint.Piece = 30*time.Second, 16<<20
		list := m.sources()
		list[0].Fetcher = mirror
		m.from.Set("a", list)
		p, ctx := m.fetch.Scheduler.Places, t.Context()
		others := m.fetch.Scheduler.NewFlow(Soon)
		for range p.size - 1 {
			sl, err := p.Acquire(ctx, others, "others")
			if err != nil {
				t.Fatal(err)
			}
			defer sl.Release()
		}
		var all sync.WaitGroup
		all.Go(func() { m.fetch.Range(ctx, nil, make([]byte, 16<<20), 0, nil) })
		time.Sleep(time.Second)
		wait, stop := context.WithCancel(ctx)
		for _, name := range []string{"a third", "a fourth"} {
			all.Go(func() {
				if sl, err := p.Acquire(wait, others, name); err == nil {
					<-wait.Done()
					sl.Release()
				}
			})
		}
		time.Sleep(14 * time.Second)
		m.fetch.Scheduler.mu.Lock()
		for _, h := range p.held {
			if h.account.source != "others" && h.account.source != "a third" && h.account.source != "a fourth" && (h.slow || h.revoked != nil) {
				t.Errorf("the slot of %q is slow: %t, or revoked: %t", h.account.source, h.slow, h.revoked != nil)
			}
		}
		m.fetch.Scheduler.mu.Unlock()
		stop()
		all.Wait()
		if n := mirror.calls.Load(); n != 1 {
			t.Errorf("the mirror got %d requests for a piece", n)
		}
	})
}

// TestNoRangesAtMirror checks that a mirror without ranges does not make the whole transfer sequential.
func TestNoRangesAtMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, &server{err: ErrNoRanges}, quick())
		if src, err := m.fetch.Range(t.Context(), nil, make([]byte, 1<<20), 1<<20, nil); err != nil || src.Endpoint.Mirror {
			t.Errorf("got %v, %v", src.Endpoint.Name, err)
		}
		alone := newMirrored(t, &server{err: ErrNoRanges}, quick())
		alone.from.Set("a", alone.sources()[:1])
		if _, err := alone.fetch.Range(t.Context(), nil, make([]byte, 1<<20), 1<<20, nil); !errors.Is(err, ErrNoRanges) {
			t.Errorf("a mirror alone: %v", err)
		}
	})
}

// TestHeard checks that a mirror that sends in bursts is well again with the first one.
func TestHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, long := range []time.Duration{0, time.Minute} {
			e := &Endpoint{Name: "mirror", Mirror: true, Counts: &Counts{}, LongGather: long}
			e.leave(time.Now(), slow, nil)
			e.hear()
			first, second := e.enter(true), e.enter(true)
			if well := first && second; well != (long > 0) {
				t.Errorf("with LongGather %v, it is well: %t", long, well)
			}
		}
	})
}

// TestRests checks the pauses after failures.
func TestRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Endpoint{Name: "mirror", Mirror: true, Counts: &Counts{}}
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			if !e.enter(true) || i > 0 && e.enter(true) {
				t.Fatalf("failure %d: not one request was allowed", i)
			}
			began := time.Now()
			time.Sleep(time.Millisecond)
			e.leave(began, failed, nil)
			e.leave(began, failed, nil) // at the same time
			if got := time.Until(e.Resting()); got != want*time.Second {
				t.Errorf("failure %d: a pause of %v, want %v", i, got, want*time.Second)
			}
			if e.enter(true) || !e.enter(false) {
				t.Error("it is asked although there is another source, or not asked although there is none")
			}
			e.leave(time.Now(), unclear, nil)
			time.Sleep(want * time.Second)
		}
		e.leave(time.Now(), good, nil)
		if !e.Resting().IsZero() || !e.enter(true) || !e.enter(true) {
			t.Error("it rests after a success")
		}
	})
}

// TestWrongMirrorIsAvoided checks that a mirror that sent wrong bytes is not asked for an hour, unless there is no
// origin.
func TestWrongMirrorIsAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMirrored(t, quick(), quick())
		order := func() (l []string) {
			for _, src := range m.from.Order() {
				l = append(l, src.Endpoint.Name)
			}
			return l
		}
		both := m.sources()
		m.from.Blame(both[0])
		if got := order(); !slices.Equal(got, []string{"origin"}) {
			t.Errorf("after wrong bytes: %v", got)
		}
		ReportWrong(slog.New(slog.DiscardHandler), both[0], both[:1])
		if !m.endpoint.AvoidedUntil().IsZero() {
			t.Error("a mirror is avoided because of a mirror")
		}
		ReportWrong(slog.New(slog.DiscardHandler), both[1], both)
		m.from = Sources{} // of another blob
		m.from.Set("a", m.sources())
		for _, tt := range []struct {
			after time.Duration
			want  string
		}{{0, "[origin]"}, {59 * time.Minute, "[origin]"}, {2 * time.Minute, "[mirror origin]"}} {
			time.Sleep(tt.after)
			if got := fmt.Sprint(order()); got != tt.want {
				t.Errorf("%v later: %s, want %s", tt.after, got, tt.want)
			}
		}
		m.from.Blame(both[0])
		m.from.Set("a", both[:1])
		if got := fmt.Sprint(order()); got != "[mirror]" {
			t.Errorf("without an origin: %s", got)
		}
		if n := m.endpoint.Counts.Wrong.Load(); n != 1 {
			t.Errorf("counted %d", n)
		}
	})
}

// failures returns how often a mirror was left.
func failures(e *Endpoint) (n int64) {
	for _, r := range Reasons {
		n += e.Counts.Left(r)
	}
	return n
}
