package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestStatus lists running jobs, oldest first, with the number of waiting clients, and then the
// ended ones, with their errors. The background download of a model is not listed while a client
// waits for the model.
func TestStatus(t *testing.T) {
	r := newPullRig(t)
	if s := r.Status(t.Context()); s.Jobs == nil || len(s.Jobs) > 0 {
		t.Errorf("nothing to do: %#v", s.Jobs)
	}
	for _, err := range []*wire.Error{wire.Wrap(errdefs.ErrUnavailable), nil} { // two views
		r.List.change(func() {
			r.List.add(&listed{Job: wire.Job{Kind: wire.KindBackground, Table: r.table, Error: err}, rest: true})
		})
	}
	_, err := r.Prefetch(t.Context(), parse(t, "reg.example/none:v1"), Request{}, func([]wire.Event) error { return nil })
	if !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	end := r.begin(t, t.Context(), wire.PrefetchRequest{})
	progress, verified := r.Verifying(wire.KindVerify, "")
	progress(5, 10)
	applied := r.containerd(t.Context(), r.table)
	got := r.Status(t.Context())
	want := []string{
		"prefetch " + pullRef + " waiting 1 running",
		"verify  waiting 1 running",
		"containerd " + r.table.String() + " waiting 1 running",
		"prefetch reg.example/none:v1 waiting 0 ended not_found",
	}
	if diff := diffJobs(got.Jobs, want); diff != "" {
		t.Error(diff)
	}
	if j := got.Jobs[2]; j.Total != int64(len(r.weights)) || j.Completed != 0 {
		t.Errorf("a pull of containerd: %+v", j)
	}
	verified(errors.New("x"))
	applied(nil)
	close(r.gate)
	if err := end(); err != nil {
		t.Fatal(err)
	}
	want = []string{
		"background " + r.table.String() + " waiting 0 running unavailable",
		"prefetch " + pullRef + " waiting 0 ended",
		"containerd " + r.table.String() + " waiting 0 ended",
		"verify  waiting 0 ended unknown",
		"prefetch reg.example/none:v1 waiting 0 ended not_found",
	}
	if diff := diffJobs(r.Status(t.Context()).Jobs, want); diff != "" {
		t.Error(diff)
	}
}

// TestStatusHasHealing lists what downloads the lost files of a model beside a pull of the model, and, before the
// table is known, beside a verification. Its progress is its own.
func TestStatusHasHealing(t *testing.T) {
	r := newPullRig(t)
	heal := &listed{Job: wire.Job{Kind: wire.KindBackground, Ref: "healed"}}
	r.List.change(func() { r.List.add(heal) })
	_, verified := r.Verifying(wire.KindVerify, "")
	if diff := diffJobs(r.Status(t.Context()).Jobs, []string{"background healed waiting 0 running", "verify  waiting 1 running"}); diff != "" {
		t.Error(diff)
	}
	verified(nil)
	applied := r.containerd(t.Context(), r.table)
	defer applied(nil)
	r.List.change(func() { heal.Table, heal.Total, heal.Completed = r.table, 20, 10 })
	got := r.Status(t.Context()).Jobs
	want := []string{"background healed waiting 0 running", "containerd " + r.table.String() + " waiting 1 running", "verify  waiting 0 ended"}
	if diff := diffJobs(got, want); diff != "" {
		t.Error(diff)
	}
	if got[0].Total != 20 || got[0].Completed != 10 {
		t.Errorf("healing: %+v", got[0])
	}
}

func diffJobs(jobs []wire.Job, want []string) string {
	var got []string
	for _, j := range jobs {
		s := fmt.Sprintf("%s %s waiting %d", j.Kind, j.Ref, j.Waiting)
		if j.Ended.IsZero() {
			s += " running"
		} else {
			s += " ended"
		}
		if j.Error != nil {
			s += " " + j.Error.Code
		}
		got = append(got, s)
	}
	return cmp.Diff(got, want)
}

// TestStatusHasReads shows how many reads wait for a model that is not complete.
func TestStatusHasReads(t *testing.T) {
	r := newRestart(t)
	table := r.add(t, "snapshot/1", 1<<20, false)
	gate := make(chan struct{})
	r.sources[table].Delay = func(context.Context) { <-gate }
	if _, err := r.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.List.change(func() { r.List.add(&listed{Job: wire.Job{Kind: wire.KindBackground, Table: table}, rest: true}) })
	js := &Jobs{List: r.List, Store: r.Store, Background: r.Background, Lazy: func() *lazy.Mount { return nil }, Sources: &Sources{Store: r.Store}}
	reads := func() (n int64) {
		for _, j := range js.Status(t.Context()).Jobs {
			n += j.Reads
		}
		return n
	}
	var readers sync.WaitGroup
	for i := range 3 {
		readers.Go(func() {
			if _, err := r.Store.Views.View("").ReadAt(t.Context(), digest.FromBytes(r.want), make([]byte, 10), int64(i)<<20); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, "three reads that wait", func() bool { return reads() == 3 })
	close(gate)
	readers.Wait()
	if n := reads(); n != 0 {
		t.Errorf("%d reads at the end", n)
	}
}

// Until the next attempt at the rest of a model begins, the status has the error of the last one.
func TestStatusHasLastError(t *testing.T) {
	r := newPullRig(t)
	close(r.gate)
	lacking := storetest.NewFetcher()
	b := &Background{List: r.List, Store: r.Store, Log: r.Log, Sources: func(context.Context, string, digest.Digest) ([]transfer.Source, error) { return nil, nil }}
	ctx, stop := context.WithCancel(t.Context())
	wait := b.Begin(ctx)
	if err := r.Store.AddRef("snapshot/1", r.table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	b.Start("snapshot/1", r.table, storetest.From(lacking))
	waitFor(t, "the error of the first attempt", func() bool {
		jobs := r.Status(t.Context()).Jobs
		return len(jobs) == 1 && jobs[0].Error != nil && jobs[0].Total == int64(len(r.weights))
	})
	stop()
	if err := wait(); err != nil {
		t.Error(err)
	}
	if jobs := r.Status(t.Context()).Jobs; len(jobs) != 0 {
		t.Errorf("after the end: %+v", jobs)
	}
}
