package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// joinUntil joins a job that works until the test ends it, whatever cancels it.
func (r *pullRig) joinUntil(t *testing.T, kind wire.Kind, end chan struct{}) *job {
	t.Helper()
	j, err := r.join(t.Context(), kind, pullRef, "", pinWish{}, func(ctx context.Context, _ *job) (store.Image, error) {
		<-end
		return store.Image{}, context.Cause(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestStopAndJoin: a stop leaves what a client has just joined, and who comes after it does not join what it ends.
func TestStopAndJoin(t *testing.T) {
	r, end := newPullRig(t), make(chan struct{})
	j := r.joinUntil(t, wire.KindPrefetch, end)
	if n, err := r.Stop(t.Context(), "", pullRef); n != 0 || err != nil {
		t.Errorf("a client waits: %d stopped, %v", n, err)
	}
	r.leave(j)
	stopped := make(chan int)
	go func() {
		n, err := r.Stop(t.Context(), "", pullRef)
		if err != nil {
			t.Error(err)
		}
		stopped <- n
	}()
	waitFor(t, "the stop", func() bool {
		r.List.mu.Lock()
		defer r.List.mu.Unlock()
		return j.closed
	})
	later := r.joinUntil(t, wire.KindPrefetch, end)
	if later == j {
		t.Error("a stopped job is joined")
	}
	close(end)
	if n := <-stopped; n != 1 {
		t.Errorf("%d stopped", n)
	}
	if _, err := r.follow(t.Context(), later, func([]wire.Event) error { return nil }); err != nil {
		t.Errorf("the later one: %v", err)
	}
}

// TestStopAtTheEnd: what is stopped at its end is not pinned, and what ends nevertheless was not stopped.
func TestStopAtTheEnd(t *testing.T) {
	r := newPullRig(t)
	im := r.put(t)
	for name, tt := range map[string]struct {
		pins bool
		want int
	}{"it pins": {true, 1}, "it ends": {false, 0}} {
		j, err := r.join(t.Context(), wire.KindPrefetch, pullRef, name, pinWish{wanted: true}, func(ctx context.Context, j *job) (store.Image, error) {
			<-ctx.Done()
			if !tt.pins {
				return im, nil
			}
			return im, r.pin(ctx, j, im, remote.Ref{})
		})
		if err != nil {
			t.Fatal(err)
		}
		r.leave(j)
		if n, err := r.Stop(t.Context(), "", pullRef); n != tt.want || err != nil {
			t.Errorf("%s: %d stopped, %v", name, n, err)
		}
		if pins := r.Store.Catalog.Refs(modelname.PinPrefix); len(pins) > 0 {
			t.Errorf("%s: pins %v", name, pins)
		}
	}
}

// TestStopOfRepair: a removed image does not end the repair of what containers read.
func TestStopOfRepair(t *testing.T) {
	r, end := newPullRig(t), make(chan struct{})
	j := r.joinUntil(t, wire.KindBackground, end)
	r.List.change(func() { j.Table = r.table })
	r.leave(j)
	if err := r.Store.AddRef("snapshot/1", r.table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Stop(t.Context(), r.table, pullRef); n != 0 || err != nil {
		t.Errorf("%d stopped, %v", n, err)
	}
	close(end)
}

// TestPinsAtOnce: of two jobs that pin a model at the same time, the longer pin stays.
func TestPinsAtOnce(t *testing.T) {
	r := newPullRig(t)
	im := r.put(t)
	for range 100 {
		var all sync.WaitGroup
		for _, ttl := range []time.Duration{0, time.Hour} {
			j := &job{pin: pinFor(false, ttl)}
			all.Go(func() {
				if err := r.pin(t.Context(), j, im, remote.Ref{}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, p := range r.Store.Catalog.Refs(modelname.PinPrefix) {
			if !p.Expires.IsZero() {
				t.Fatalf("the pin ends at %v", p.Expires)
			}
			if err := r.Store.RemoveRef(p.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRates: the rate of the last client counts, from before the download begins, and for all models of a list.
func TestRates(t *testing.T) {
	js := &Jobs{List: &List{}}
	rate := func(want int64, all ...*job) {
		t.Helper()
		for _, j := range all {
			if got := j.limit.Rate(); got != want {
				t.Errorf("rate %d, want %d", got, want)
			}
		}
	}
	for _, list := range []string{"", "list"} {
		one, two := &job{changed: make(chan struct{})}, &job{changed: make(chan struct{})}
		js.setRate(one, 2000)
		for _, j := range []*job{one, two} {
			_, done, err := js.turn(t.Context(), j, list, 1000)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			if j == one {
				rate(2000, one)
			}
		}
		rate(1000, two)
		js.setRate(two, 3000)
		js.setRate(two, 0)
		rate(3000, two)
		if list != "" {
			rate(3000, one)
		}
	}
}

// A twoStores waits in imports until both have been asked for.
type twoStores struct {
	rigFacade
	both *sync.WaitGroup
}

func (f twoStores) Import(context.Context, remote.Ref, registry.Blobs, ocispec.Descriptor, registry.ImportOptions) (*registry.Import, error) {
	f.both.Done()
	f.both.Wait()
	return nil, errAsked
}

// TestImportsOfTwoStores: models with one name in two directories are two imports.
func TestImportsOfTwoStores(t *testing.T) {
	r, both := newPullRig(t), &sync.WaitGroup{}
	both.Add(2)
	r.Facade = twoStores{r.Facade.(rigFacade), both}
	var all sync.WaitGroup
	for i := range 2 {
		dir := t.TempDir()
		b := converttest.Ollama(converttest.Files([]byte(fmt.Sprint("weights", i))), converttest.OllamaConfigNew)
		if err := converttest.WriteOllamaStore(dir, converttest.StoreLegacy, "registry.ollama.ai/library/mine/1b", b); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			_, err := r.Import(t.Context(), wire.ImportRequest{Dir: dir, Model: "library/mine:1b"}, func([]wire.Event) error { return nil })
			if !errors.Is(err, errAsked) {
				t.Errorf("%s: %v", dir, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("one import waits for the other")
	}
}
