package transfer

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"
)

// wholeServer is a server without ranges that answers with a reader.
type wholeServer func(ctx context.Context) io.Reader

func (f wholeServer) Fetch(ctx context.Context, _ digest.Digest, _, _, _ int64) (io.ReadCloser, int64, error) {
	return io.NopCloser(f(ctx)), 0, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// A slot that is revoked ends the request that it waits for, and not the next one of the same blob.
func TestRevokedDuringRequest(t *testing.T) {
	t.Parallel()
	const size = 1 << 10
	s := schedule()
	for range 200 {
		first, revoke := context.WithCancelCause(t.Context())
		requests := 0
		var from Sources
		from.Set("a", []Source{{Name: "first/x", Fetcher: wholeServer(func(ctx context.Context) io.Reader {
			if requests++; requests == 1 {
				return readerFunc(func([]byte) (int, error) { revoke(ErrRevoked); return 0, io.ErrUnexpectedEOF })
			}
			r := strings.NewReader(strings.Repeat("x", size))
			return readerFunc(func(p []byte) (int, error) {
				if ctx.Err() != nil {
					return 0, context.Cause(ctx)
				}
				return r.Read(p[:1])
			})
		})}})
		w := &whole{ctx: t.Context(), received: new(atomic.Int64)}
		f := Fetch{Scheduler: s, Size: size, From: &from, Received: new(atomic.Int64), whole: w}
		buf := make([]byte, size)
		flow := s.NewFlow(Soon)
		if _, err := f.Range(t.Context(), &Slot{Context: first, flow: flow}, buf, 0, nil); !errors.Is(err, ErrRevoked) {
			t.Fatalf("revoked: got %v", err)
		}
		if _, err := f.Range(t.Context(), &Slot{Context: t.Context(), flow: flow}, buf, 0, nil); err != nil || requests != 2 {
			t.Fatalf("after it: %v, %d requests", err, requests)
		}
		w.close()
	}
}

// A server without ranges that never answers the request for the whole blob keeps no buffer that is revoked.
func TestRevokedBeforeAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		ctx, cancel := context.WithCancel(t.Context())
		var hung sync.WaitGroup
		for range s.Buffers.size {
			var from Sources
			from.Set("a", []Source{{Name: "hostile/x", Fetcher: wholeServer(func(ctx context.Context) io.Reader {
				<-ctx.Done()
				return strings.NewReader("")
			})}})
			f := Fetch{Scheduler: s, Size: 32, From: &from, Flow: s.NewFlow(Soon), Received: new(atomic.Int64)}
			fill := func(i int, sl *Slot) error {
				if f.whole == nil {
					return ErrNoRanges
				}
				_, err := f.Range(ctx, sl, sl.Buf, int64(i)*16, nil)
				return err
			}
			hung.Go(func() { f.All(ctx, 2, fill, nil, func() {}) })
		}
		synctest.Wait()
		if n := held(s.Buffers, "hostile/x "); n != s.Buffers.size {
			t.Fatalf("%d buffers are held", n)
		}
		soon, end := context.WithTimeout(ctx, 2*time.Second)
		defer end()
		if sl, err := s.Buffers.Acquire(soon, s.NewFlow(Soon), "victim/x "); err != nil {
			t.Errorf("no buffer for another source: %v", err)
		} else {
			sl.Release()
		}
		cancel()
		hung.Wait()
	})
}

// TestSkippedBytes checks that what is read of a server without ranges before the wanted bytes keeps to the rate limit,
// and is progress.
func TestSkippedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := schedule()
		s.SetRate(1 << 10)
		var from Sources
		from.Set("a", []Source{{Name: "a/x", Endpoint: &Endpoint{Counts: &Counts{}}, Fetcher: wholeServer(func(context.Context) io.Reader {
			return strings.NewReader(strings.Repeat("x", 16<<10))
		})}})
		f := Fetch{Scheduler: s, Size: 16 << 10, From: &from, Received: new(atomic.Int64)}
		f.whole = &whole{ctx: t.Context(), received: new(atomic.Int64)}
		defer f.whole.close()
		hold, start := &Slot{Context: t.Context(), flow: s.NewFlow(Background)}, time.Now()
		src, err := f.Range(t.Context(), hold, make([]byte, 1<<10), 15<<10, nil)
		if err != nil || time.Since(start) < 11*time.Second { // a burst of 4 KiB is free
			t.Errorf("16 KiB took %v, %v", time.Since(start), err)
		}
		if progress, n := hold.bytes.Load(), src.Endpoint.Counts.Bytes.Load(); progress != 16<<10 || n != 16<<10 {
			t.Errorf("a progress of %d bytes, and %d were counted", progress, n)
		}
	})
}

// TestServed: a work is served when its last chunk has a buffer, not when that is full, or when a server without ranges
// sends one chunk after the other.
func TestServed(t *testing.T) { synctest.Test(t, testServed) }

func testServed(t *testing.T) {
	const chunks = 20 // there are 16 buffers
	s := schedule()
	start := func(fill func(int, *Slot) error) (served func() bool, end func()) {
		flow, from, done := s.NewFlow(Soon), Sources{}, make(chan error)
		from.Set("a", []Source{{Name: "a/x"}})
		f := Fetch{Scheduler: s, From: &from, Flow: flow, Received: new(atomic.Int64)}
		go func() { done <- f.All(t.Context(), chunks, fill, nil, func() {}) }()
		served = func() bool {
			synctest.Wait()
			select {
			case <-flow.Served():
				return true
			default:
				return false
			}
		}
		return served, func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}

	release := make(chan struct{})
	served, end := start(func(int, *Slot) error { <-release; return nil })
	for i := range chunks - 16 {
		if served() {
			t.Errorf("served after %d chunks", i)
		}
		release <- struct{}{}
	}
	if !served() {
		t.Error("not served although the last chunk has a buffer")
	}
	close(release)
	end()

	release = make(chan struct{})
	var asked atomic.Bool
	served, end = start(func(i int, sl *Slot) error {
		if i == 0 && !asked.Swap(true) {
			return ErrNoRanges
		}
		select {
		case <-release:
			return nil
		case <-sl.Context.Done():
			return context.Cause(sl.Context)
		}
	})
	if !served() {
		t.Error("not served by a server without ranges")
	}
	close(release)
	end()
}
