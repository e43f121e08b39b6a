package admin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/admin"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/care"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A rig is the admin interface of a store with one model.
type rig struct {
	store    *store.Store
	handler  *admin.Handler
	jobs     *fakeJobs
	care     *fakeCare
	node     *fakeNode
	client   *wire.Client
	image    store.Image
	fetcher  *storetest.Fetcher
	weights  []byte
	repaired []digest.Digest
	problems []wire.SnapshotProblem // of snapshots, until repaired
	status   wire.Status
}

const testRef = "reg.example/team/model:v1"

func newRig(t *testing.T) *rig {
	t.Helper()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	r := &rig{store: s, weights: storetest.Random(1, 3<<20)}
	r.fetcher = storetest.NewFetcher(r.weights)
	r.jobs, r.node = &fakeJobs{status: &r.status, store: s}, &fakeNode{}
	r.care = &fakeCare{
		sources: func(digest.Digest) ([]transfer.Source, error) { return storetest.From(r.fetcher), nil },
		restore: func(im store.Image) error {
			if im.Manifest == r.image.Manifest {
				r.add(t, testRef)
			}
			return nil
		},
		refresh: func(d digest.Digest) {
			r.repaired = append(r.repaired, d)
			r.problems = slices.DeleteFunc(r.problems, func(p wire.SnapshotProblem) bool { return p.Table == d })
		},
		problems: &r.problems,
	}
	r.handler = &admin.Handler{
		Store: s, Version: wire.Version{Version: "1.2.3"}, Jobs: r.jobs, Node: r.node, Metrics: http.NotFoundHandler(),
		Care: &care.Care{Store: s, Jobs: r.care, Sources: r.care, Snapshots: r.care, Log: slog.New(slog.DiscardHandler)},
	}
	r.client = serve(t, r.handler.Routes())
	r.image = r.add(t, testRef)
	return r
}

// fakeJobs downloads nothing.
type fakeJobs struct {
	admin.Jobs // nil: a test that needs more sets it
	store      *store.Store
	status     *wire.Status
	prefetch   func(ref remote.Ref, r jobs.Request, event func([]wire.Event) error) (store.Image, error)
}

func (f *fakeJobs) Status(context.Context) wire.Status { return *f.status }

func (f *fakeJobs) Stop(ctx context.Context, table digest.Digest, _ ...string) (int, error) {
	if table == "" {
		return 0, nil
	}
	return f.store.Abandon(ctx, table)
}

func (f *fakeJobs) Prefetch(_ context.Context, ref remote.Ref, r jobs.Request, event func([]wire.Event) error) (store.Image, error) {
	return f.prefetch(ref, r, event)
}

// fakeCare is what a Care needs of others.
type fakeCare struct {
	verified func(name string, err error)
	sources  func(table digest.Digest) ([]transfer.Source, error)
	restore  func(im store.Image) error
	refresh  func(table digest.Digest)
	problems *[]wire.SnapshotProblem
}

func (f *fakeCare) Verifying(_ wire.Kind, name string) (func(int64, int64), func(error)) {
	return func(int64, int64) {}, func(err error) {
		if f.verified != nil {
			f.verified(name, err)
		}
	}
}

func (f *fakeCare) Restore(_ context.Context, im store.Image) error { return f.restore(im) }

func (f *fakeCare) Wanted(_ context.Context, table digest.Digest, _ remote.Ref) ([]transfer.Source, error) {
	return f.sources(table)
}

func (f *fakeCare) Verify(context.Context, digest.Digest) ([]wire.SnapshotProblem, error) {
	return *f.problems, nil
}

func (f *fakeCare) Refresh(_ context.Context, table digest.Digest) error {
	f.refresh(table)
	return nil
}

func (f *fakeCare) Forget(context.Context) error { return nil }

// fakeNode has a health.
type fakeNode struct {
	admin.Node // nil
	health     func() (wire.Health, error)
}

func (f *fakeNode) Health(context.Context) (wire.Health, error) {
	if f.health == nil {
		return wire.Health{}, nil
	}
	return f.health()
}

func (f *fakeNode) Touch() {}

func (f *fakeNode) Early(context.Context, store.Image) (how, whyNot string, err error) {
	return "", "it is not", nil
}

// A puller is a containerd that pulls for pods.
type puller func(ref, handler string, auth *cri.AuthConfig) error

func (p puller) Pull(_ context.Context, ref, handler string, auth *cri.AuthConfig) (string, error) {
	return "image", p(ref, handler, auth)
}

// images are those of a containerd that only knows which models it has; true: pinned.
type images map[digest.Digest]bool

func (l images) MarkImage(_ context.Context, _ string, model digest.Digest) error {
	l[model] = false
	return nil
}

func (l images) PinImages(_ context.Context, models map[digest.Digest]bool) (map[digest.Digest]bool, error) {
	has := map[digest.Digest]bool{}
	for d := range l {
		l[d] = models[d]
		if models[d] {
			has[d] = true
		}
	}
	return has, nil
}

// fakeMounts are mounts on the host.
type fakeMounts struct {
	admin.Mounts // nil
	list         *[]wire.Mount
}

func (f fakeMounts) List(context.Context) ([]wire.Mount, error) { return *f.list, nil }

// serve serves h over a unix socket and returns a client of it.
func serve(t *testing.T, h http.Handler) *wire.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until Close
	}()
	c := wire.NewClient(path)
	t.Cleanup(func() {
		c.Close()
		server.Close()
		l.Close()
		<-done
	})
	return c
}

// add records a model that is not downloaded yet.
func (r *rig) add(t *testing.T, ref string) store.Image {
	t.Helper()
	table := storetest.NewBuilder("model").Raw("weights.bin", r.weights, 0o640).Inline("config.json", []byte("{}"), 0o644).Put(t, r.store)
	manifest, err := r.store.PutBytes([]byte(`{"a":"manifest"}`))
	if err != nil {
		t.Fatal(err)
	}
	config, err := r.store.PutBytes([]byte(`{"config":{"paramSize":"1B"}}`))
	if err != nil {
		t.Fatal(err)
	}
	tab, err := r.store.Table(table)
	if err != nil {
		t.Fatal(err)
	}
	im := store.Image{Manifest: manifest, Config: config, Table: table, Origin: tab.Origin, Refs: []string{ref}, Size: int64(len(r.weights)) + 2}
	if err := r.store.PutImage(im); err != nil {
		t.Fatal(err)
	}
	return im
}

func (r *rig) hydrate(t *testing.T) {
	t.Helper()
	if err := r.store.Hydrate(t.Context(), r.image.Table, store.HydrateOptions{Sources: storetest.From(r.fetcher)}); err != nil {
		t.Fatal(err)
	}
}

// TestStatusRoutes: who only watches the daemon sees its health and can do nothing else.
func TestStatusRoutes(t *testing.T) {
	r := newRig(t)
	status := serve(t, r.handler.StatusRoutes())
	r.node.health = func() (wire.Health, error) {
		return wire.Health{Mirrors: []wire.Mirror{{Address: "http://m", Last: &wire.Left{Reason: "absent", Error: "404: no team/private"}}}}, nil
	}
	for want, c := range map[string]*wire.Client{"absent": status, "absent: 404: no team/private": r.client} {
		if v, err := c.Health(t.Context()); err != nil || len(v.Mirrors) != 1 || v.Mirrors[0].Why() != want {
			t.Errorf("health: %+v, %v; want %q", v.Mirrors, err, want)
		}
	}
	if _, err := status.RemoveImage(t.Context(), testRef, false); !errdefs.IsNotImplemented(err) {
		t.Errorf("remove an image: %v", err)
	}
	if _, err := status.Images(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("list the images: %v", err)
	}
	if _, err := status.SetFleetPins(t.Context(), wire.FleetPins{}); err == nil {
		t.Error("pins can be set")
	}
	r.handler.Images = images{}
	if err := status.DropFleetPins(t.Context()); err != nil {
		t.Errorf("drop the pins of a cluster: %v", err)
	}
	if _, err := r.client.Images(t.Context()); err != nil {
		t.Errorf("at the admin socket: %v", err)
	}
}

// TestFleetRoutes: the agent of a cluster downloads models and changes its own pins, and can do nothing else.
func TestFleetRoutes(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	ctx := t.Context()
	var pulled []string
	var containerd error
	of := images{}
	r.handler.Images, r.handler.Facade = of, new(registry.Handler)
	r.handler.Containerd = puller(func(ref, handler string, auth *cri.AuthConfig) error {
		if containerd == nil {
			pulled = append(pulled, fmt.Sprintf("%s %s %s:%s", ref, handler, auth.GetUsername(), auth.GetPassword()))
		}
		return containerd
	})
	fleet := serve(t, r.handler.FleetRoutes())
	if _, err := fleet.RemoveImage(ctx, testRef, false); !errdefs.IsNotImplemented(err) {
		t.Errorf("remove an image: %v", err)
	}
	if _, err := fleet.Unpin(ctx, testRef); !errdefs.IsNotImplemented(err) {
		t.Errorf("unpin: %v", err)
	}
	var asked jobs.Request
	var refusal error
	r.jobs.prefetch = func(_ remote.Ref, req jobs.Request, _ func([]wire.Event) error) (store.Image, error) {
		asked = req
		return r.image, refusal
	}
	q := wire.FleetPullRequest{Ref: testRef, Handler: "ballast", Username: "u", Password: "p", Rate: 7, Set: "chat"}
	im, err := fleet.FleetPull(ctx, q, func(wire.Event) {})
	if err != nil || im.Manifest != r.image.Manifest {
		t.Fatalf("pull: %v, %v", im.Manifest, err)
	}
	if d := cmp.Diff([]string{testRef + " ballast u:p"}, pulled); d != "" {
		t.Errorf("pulls by containerd (-want +got):\n%s", d)
	}
	want := jobs.Request{PrefetchRequest: wire.PrefetchRequest{Ref: testRef, NoPin: true, Rate: 7, List: "fleet/chat"}, ForPods: true, Credentials: &remote.Credentials{Username: "u", Secret: "p"}}
	if d := cmp.Diff(want, asked); d != "" {
		t.Errorf("download (-want +got):\n%s", d)
	}
	r.handler.Providers = func(host, repository string) (remote.Credentials, error) {
		return remote.Credentials{Username: "plugin", Secret: host + "/" + repository}, nil
	}
	_, err = fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef, Handler: "ballast"}, func(wire.Event) {})
	if name, _, _ := strings.Cut(testRef, ":"); err != nil || asked.Credentials == nil || asked.Credentials.Secret != name || pulled[1] != testRef+" ballast plugin:"+name {
		t.Errorf("with the credentials of the kubelet: %v, %v", err, pulled)
	}
	r.handler.Providers, pulled = nil, pulled[:1]
	refusal = fmt.Errorf("%w: %w", jobs.ErrNodeOnly, errdefs.ErrUnauthenticated)
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef}, func(wire.Event) {}); err != nil || len(pulled) != 2 {
		t.Errorf("a model for which containerd has credentials of its own: %v, %d pulls", err, len(pulled))
	}
	containerd = errors.New("401")
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef}, func(wire.Event) {}); !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), jobs.ErrNodeOnly.Error()) {
		t.Errorf("a model for which only the node has credentials: %v", err)
	}
	containerd, refusal = fmt.Errorf("no such blob: %w", errdefs.ErrNotFound), nil
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef}, func(wire.Event) {}); err == nil || !strings.Contains(err.Error(), "ballast setup --registry "+strings.Split(testRef, "/")[0]) || !strings.Contains(err.Error(), "no such blob") {
		t.Errorf("a model that containerd cannot pull itself: %v", err)
	}
	pulled = pulled[:2]
	containerd, refusal = nil, errdefs.ErrNotFound
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef}, func(wire.Event) {}); !errdefs.IsNotFound(err) || len(pulled) != 2 {
		t.Errorf("a model that is not there: %v, %d pulls", err, len(pulled))
	}
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef, Rate: -1}, func(wire.Event) {}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a negative rate: %v", err)
	}
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef, Version: "sha256:x"}, func(wire.Event) {}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a wrong digest: %v", err)
	}
	refusal = nil
	if _, err := fleet.FleetPull(ctx, wire.FleetPullRequest{Ref: testRef, Version: r.image.Manifest}, func(wire.Event) {}); err != nil || asked.Version != r.image.Manifest {
		t.Errorf("a version: %v, asked for %s", err, asked.Version)
	}
	if _, err := r.client.Pin(ctx, wire.PinRequest{Name: testRef}); err != nil {
		t.Fatal(err)
	}
	pins := func() (names []string) {
		all, err := r.client.Pins(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			names = append(names, p.Name)
		}
		slices.Sort(names)
		return names
	}
	mine := wire.FleetPin{Ref: testRef, Digest: im.Manifest}
	gone := wire.FleetPin{Ref: testRef, Digest: digest.FromString("gone")}
	set, err := fleet.SetFleetPins(ctx, wire.FleetPins{Pins: []wire.FleetPin{mine, gone}})
	if d := cmp.Diff(wire.FleetPins{Pins: []wire.FleetPin{mine}}, set); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if d := cmp.Diff([]string{"fleet/" + testRef + "@" + im.Manifest.String(), testRef}, pins()); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	if d := cmp.Diff(images{im.Manifest: true}, of); d != "" {
		t.Errorf("images (-want +got):\n%s", d)
	}
	delete(of, im.Manifest)
	if set, err := fleet.SetFleetPins(ctx, wire.FleetPins{Pins: []wire.FleetPin{mine}}); err != nil || len(set.Pins) > 0 || len(pins()) != 2 {
		t.Errorf("a model whose image was removed from containerd: %v, %v, pins %v", set, err, pins())
	}
	if _, err := fleet.SetFleetPins(ctx, wire.FleetPins{}); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{testRef}, pins()); d != "" {
		t.Errorf("the pin of the operator (-want +got):\n%s", d)
	}
	if _, err := fleet.SetFleetPins(ctx, wire.FleetPins{Pins: slices.Repeat([]wire.FleetPin{gone}, 1<<10+1)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many pins: %v", err)
	}
	running := wire.Job{Kind: wire.KindContainerd, Table: r.image.Table, Total: 9, Completed: 4, Rate: 2}
	ended, resolving, prefetch := running, running, running
	ended.Ended, resolving.Total, prefetch.Kind = time.Now(), 0, wire.KindPrefetch
	r.status = wire.Status{Jobs: []wire.Job{ended, resolving, prefetch, running}}
	waits, err := fleet.FleetPulls(ctx)
	if d := cmp.Diff([]wire.Pull{{Refs: r.image.Refs, Total: 9, Completed: 4, Rate: 2}}, waits); d != "" || err != nil {
		t.Errorf("pulls: %v (-want +got):\n%s", err, d)
	}
}

func TestImages(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	all, err := r.client.Images(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].State != wire.StateAbsent || all[0].Manifest != r.image.Manifest {
		t.Fatalf("before the fetch: %+v", all)
	}
	r.hydrate(t)
	if err := r.store.AddRef("snapshot/7", r.image.Table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if all, err = r.client.Images(ctx); err != nil {
		t.Fatal(err)
	}
	if all[0].State != wire.StateComplete || all[0].Snapshots != 1 || len(all[0].Pins) != 0 {
		t.Errorf("after the fetch: %+v", all[0])
	}
	for _, name := range []string{
		testRef, "oci://" + testRef, r.image.Manifest.String(), r.image.Manifest.Encoded()[:8], r.image.Origin.Digest.String(),
	} {
		d, err := r.client.Image(ctx, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, f := range d.Files {
			got = append(got, fmt.Sprintf("%s %d %o %v", f.Path, f.Size, f.Mode, f.Digest == ""))
		}
		want := []string{"config.json 2 644 false", fmt.Sprintf("weights.bin %d 640 false", len(r.weights))}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("%s: files (got, want):\n%s", name, diff)
		}
		if got, want := string(d.ConfigJSON), `{"config":{"paramSize":"1B"}}`; got != want {
			t.Errorf("config: got %s, want %s", got, want)
		}
	}
	for name, is := range map[string]func(error) bool{
		"reg.example/team/model:v2": errdefs.IsNotFound,
		"0123456789":                errdefs.IsNotFound,
		"model":                     errdefs.IsInvalidArgument,
		"":                          errdefs.IsInvalidArgument,
	} {
		if _, err := r.client.Image(ctx, name); !is(err) {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

// TestUnpinLeavesOtherPin pins a model by two names: removing one pin, even twice, leaves the other.
func TestUnpinLeavesOtherPin(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.hydrate(t)
	const other = "registry.example/other:v1"
	if err := jobs.AddPin(r.store, modelname.Pin(other), r.image.Table, time.Time{}, remote.Ref{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Pin(ctx, wire.PinRequest{Name: testRef}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} {
		if pins, err := r.client.Unpin(ctx, testRef); err != nil || len(pins) != want {
			t.Errorf("unpin: %+v, %v, want %d", pins, err, want)
		}
	}
	if pins, err := r.client.Pins(ctx); err != nil || len(pins) != 1 || pins[0].Name != other {
		t.Errorf("pins that are left: %+v, %v", pins, err)
	}
	if _, err := r.client.Unpin(ctx, "registry.example/nobody:v1"); !errdefs.IsNotFound(err) {
		t.Errorf("unpin of what is not there: %v", err)
	}
	if pins, err := r.client.Unpin(ctx, r.image.Manifest.String()); err != nil || len(pins) != 1 {
		t.Errorf("unpin by digest: %+v, %v", pins, err)
	}
}

func TestPinAndRemove(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.hydrate(t)
	pins, err := r.client.Pin(ctx, wire.PinRequest{Name: r.image.Manifest.String(), TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if len(pins) != 1 || pins[0].Name != testRef || time.Until(pins[0].Expires) < 59*time.Minute {
		t.Fatalf("pins: %+v", pins)
	}
	res, err := r.client.GC(ctx, wire.GCOptions{})
	if err != nil || res.Objects != 0 {
		t.Errorf("collector takes what is pinned: %+v, %v", res, err)
	}
	if pins, err = r.client.Unpin(ctx, testRef); err != nil || len(pins) != 1 {
		t.Errorf("unpin: %+v, %v", pins, err)
	}
	if pins, err = r.client.Pins(ctx); err != nil || len(pins) != 0 {
		t.Errorf("pins that are left: %+v, %v", pins, err)
	}
	dry, err := r.client.GC(ctx, wire.GCOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	if dry.Bytes < int64(len(r.weights)) {
		t.Errorf("dry run counts %d bytes, want %d and more", dry.Bytes, len(r.weights))
	}
	if _, err := r.client.Pin(ctx, wire.PinRequest{Name: testRef}); err != nil {
		t.Fatal(err)
	}
	gone, err := r.client.RemoveImage(ctx, testRef, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(gone.Manifests, []digest.Digest{r.image.Manifest}); diff != "" {
		t.Errorf("removed (got, want):\n%s", diff)
	}
	if _, err := r.client.Image(ctx, testRef); !errdefs.IsNotFound(err) {
		t.Errorf("after the removal: got %v, want ErrNotFound", err)
	}
	if pins, err = r.client.Pins(ctx); err != nil || len(pins) != 0 {
		t.Errorf("pins after the removal: %+v, %v", pins, err)
	}
	if _, err := r.client.GC(ctx, wire.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	u, err := r.client.Usage(ctx)
	if err != nil || u.Unique != 0 {
		t.Errorf("after the collector: %+v, %v", u, err)
	}
	if _, err := r.client.GC(ctx, wire.GCOptions{Keep: -1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("negative keep: got %v", err)
	}
}

// Removing one of two references leaves the model.
func TestRemovedReferenceLeavesModel(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	const other = "reg.example/team/model:v2"
	r.add(t, other)
	for _, ref := range []string{testRef, other} {
		if _, err := r.client.Pin(ctx, wire.PinRequest{Name: ref}); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := r.client.RemoveImage(ctx, testRef, false)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(gone, wire.Removed{Manifests: []digest.Digest{}, Untagged: []string{testRef}}); diff != "" {
		t.Errorf("removed (got, want):\n%s", diff)
	}
	if _, err := r.client.Image(ctx, testRef); !errdefs.IsNotFound(err) {
		t.Errorf("removed reference: got %v, want ErrNotFound", err)
	}
	d, err := r.client.Image(ctx, other)
	if err != nil || len(d.Pins) != 1 || d.Pins[0].Name != other {
		t.Errorf("other reference: %+v, %v", d.Pins, err)
	}
}

// The tag of an index also names the model in it.
func TestIndexTagNamesItsModel(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.image.Refs = []string{"reg.example/team/model@" + r.image.Origin.Digest.String()}
	if err := r.store.Catalog.RemoveImage(r.image.Manifest); err != nil {
		t.Fatal(err)
	}
	if err := r.store.PutImage(r.image); err != nil {
		t.Fatal(err)
	}
	const ref = "reg.example/team/list:v1"
	entry := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":16,"platform":{"os":"linux","architecture":%%q}}`, r.image.Manifest)
	index := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` + fmt.Sprintf(entry, "amd64") + "," + fmt.Sprintf(entry, "arm64") + `]}`
	d, err := r.store.PutBytes([]byte(index))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.PutImage(store.Image{Manifest: d, Origin: filetable.Origin{Format: "index", Digest: digest.FromString("o"), Mapping: 1}, Refs: []string{ref}}); err != nil {
		t.Fatal(err)
	}
	all, err := r.client.Images(ctx)
	if err != nil {
		t.Fatal(err)
	}
	states := map[digest.Digest]wire.ImageState{}
	for _, im := range all {
		states[im.Manifest] = im.State
	}
	if diff := cmp.Diff(states, map[digest.Digest]wire.ImageState{d: wire.StateIndex, r.image.Manifest: wire.StateAbsent}); diff != "" {
		t.Errorf("states (got, want):\n%s", diff)
	}
	if got, err := r.client.Image(ctx, ref); err != nil || got.Manifest != r.image.Manifest {
		t.Errorf("inspect: %v, %v", got.Manifest, err)
	}
	pins, err := r.client.Pin(ctx, wire.PinRequest{Name: ref})
	if err != nil || len(pins) != 1 || pins[0].Name != ref || pins[0].Table != r.image.Table {
		t.Errorf("pin: %+v, %v", pins, err)
	}
	gone, err := r.client.RemoveImage(ctx, ref, false)
	if err != nil || len(gone.Manifests) != 2 {
		t.Errorf("removed: %+v, %v", gone, err)
	}
	if pins, err = r.client.Pins(ctx); err != nil || len(pins) != 0 {
		t.Errorf("pins after the removal: %+v, %v", pins, err)
	}
}

// TestVerify damages an object, which is reported and then repaired.
func TestVerify(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.hydrate(t)
	d := digest.FromBytes(r.weights)
	path := filepath.Join(r.store.ObjectsDir(), store.ObjectName(d))
	res, err := r.client.Verify(ctx, wire.VerifyRequest{}, func(wire.VerifyEvent) {})
	if err != nil || len(res.Bad) != 0 || res.Bytes < int64(len(r.weights)) {
		t.Fatalf("healthy: %+v, %v", res, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 1<<20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for range 2 { // reporting changes nothing
		res, err = r.client.Verify(ctx, wire.VerifyRequest{Name: testRef}, func(wire.VerifyEvent) {})
		if err != nil || len(res.Bad) != 1 || res.Bad[0].Digest != d {
			t.Fatalf("damaged: %+v, %v", res, err)
		}
	}
	res, err = r.client.Verify(ctx, wire.VerifyRequest{Repair: true}, func(wire.VerifyEvent) {})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(res.Repaired, []string{testRef}); diff != "" {
		t.Errorf("repaired (got, want):\n%s", diff)
	}
	if diff := cmp.Diff(r.repaired, []digest.Digest{r.image.Table}); diff != "" {
		t.Errorf("repaired snapshots (got, want):\n%s", diff)
	}
	p, err := os.ReadFile(path)
	if err != nil || string(p) != string(r.weights) {
		t.Errorf("the object is not repaired: %v", err)
	}
	if _, err := r.client.Verify(ctx, wire.VerifyRequest{Name: "reg.example/x:y"}, func(wire.VerifyEvent) {}); !errdefs.IsNotFound(err) {
		t.Errorf("unknown model: got %v, want ErrNotFound", err)
	}
}

// A snapshot that shows a model wrongly is reported, and shown again without a download.
func TestVerifySnapshots(t *testing.T) {
	r := newRig(t)
	r.hydrate(t)
	sent := r.fetcher.Calls(digest.FromBytes(r.weights))
	unknown := wire.SnapshotProblem{Snapshot: "8", Problem: "nobody knows what it showed"}
	r.problems = []wire.SnapshotProblem{{Snapshot: "7", Table: r.image.Table, Path: "model.gguf", Problem: "reads as zeros"}, unknown}
	for _, repair := range []bool{false, true} {
		res, err := r.client.Verify(t.Context(), wire.VerifyRequest{Repair: repair}, func(wire.VerifyEvent) {})
		if err != nil || len(res.Bad) != 0 || len(res.Snapshots) != 2 {
			t.Fatalf("repair %t: got %+v, %v", repair, res, err)
		}
		wantLeft, wantRepaired := 2, []string(nil)
		if repair {
			wantLeft, wantRepaired = 1, []string{testRef}
		}
		if diff := cmp.Diff(res.Repaired, wantRepaired); diff != "" || res.LeftSnapshots != wantLeft {
			t.Errorf("repair %t: %d left, want %d; repaired (got, want):\n%s", repair, res.LeftSnapshots, wantLeft, diff)
		}
	}
	if got := r.fetcher.Calls(digest.FromBytes(r.weights)); got != sent {
		t.Errorf("got %d requests, want none", got-sent)
	}
}

// fileErrors returns errors of the file system: a retry does not help.
func fileErrors(t *testing.T) []error {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, isDir := os.ReadFile(dir)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer server.Close()
	opened, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, sent := server.Client().Post(server.URL, "", opened) // reads the directory, and closes it
	errs := []error{
		os.Mkdir(filepath.Join(file, "x"), 0o700),      // ENOTDIR
		os.Remove("/proc/self/status"),                 // EPERM
		os.Link(file, "/proc/self/x"),                  // EXDEV or ENOENT, as *os.LinkError
		syscall.Mkdir(filepath.Join(file, "x"), 0o700), // a bare ENOTDIR
		isDir, // EISDIR
		os.WriteFile("/proc/sys/kernel/osrelease", nil, 0), // EACCES or EPERM
		sent,
	}
	for i, err := range errs {
		if err == nil {
			t.Fatalf("no error %d", i)
		}
	}
	return errs
}

// TestErrorCategories sends errors of all categories over the socket.
func TestErrorCategories(t *testing.T) {
	var send error
	r := newRig(t)
	r.jobs.prefetch = func(remote.Ref, jobs.Request, func([]wire.Event) error) (store.Image, error) {
		return store.Image{}, fmt.Errorf("prefetch: %w", send)
	}
	r.node.health = func() (wire.Health, error) { return wire.Health{}, fmt.Errorf("prefetch: %w", send) }
	tests := []struct{ send, want error }{
		{errdefs.ErrNotFound, errdefs.ErrNotFound},
		{errdefs.ErrUnauthenticated, errdefs.ErrUnauthenticated},
		{errdefs.ErrPermissionDenied, errdefs.ErrPermissionDenied},
		{&verify.Error{Want: "sha256:a", Got: "sha256:b"}, errdefs.ErrDataLoss},
		{errdefs.ErrResourceExhausted, errdefs.ErrResourceExhausted},
		{&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, errdefs.ErrResourceExhausted},
		{errdefs.ErrNotImplemented, errdefs.ErrNotImplemented},
		{errdefs.ErrAborted, errdefs.ErrAborted},
		{errdefs.ErrUnavailable, errdefs.ErrUnavailable},
		{&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}, errdefs.ErrUnavailable},
		{&url.Error{Op: "Get", URL: "http://x", Err: io.EOF}, errdefs.ErrUnavailable},
		{os.ErrDeadlineExceeded, errdefs.ErrUnavailable},
		{io.ErrUnexpectedEOF, errdefs.ErrUnavailable},
		{errdefs.ErrInvalidArgument, errdefs.ErrInvalidArgument},
		{fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, errdefs.ErrDataLoss), errdefs.ErrDataLoss},
		{errdefs.ErrFailedPrecondition, errdefs.ErrFailedPrecondition},
		{context.DeadlineExceeded, context.DeadlineExceeded},
		{errors.New("something else"), errdefs.ErrUnknown},
	}
	for _, err := range fileErrors(t) {
		tests = append(tests, struct{ send, want error }{err, errdefs.ErrUnknown})
	}
	for _, tt := range tests {
		send = tt.send
		_, stream := r.client.Prefetch(t.Context(), wire.PrefetchRequest{Ref: testRef}, func(wire.Event) {})
		_, call := r.client.Health(t.Context())
		for kind, err := range map[string]error{"stream": stream, "call": call} {
			if !errors.Is(err, tt.want) {
				t.Errorf("%s of %v: got %v, want %v", kind, tt.send, err, tt.want)
			}
			if got, want := fmt.Sprint(err), wire.Text(fmt.Errorf("prefetch: %w", tt.send)); got != want {
				t.Errorf("%s of %v: message: got %q, want %q", kind, tt.send, got, want)
			}
		}
	}
}

func TestPrefetchStream(t *testing.T) {
	r := newRig(t)
	var got jobs.Request
	var parsed remote.Ref
	r.jobs.prefetch = func(ref remote.Ref, req jobs.Request, event func([]wire.Event) error) (store.Image, error) {
		got, parsed = req, ref
		return r.image, event([]wire.Event{{Status: "resolving"}, {Status: "downloading", Total: 10, Completed: 5}})
	}
	var statuses []string
	im, err := r.client.Prefetch(t.Context(), wire.PrefetchRequest{Ref: "oci://REG.example/team/model", TTL: time.Minute}, func(e wire.Event) {
		statuses = append(statuses, fmt.Sprint(e.Status, e.Completed))
	})
	if err != nil {
		t.Fatal(err)
	}
	if im.Manifest != r.image.Manifest {
		t.Errorf("image: got %+v", im)
	}
	if diff := cmp.Diff(statuses, []string{"resolving0", "downloading5"}); diff != "" {
		t.Errorf("events (got, want):\n%s", diff)
	}
	if want := "reg.example/team/model:latest"; parsed.String() != want || got.TTL != time.Minute {
		t.Errorf("request: got %s, %+v, want %s", parsed, got, want)
	}
	for _, bad := range []wire.PrefetchRequest{{Ref: "model"}, {Ref: ""}, {Ref: testRef, TTL: -1}, {Ref: testRef, Rate: -1}} {
		if _, err := r.client.Prefetch(t.Context(), bad, func(wire.Event) {}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: got %v, want ErrInvalidArgument", bad, err)
		}
	}
}

// A stream without a last line is an interruption; the request can be resumed.
func TestLostStreamIsResumable(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "{\"status\":\"downloading\"}\n")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	if _, err := c.Prefetch(t.Context(), wire.PrefetchRequest{Ref: testRef}, func(wire.Event) {}); !errdefs.IsAborted(err) {
		t.Errorf("got %v, want ErrAborted", err)
	}
}
