package store_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// What continues after its callers have gone is listed until it is abandoned; what a caller waits
// for is not abandoned.
func TestAbandon(t *testing.T) {
	weights := storetest.Random(12, 12<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{Linger: time.Hour})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	f := storetest.NewFetcher(weights)
	f.Delay = func(ctx context.Context) { <-ctx.Done() }
	hydrate := func(ctx context.Context) chan error {
		end := make(chan error, 1)
		before := f.Calls(digest.FromBytes(weights))
		go func() { end <- s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)}) }()
		waitFor(t, "the fetch begins", func() bool {
			w := s.Work()
			return len(w) > 0 && w[0].Waiting > 0 && (before > 0 || f.Calls(digest.FromBytes(weights)) > 0)
		})
		return end
	}
	if w := s.Work(); len(w) != 0 {
		t.Errorf("before the first: %+v", w)
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := hydrate(ctx)
	w := s.Work()[0]
	if w.Table != table || w.Total != int64(len(weights)) || w.Waiting != 1 || !w.Ends.IsZero() {
		t.Errorf("with a caller: %+v", w)
	}
	if n, err := s.Abandon(t.Context()); n != 0 || err != nil {
		t.Errorf("with a caller: %d abandoned, %v", n, err)
	}
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if w := s.Work(); len(w) != 1 || w[0].Waiting != 0 || time.Until(w[0].Ends) < 59*time.Minute {
		t.Errorf("without a caller: %+v", w)
	}

	// A caller that comes back continues it.
	ctx, leave = context.WithCancel(t.Context())
	gone = hydrate(ctx)
	if w := s.Work(); len(w) != 1 || w[0].Waiting != 1 || !w[0].Ends.IsZero() {
		t.Errorf("with a second caller: %+v", w)
	}
	leave()
	<-gone
	if n, err := s.Abandon(t.Context(), digest.FromString("another table")); n != 0 || err != nil {
		t.Errorf("another table: %d abandoned, %v", n, err)
	}
	if n, err := s.Abandon(t.Context(), table); n != 1 || err != nil {
		t.Errorf("without a caller: %d abandoned, %v", n, err)
	}
	if w := s.Work(); len(w) != 0 {
		t.Errorf("after the end: %+v", w)
	}
}

// The rate of a source that stops sending falls to zero.
func TestRateOfWork(t *testing.T) { synctest.Test(t, testRateOfWork) }

func testRateOfWork(t *testing.T) {
	weights := storetest.Random(13, 64<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{Connections: 1})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	f := storetest.NewFetcher(weights)
	var stalled atomic.Bool
	f.Delay = func(ctx context.Context) {
		if sent := f.Sent(digest.FromBytes(weights)); stalled.Load() || sent >= int64(len(weights))/2 {
			<-ctx.Done()
		}
		select { // so that bytes arrive in more than one sample
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		gone <- s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f), Background: true})
	}()
	rate := func(want func(int64) bool) {
		t.Helper()
		waitFor(t, "the rate", func() bool { w := s.Work(); return len(w) == 1 && want(w[0].Rate) })
	}
	rate(func(n int64) bool { return n > 0 })
	stalled.Store(true)
	rate(func(n int64) bool { return n == 0 })
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
