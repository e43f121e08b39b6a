package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
)

// abandon pulls the model as containerd does, and leaves when its bytes are requested.
func (r *pullRig) abandon(t *testing.T) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	pulled := make(chan error, 1)
	go func() {
		end := r.containerd(ctx, r.table)
		err := r.Store.Hydrate(ctx, r.table, store.HydrateOptions{Sources: storetest.From(r.fetcher)})
		end(err)
		pulled <- err
	}()
	waitFor(t, "the pull", func() bool { w := r.Store.Work(); return len(w) == 1 && w[0].Waiting == 1 })
	leave()
	if err := <-pulled; !errors.Is(err, context.Canceled) {
		t.Fatalf("the pull: %v", err)
	}
}

// put records the image of the model.
func (r *pullRig) put(t *testing.T) store.Image {
	t.Helper()
	d, err := r.Store.PutBytes([]byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	im := store.Image{Manifest: d, Config: d, Table: r.table, Refs: []string{pullRef}}
	if err := r.Store.PutImage(im); err != nil {
		t.Fatal(err)
	}
	return im
}

// A download whose client has gone is listed, also when its image was removed, and can be stopped.
func TestAbandonedDownload(t *testing.T) {
	r := newLingeringRig(t, time.Hour)
	im := r.put(t)
	r.abandon(t)
	want := []string{"abandoned " + pullRef + " waiting 0 running", "containerd " + pullRef + " waiting 0 ended canceled"}
	status := r.Status(t.Context())
	if diff := diffJobs(status.Jobs, want); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
	if j := status.Jobs[0]; j.Total != int64(len(r.weights)) || time.Until(j.Ends) < 59*time.Minute {
		t.Errorf("got %+v", j)
	}

	// The image keeps it: the reference is only one of its names.
	if n, err := r.Stop(t.Context(), "", pullRef); n != 0 || err != nil {
		t.Errorf("of a reference: %d stopped, %v", n, err)
	}
	if err := r.Store.Catalog.RemoveImage(im.Manifest); err != nil {
		t.Fatal(err)
	}
	if diff := diffJobs(r.Status(t.Context()).Jobs, want); diff != "" {
		t.Errorf("without an image (got, want):\n%s", diff)
	}
	if n, err := r.Stop(t.Context(), "", "reg.example/other:v1"); n != 0 || err != nil {
		t.Errorf("of another reference: %d stopped, %v", n, err)
	}
	if n, err := r.Stop(t.Context(), "", pullRef); n != 1 || err != nil {
		t.Errorf("of its last reference: %d stopped, %v", n, err)
	}
	if diff := diffJobs(r.Status(t.Context()).Jobs, want[1:]); diff != "" {
		t.Errorf("after the stop (got, want):\n%s", diff)
	}
}

// Stop does not end what a client waits for; when its client has gone, a prefetch ends for good.
func TestStopOfPrefetch(t *testing.T) {
	r := newLingeringRig(t, time.Hour)
	ctx, leave := context.WithCancel(t.Context())
	end := r.begin(t, ctx, wire.PrefetchRequest{})
	if n, err := r.Stop(t.Context(), r.table, pullRef); n != 0 || err != nil {
		t.Errorf("with a client: %d stopped, %v", n, err)
	}
	leave()
	_ = end()
	if n, err := r.Stop(t.Context(), r.table, pullRef); n != 1 || err != nil {
		t.Errorf("without a client: %d stopped, %v", n, err)
	}
	if diff := diffJobs(r.Status(t.Context()).Jobs, []string{"prefetch " + pullRef + " waiting 0 ended canceled"}); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
	if w := r.Store.Work(); len(w) != 0 {
		t.Errorf("the store still works: %+v", w)
	}
}

// A download for which a caller waits that is no job is listed.
func TestRepairIsListed(t *testing.T) {
	r := newPullRig(t)
	repaired := make(chan error, 1)
	go func() {
		repaired <- r.Store.Hydrate(t.Context(), r.table, store.HydrateOptions{Sources: storetest.From(r.fetcher)})
	}()
	waitFor(t, "the repair", func() bool { return len(r.Store.Work()) == 1 })
	if diff := diffJobs(r.Status(t.Context()).Jobs, []string{"repair " + r.table.String() + " waiting 1 running"}); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
	close(r.gate)
	if err := <-repaired; err != nil {
		t.Error(err)
	}
}

// Four models of a list are downloaded at the same time; a stop frees the turn of the next one.
func TestTurns(t *testing.T) {
	r := newPullRig(t)
	var dones []func()
	for range maxPrefetches {
		_, done, err := r.turn(t.Context(), &job{changed: make(chan struct{})}, "list", 0)
		if err != nil {
			t.Fatal(err)
		}
		dones = append(dones, done)
	}
	if _, done, err := r.turn(t.Context(), &job{changed: make(chan struct{})}, "other", 0); err != nil {
		t.Fatal(err)
	} else {
		done()
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	fifth := &job{changed: make(chan struct{})}
	told := fifth.changed
	if _, _, err := r.turn(ctx, fifth, "list", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a fifth: %v", err)
	}
	select {
	case <-told:
	default:
		t.Error("the clients of the fifth are not told that it waits")
	}
	dones[0]()
	_, done, err := r.turn(t.Context(), &job{changed: make(chan struct{})}, "list", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, done := range append(dones[1:], done) {
		done()
	}
	if len(r.lists) != 0 {
		t.Errorf("lists stay: %v", r.lists)
	}
}

// TestTurnsAtOnce: models that are requested at the same time are queued from the moment that they wait.
func TestTurnsAtOnce(t *testing.T) {
	const models = maxPrefetches + 2
	for range 50 {
		js := &Jobs{List: &List{}}
		given := make(chan func(), models)
		var all [models]*job
		js.List.mu.Lock()
		for i := range all {
			all[i] = &job{changed: make(chan struct{})}
			go func() {
				_, done, err := js.turn(t.Context(), all[i], "list", 0)
				if err != nil {
					t.Error(err)
				}
				given <- done
			}()
		}
		for range 2 { // in starvation mode, sync.Mutex is handed over before the one that had it goes on
			time.Sleep(3 * time.Millisecond)
			js.List.mu.Unlock()
			js.List.mu.Lock()
		}
		js.List.mu.Unlock()
		var dones []func()
		for range maxPrefetches {
			dones = append(dones, <-given)
		}
		queued := 0
		waitFor(t, "all models", func() bool {
			js.List.mu.Lock()
			defer js.List.mu.Unlock()
			queued = 0
			for _, j := range all {
				if j.Queued {
					queued++
				}
			}
			return js.lists["list"].users == models
		})
		if queued != models-maxPrefetches {
			t.Fatalf("%d models are queued, want %d", queued, models-maxPrefetches)
		}
		for _, done := range dones {
			done()
		}
		for range models - maxPrefetches {
			(<-given)()
		}
	}
}
