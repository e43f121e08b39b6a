package registry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// TestBudget makes requests of one registry wait for each other, and not those of others.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Handler
		large := func(host string) (done func(), err error) {
			ctx, done, err := h.room(t.Context(), &h.requests, host)
			if err != nil {
				return nil, err
			}
			if err := convert.MakeRoom(ctx, convert.MaxManifestSize); err != nil {
				done()
				return nil, err
			}
			return done, nil
		}
		stalled, err := large("evil.example")
		if err != nil {
			t.Fatal(err)
		}
		ctx, good, err := h.room(t.Context(), &h.requests, "good.example")
		if err != nil {
			t.Fatal(err)
		}
		if err := convert.MakeRoom(ctx, convert.MaxManifestSize/4); err != nil {
			t.Errorf("another registry, while one stalls: %v", err)
		}
		good()
		_, err = large("evil.example")
		limit, ok := errors.AsType[*filetable.LimitError](err)
		if _, later := errors.AsType[*transfer.RetryAfterError](err); !ok || !later || limit.Limit != LimitConversions || !errdefs.IsUnavailable(err) {
			t.Errorf("the same registry, while it stalls: %v", err)
		}
		stalled()

		var wg sync.WaitGroup
		for range 300 { // more than there is memory for, all of which want more than they have
			wg.Go(func() {
				done, err := large("evil.example")
				if err != nil {
					t.Error(err)
					return
				}
				done()
			})
		}
		wg.Wait()
		if !h.requests.idle() {
			t.Error("memory is still taken")
		}
	})
}

// idle reports whether all memory was released.
func (b *budget) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hosts) == 0 && b.total.TryAcquire(convert.RequestMemory)
}

// TestKeep has a conversion keep the memory of a request that ends before it.
func TestKeep(t *testing.T) {
	var h Handler
	ctx, done, err := h.room(t.Context(), &h.requests, "a.example")
	if err != nil {
		t.Fatal(err)
	}
	free := keep(ctx)
	done()
	if h.requests.idle() {
		t.Error("the memory was given back before the conversion ended")
	}
	free()
	if !h.requests.idle() {
		t.Error("the memory was not given back")
	}
	keep(context.Background())() // work without a request has none
}

// TestJoinedConversion sends many requests for a model with large documents: a request that waits for the
// conversion of another releases its memory.
func TestJoinedConversion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Handler
		const document = convert.MaxManifestSize / 8
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				ctx, done, err := h.room(t.Context(), &h.requests, "a.example")
				if err != nil {
					t.Error(err)
					return
				}
				defer done()
				if err := convert.MakeRoom(ctx, document); err != nil { // its manifest
					t.Error(err)
				}
				_, err = h.alone(ctx, flightKey{place: "model"}, func() {}, func(ctx context.Context) (store.Image, error) {
					<-start                                               // the others wait
					return store.Image{}, convert.MakeRoom(ctx, document) // its config
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(start)
		wg.Wait()
		if !h.requests.idle() {
			t.Error("memory is still taken")
		}
	})
}

// TestParked has requests wait with documents in memory: only as many as there may be.
func TestParked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h Handler
		const document = convert.MaxManifestSize / 2
		var mu sync.Mutex
		var wg sync.WaitGroup
		waiting, most := 0, 0
		for range 50 {
			wg.Go(func() {
				ctx, done, err := h.room(t.Context(), &h.requests, "evil.example")
				if err != nil {
					return
				}
				defer done()
				if err := convert.MakeRoom(ctx, document); err != nil {
					return
				}
				count := func(n int) {
					mu.Lock()
					defer mu.Unlock()
					waiting += n
					most = max(most, waiting)
				}
				count(1) // with a manifest in memory
				defer count(-1)
				time.Sleep(time.Second) // of the bubble: its config is slow
				if err := convert.MakeRoom(ctx, document); err != nil && !errdefs.IsUnavailable(err) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most > 4 { // two that work, and as many that wait
			t.Errorf("%d manifests in memory at the same time", most)
		}
		if !h.requests.idle() || h.requests.parked != 0 {
			t.Error("memory is still taken")
		}
	})
}
