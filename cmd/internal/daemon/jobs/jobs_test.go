package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/metrics"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/huggingface"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

const pullRef = "reg.example/team/model:v1"

// A pullRig is the jobs of one model whose download waits for the test.
type pullRig struct {
	*Jobs
	weights   []byte
	converted atomic.Int32
	served    error                       // to everybody
	resolving func(context.Context) error // before a model is converted; may be nil
	as        *remote.Credentials         // of the last ConvertAs
	gate      chan struct{}               // closed: bytes flow
	fetcher   *storetest.Fetcher
	table     digest.Digest
}

func newPullRig(t *testing.T) *pullRig {
	t.Helper()
	return newLingeringRig(t, time.Millisecond)
}

func newLingeringRig(t *testing.T, linger time.Duration) *pullRig {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s := storetest.Open(t, t.TempDir(), store.Options{Linger: linger})
	r := &pullRig{weights: storetest.Random(7, 9<<20), gate: make(chan struct{})}
	r.fetcher = storetest.NewFetcher(r.weights)
	r.fetcher.Delay = func(ctx context.Context) {
		select {
		case <-r.gate:
		case <-ctx.Done():
		}
	}
	r.table = storetest.NewBuilder("m").Raw("weights.bin", r.weights, 0o644).Put(t, s)
	r.Jobs = &Jobs{
		List:  &List{},
		Store: s, Facade: rigFacade{&registry.Handler{}, r}, Sources: &Sources{Store: s, Secrets: &pullsecret.Secrets{}, Log: log}, Background: &Background{},
		Lazy: func() *lazy.Mount { return nil }, Metrics: metrics.New(s, wire.Version{}, log), Log: log,
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return r
}

// A rigFacade has one model.
type rigFacade struct {
	*registry.Handler
	rig *pullRig
}

func (f rigFacade) Convert(ctx context.Context, ref remote.Ref) (store.Image, error) {
	f.rig.converted.Add(1)
	if f.rig.resolving != nil {
		if err := f.rig.resolving(ctx); err != nil {
			return store.Image{}, err
		}
	}
	if ref.Repository != "team/model" {
		return store.Image{}, fmt.Errorf("%s: %w", ref, errdefs.ErrNotFound)
	}
	return store.Image{Table: f.rig.table, Manifest: "sha256:m", Refs: []string{ref.String()}, Origin: filetable.Origin{Format: "test"}}, nil
}

func (f rigFacade) ConvertAs(ctx context.Context, ref remote.Ref, as remote.Credentials) (store.Image, error) {
	f.rig.as = &as
	return f.Convert(ctx, ref)
}

func (f rigFacade) ServedToAll(context.Context, remote.Ref, store.Image) error { return f.rig.served }

func (f rigFacade) Sources(im store.Image, names ...string) []transfer.Source {
	return f.NodeSources(im, names...)
}

func (f rigFacade) NodeSources(store.Image, ...string) []transfer.Source {
	return storetest.From(f.rig.fetcher)
}

// parse parses a reference.
func parse(t *testing.T, s string) remote.Ref {
	t.Helper()
	ref, err := resolve.ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// begin starts or joins the prefetch, and returns when an event shows that it waits for bytes.
func (r *pullRig) begin(t *testing.T, ctx context.Context, req wire.PrefetchRequest) (end func() error) {
	t.Helper()
	begun := make(chan struct{})
	var once sync.Once
	done := make(chan error, 1)
	ref := parse(t, pullRef)
	go func() {
		_, err := r.Prefetch(ctx, ref, Request{PrefetchRequest: req}, func(events []wire.Event) error {
			for _, e := range events {
				if e.Digest != "" {
					once.Do(func() { close(begun) })
				}
			}
			return nil
		})
		done <- err
	}()
	select {
	case <-begun:
	case err := <-done:
		t.Fatalf("ended before it began: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("no progress")
	}
	return func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(2 * time.Minute):
			return errors.New("does not end")
		}
	}
}

// The work continues after its client has gone, and two clients that request the same model share
// it.
func TestJobOutlivesItsClient(t *testing.T) {
	r := newPullRig(t)
	ctx, leave := context.WithCancel(t.Context())
	first := r.begin(t, ctx, wire.PrefetchRequest{})
	second := r.begin(t, t.Context(), wire.PrefetchRequest{NoPin: true})
	leave()
	if err := first(); !errors.Is(err, context.Canceled) {
		t.Errorf("who left: got %v", err)
	}
	if jobs, ended := r.List.jobs(); len(jobs) != 1 || len(ended) != 0 || jobs[0].Waiting != 1 || jobs[0].Kind != wire.KindPrefetch || jobs[0].Total != int64(len(r.weights)) {
		t.Errorf("jobs: %+v", jobs)
	}
	close(r.gate)
	if err := second(); err != nil {
		t.Errorf("who stayed: %v", err)
	}
	if got := r.converted.Load(); got != 1 {
		t.Errorf("conversions: got %d, want 1", got)
	}
	if got, want := r.fetcher.Sent(digest.FromBytes(r.weights)), int64(len(r.weights)); got != want {
		t.Errorf("bytes fetched: got %d, want %d", got, want)
	}
	pins := r.Store.Catalog.Refs("pin/")
	if len(pins) != 1 || pins[0].Name != "pin/"+pullRef || !pins[0].Expires.IsZero() {
		t.Errorf("the pin that the first asked for: %+v", pins)
	}
	if running, jobs := r.List.jobs(); len(running) != 0 || len(jobs) != 1 || jobs[0].Ended.IsZero() || jobs[0].Waiting != 0 || jobs[0].Completed != int64(len(r.weights)) || jobs[0].Error != nil {
		t.Errorf("jobs after the end: %+v", jobs)
	}
}

// The work continues even if all clients have gone.
func TestJobOutlivesAllClients(t *testing.T) {
	r := newPullRig(t)
	ctx, leave := context.WithCancel(t.Context())
	end := r.begin(t, ctx, wire.PrefetchRequest{})
	leave()
	_ = end()
	time.Sleep(20 * time.Millisecond) // longer than the store continues without a caller
	close(r.gate)
	deadline := time.Now().Add(2 * time.Minute)
	for {
		if _, err := r.Store.Views.Files(r.table); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("nobody has fetched")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestStopEndsJobs(t *testing.T) {
	r := newPullRig(t)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	end := r.begin(t, t.Context(), wire.PrefetchRequest{})
	go func() {
		defer close(stopped)
		_ = r.Run(ctx)
	}()
	stop()
	if err := end(); !errdefs.IsAborted(err) {
		t.Errorf("running prefetch: got %v, want ErrAborted", err)
	}
	<-stopped
	if _, err := r.Prefetch(t.Context(), parse(t, pullRef), Request{}, func([]wire.Event) error { return nil }); !errdefs.IsAborted(err) {
		t.Errorf("new prefetch: got %v, want ErrAborted", err)
	}
	if pins := r.Store.Catalog.Refs("pin/"); len(pins) != 0 {
		t.Errorf("pins of what is not complete: %+v", pins)
	}
}

func TestPullFails(t *testing.T) {
	r := newPullRig(t)
	_, err := r.Prefetch(t.Context(), parse(t, "reg.example/other:v1"), Request{}, func([]wire.Event) error { return nil })
	if !errdefs.IsNotFound(err) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if _, jobs := r.List.jobs(); len(jobs) != 1 || jobs[0].Error == nil || jobs[0].Error.Code != "not_found" {
		t.Errorf("jobs: %+v", jobs)
	}
}

// A prefetch leaves a pin that depends on its request and on the existing pin.
func TestPins(t *testing.T) {
	never := time.Duration(0)
	for _, tt := range []struct {
		name string
		old  *time.Duration // the existing pin
		req  wire.PrefetchRequest
		want string // "none", "never" or "expires"
		atLeast,
		atMost time.Duration
	}{
		{name: "pin", req: wire.PrefetchRequest{}, want: "never"},
		{name: "no pin", req: wire.PrefetchRequest{NoPin: true}, want: "none"},
		{name: "ttl", req: wire.PrefetchRequest{TTL: time.Hour}, want: "expires", atLeast: 59 * time.Minute, atMost: time.Hour},
		{name: "longer ttl", old: new(time.Minute), req: wire.PrefetchRequest{TTL: time.Hour}, want: "expires", atLeast: 59 * time.Minute, atMost: time.Hour},
		{name: "shorter ttl", old: new(2 * time.Hour), req: wire.PrefetchRequest{TTL: time.Hour}, want: "expires", atLeast: 119 * time.Minute, atMost: 2 * time.Hour},
		{name: "ttl where there is one without", old: &never, req: wire.PrefetchRequest{TTL: time.Hour}, want: "never"},
		{name: "no pin leaves a pin", old: &never, req: wire.PrefetchRequest{NoPin: true}, want: "never"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newPullRig(t)
			close(r.gate)
			if tt.old != nil {
				var expires time.Time
				if *tt.old > 0 {
					expires = time.Now().Add(*tt.old)
				}
				if err := r.Store.AddRef("pin/"+pullRef, r.table, expires); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.Prefetch(t.Context(), parse(t, pullRef), Request{PrefetchRequest: tt.req}, func([]wire.Event) error { return nil }); err != nil {
				t.Fatal(err)
			}
			got := "none"
			pin, err := r.Store.Catalog.Ref("pin/" + pullRef)
			switch {
			case err == nil && pin.Expires.IsZero():
				got = "never"
			case err == nil:
				got = "expires"
				if left := time.Until(pin.Expires); left < tt.atLeast || left > tt.atMost {
					t.Errorf("expires in %v, want %v to %v", left, tt.atLeast, tt.atMost)
				}
			case !errdefs.IsNotFound(err):
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("pin: got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestForPods: what pods could not pull is not downloaded for them, and a pull secret is used as theirs.
func TestForPods(t *testing.T) {
	r := newPullRig(t)
	close(r.gate)
	r.served = errdefs.ErrUnauthenticated
	prefetch := func(req Request) error {
		_, err := r.Prefetch(t.Context(), parse(t, pullRef), req, func([]wire.Event) error { return nil })
		return err
	}
	if err := prefetch(Request{ForPods: true}); !errors.Is(err, ErrNodeOnly) || !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "add reg.example to upstream.share_credentials") {
		t.Errorf("without a secret: %v", err)
	}
	if n := r.fetcher.Calls(digest.FromBytes(r.weights)); n > 0 {
		t.Errorf("%d requests for a model that is refused", n)
	}
	secret := &remote.Credentials{Username: "team", Secret: "s"}
	if err := prefetch(Request{ForPods: true, Credentials: secret}); err != nil || *r.as != *secret {
		t.Errorf("with a secret: %v, converted as %v", err, r.as)
	}
	if err := prefetch(Request{}); err != nil {
		t.Errorf("for the node: %v", err)
	}
	if (&Request{ForPods: true}).key() == (&Request{}).key() {
		t.Error("a prefetch for the node joins one that can be refused")
	}
}

// TestLimitedPrefetch: a prefetch keeps to its rate, until somebody else waits for the model.
func TestLimitedPrefetch(t *testing.T) {
	r := newPullRig(t)
	close(r.gate)
	const rate = 64 << 10 // the model would take more than two minutes
	limited := r.begin(t, t.Context(), wire.PrefetchRequest{Rate: rate, List: "fleet"})
	again := r.begin(t, t.Context(), wire.PrefetchRequest{Rate: 2 * rate, List: "fleet"}) // joins it
	if got := r.lists["fleet"].limit.Rate(); got != 2*rate {
		t.Errorf("rate %d, want that of the last request", got)
	}
	if n := len(r.Status(t.Context()).Jobs); n != 1 {
		t.Errorf("%d jobs, want one", n)
	}
	waitFor(t, "the limit", func() bool {
		jobs := r.Status(t.Context()).Jobs
		return len(jobs) == 1 && jobs[0].Limit == "rate"
	})
	if err := r.begin(t, t.Context(), wire.PrefetchRequest{})(); err != nil {
		t.Error(err)
	}
	for _, end := range []func() error{limited, again} {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}

func TestRate(t *testing.T) {
	var r rate
	now := time.Unix(0, 0)
	var got int64
	for i := range 100 {
		got = r.add(now, int64(i)*20)
		now = now.Add(200 * time.Millisecond)
	}
	if got < 99 || got > 101 {
		t.Errorf("20 in 200 ms: got %d a second, want 100", got)
	}
	for range 100 {
		got = r.add(now, 99*20)
		now = now.Add(200 * time.Millisecond)
	}
	if got != 0 {
		t.Errorf("at rest: got %d a second, want 0", got)
	}
}

// The number of values of each label is bounded.
func TestMetrics(t *testing.T) {
	r := newPullRig(t)
	close(r.gate)
	if _, err := r.Prefetch(t.Context(), parse(t, pullRef), Request{}, func([]wire.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	families, err := r.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "ballast_") {
			continue
		}
		got = append(got, f.GetName())
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if strings.ContainsAny(l.GetValue(), "/:@") {
					t.Errorf("%s has %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
	if diff := cmp.Diff(got, []string{"ballast_active_pulls", "ballast_build_info", "ballast_facade_refused_total", "ballast_facade_up", "ballast_pull_duration_seconds", "ballast_refused_total", "ballast_signature_checks_total", "ballast_store_bytes", "ballast_store_objects"}); diff != "" {
		t.Errorf("metrics (got, want):\n%s", diff)
	}
}

// waitFor waits for a fact.
func waitFor(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !fact(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// TestLimitShown: as long as a job waits for the limit of a registry, its clients and the list of jobs see that.
func TestLimitShown(t *testing.T) {
	h := converttest.NewHub(t)
	h.Push("Org/Model", "main", map[string]converttest.HubFile{"README.md": {Data: []byte("read me")}})
	h.Limit("", 0, http.Header{"Ratelimit": {`"api";r=0;t=2`}})
	hub, err := huggingface.New(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	client, err := remote.New(remote.Options{Dialects: map[string]remote.Dialect{"hf.co": hub}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	repo, err := client.NodeRepository(remote.Ref{Host: "hf.co", Repository: "Org/Model"})
	if err != nil {
		t.Fatal(err)
	}
	r := newPullRig(t)
	close(r.gate)
	r.resolving = func(ctx context.Context) error {
		_, err := repo.Manifest(ctx, "main")
		return err
	}
	var statuses []wire.EventStatus
	_, err = r.Prefetch(t.Context(), parse(t, pullRef), Request{}, func(events []wire.Event) error {
		for _, e := range events {
			if e.Digest != "" {
				continue
			}
			statuses = append(statuses, e.Status)
			if e.LimitedBy == "" {
				continue
			}
			running, _ := r.List.jobs()
			if left := time.Until(e.Until); e.LimitedBy != "hf.co" || left < 0 || left > 3*time.Second || running[0].LimitedBy != "hf.co" || !running[0].Until.Equal(e.Until) {
				t.Errorf("waits %v for %q; job %+v", left, e.LimitedBy, running[0])
			}
			h.Limit("", 0, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]wire.EventStatus{wire.StatusResolving, wire.StatusWaiting, wire.StatusResolving}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if _, ended := r.List.jobs(); len(ended) != 1 || ended[0].LimitedBy != "" || !ended[0].Until.IsZero() {
		t.Errorf("ended: %+v", ended)
	}
}
