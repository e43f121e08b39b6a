package registry

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// TestBudget has the requests of one registry wait for each other, and nobody else.
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

// idle says whether all memory was given back.
func (b *budget) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hosts) == 0 && b.total.TryAcquire(conversionMemory)
}

// TestKeep has a conversion keep the memory of a request that ends before it.
func TestKeep(t *testing.T) {
	var h Handler
	ctx, done, err := h.room(t.Context(), &h.requests, "a.example")
	if err != nil {
		t.Fatal(err)
	}
	free, ok := keep(ctx)
	done()
	if !ok || h.requests.idle() {
		t.Errorf("kept: %t; the memory was given back before the conversion ended", ok)
	}
	free()
	if _, ok := keep(ctx); ok || !h.requests.idle() {
		t.Error("the memory was not given back")
	}
	if _, ok := keep(context.Background()); !ok {
		t.Error("work without a request has no memory to keep")
	}
}
