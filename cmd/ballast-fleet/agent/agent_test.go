package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// serve serves what handlers do at a socket.
func serve(t *testing.T, handlers map[string]http.HandlerFunc) *wire.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range handlers {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			h(w, r)
		})
	}
	s := &http.Server{Handler: mux}
	go s.Serve(l)
	c := wire.NewClient(path)
	t.Cleanup(func() { c.Close(); s.Close() })
	return c
}

// daemon serves the pins of a daemon, which has what has returns. A call that drops all counts as a hundred.
func daemon(t *testing.T, has func(wire.FleetPin) bool) (c *wire.Client, calls *int) {
	t.Helper()
	calls = new(int)
	return serve(t, map[string]http.HandlerFunc{
		"PUT /v1/fleet/pins": func(w http.ResponseWriter, r *http.Request) {
			var all, set wire.FleetPins
			if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
				t.Error(err)
			}
			for _, p := range all.Pins {
				if has(p) {
					set.Pins = append(set.Pins, p)
				}
			}
			*calls++
			_ = json.NewEncoder(w).Encode(set)
		},
		"DELETE /v1/fleet/pins": func(w http.ResponseWriter, _ *http.Request) {
			*calls += 100
			_ = json.NewEncoder(w).Encode(wire.FleetPins{})
		},
	}), calls
}

func ready(ref string, pinned ...string) *model {
	return &model{wish: plan.Wish{Keep: 2}, state: v1alpha1.ModelState{Ref: ref, Phase: v1alpha1.PhaseReady, Pinned: pinned}}
}

// TestPinsAreSetAgain after each attempt, as somebody may have removed them, and otherwise only if they change.
func TestPinsAreSetAgain(t *testing.T) {
	c, calls := daemon(t, func(wire.FleetPin) bool { return true })
	a := &Agent{Models: true, daemon: c, ready: true, stale: true, work: map[string]*model{"r/a:1": ready("r/a:1", string(digest.FromString("1")))}}
	for _, want := range []int{1, 1} {
		if err := a.setPins(t.Context()); err != nil || *calls != want {
			t.Errorf("%d calls, %v, want %d", *calls, err, want)
		}
	}
	a.stale = true
	if err := a.setPins(t.Context()); err != nil || *calls != 2 {
		t.Errorf("%d calls, %v", *calls, err)
	}
	a.pinAt = time.Now().Add(-pinEvery)
	if err := a.setPins(t.Context()); err != nil || *calls != 3 {
		t.Errorf("after a while: %d calls, %v", *calls, err)
	}
}

// TestPinsWithoutModelSets are dropped, once for each start of the daemon.
func TestPinsWithoutModelSets(t *testing.T) {
	c, calls := daemon(t, func(wire.FleetPin) bool { return true })
	a := &Agent{daemon: c, work: map[string]*model{}}
	for _, want := range []int{100, 200} {
		a.saw(true, true, nil)
		for range 2 {
			if err := a.setPins(t.Context()); err != nil || *calls != want {
				t.Errorf("%d calls, %v, want %d", *calls, err, want)
			}
		}
	}
}

// TestPinsWithoutNode: an agent that does not ask the API server has the daemon drop them too.
func TestPinsWithoutNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*checkEvery)
	defer cancel()
	dropped := false
	a := &Agent{Log: slog.New(slog.DiscardHandler), daemon: serve(t, map[string]http.HandlerFunc{
		"GET /v1/health": func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(wire.Health{Version: wire.ThisVersion(), ContainerdLoaded: true})
		},
		"DELETE /v1/fleet/pins": func(w http.ResponseWriter, _ *http.Request) {
			dropped = true
			_ = json.NewEncoder(w).Encode(wire.FleetPins{})
			cancel()
		},
	})}
	if err := a.watchDaemon(ctx); err != nil || !dropped {
		t.Errorf("dropped: %t, %v", dropped, err)
	}
}

// TestNewestIsGone: a model whose newest version somebody has removed is pulled again, also if an earlier one is there.
func TestNewestIsGone(t *testing.T) {
	for _, gone := range []string{"1", "2"} {
		m := ready("r/a:1", string(digest.FromString("2")), string(digest.FromString("1")))
		a := &Agent{Models: true, ready: true, stale: true, work: map[string]*model{"r/a:1": m}}
		a.daemon, _ = daemon(t, func(p wire.FleetPin) bool { return p.Digest != digest.FromString(gone) })
		if err := a.setPins(t.Context()); err != nil {
			t.Fatal(err)
		}
		if want := map[string]v1alpha1.Phase{"1": v1alpha1.PhaseReady, "2": v1alpha1.PhasePending}[gone]; m.state.Phase != want || len(m.state.Pinned) != 1 {
			t.Errorf("%s is gone: %+v", gone, m.state)
		}
	}
}

// TestLaterVersionStays: a version that came while pins were set is not one that the daemon lacks.
func TestLaterVersionStays(t *testing.T) {
	old, later := string(digest.FromString("1")), string(digest.FromString("2"))
	m := ready("r/a:1", old)
	a := &Agent{Models: true, ready: true, stale: true, work: map[string]*model{"r/a:1": m}}
	a.daemon, _ = daemon(t, func(wire.FleetPin) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		m.state.Pinned = []string{later, old}
		return false
	})
	if err := a.setPins(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{later}, m.state.Pinned); d != "" || m.state.Phase != v1alpha1.PhaseReady {
		t.Errorf("%s (-want +got):\n%s", m.state.Phase, d)
	}
}

// TestReadyStaysReady while another version of a model is downloaded.
func TestReadyStaysReady(t *testing.T) {
	for want, m := range map[v1alpha1.Phase]*model{v1alpha1.PhaseReady: ready("r/a:1", "sha256:x"), v1alpha1.PhaseDownloading: {state: v1alpha1.ModelState{Phase: v1alpha1.PhasePending}}} {
		m.events = map[digest.Digest]wire.Event{}
		(&Agent{}).progress(m, wire.Event{Status: wire.StatusDownloading, Digest: "sha256:y", Total: 10})
		if m.state.Phase != want {
			t.Errorf("got %s, want %s", m.state.Phase, want)
		}
	}
}

// An earlier agent has written a state.
type earlier struct {
	state v1alpha1.ModelNode
	reads int
}

func (e *earlier) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	e.reads++
	e.state.DeepCopyInto(o.(*v1alpha1.ModelNode))
	return nil
}

func (*earlier) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// TestEarlierState goes on with the state of an earlier agent, whose rate is over, and reads it again if it was removed.
func TestEarlierState(t *testing.T) {
	e := &earlier{}
	e.state.Status = v1alpha1.ModelNodeStatus{
		List: []v1alpha1.ModelState{{Ref: "r/a:1", Phase: v1alpha1.PhaseDownloading, Total: 10, Completed: 5, Rate: 1}}, Disk: &v1alpha1.DiskState{Free: 1},
	}
	a, n := &Agent{Node: "n1", direct: e, work: map[string]*model{}}, &core.Node{}
	n.UID = "u"
	for i, want := range []int{1, 1, 2} {
		a.gone.Store(i == 2)
		if err := a.load(t.Context(), n); err != nil || e.reads != want {
			t.Errorf("%d reads, %v, want %d", e.reads, err, want)
		}
	}
	want := e.state.Status.List[0]
	want.Rate = 0
	if d := cmp.Diff(want, a.work["r/a:1"].state); d != "" || a.usage.Disk == nil {
		t.Errorf("%v (-want +got):\n%s", a.usage, d)
	}
}

// TestWatchesWithoutModels wants an agent without ModelSets to watch its Node and nothing else: the cluster may have no
// other kinds.
func TestWatchesWithoutModels(t *testing.T) {
	for _, models := range []bool{false, true} {
		for of := range (&Agent{Node: "n1", Models: models}).cacheOptions().ByObject {
			if _, ok := of.(*core.Node); !ok && !models {
				t.Errorf("it watches %T", of)
			}
		}
	}
}

// TestLookups: a node asks what a tag points to in its term, again when it is time and at once in another term, and
// forgets the answer when it is not its term.
func TestLookups(t *testing.T) {
	var asked []string
	version, status := wire.FleetVersion{Digest: digest.FromString("1")}, http.StatusOK
	c := serve(t, map[string]http.HandlerFunc{"POST /v1/fleet/version": func(w http.ResponseWriter, r *http.Request) {
		var q wire.FleetVersionRequest
		_ = json.NewDecoder(r.Body).Decode(&q)
		asked = append(asked, q.Ref)
		w.WriteHeader(status)
		if status == http.StatusOK {
			_ = json.NewEncoder(w).Encode(version)
		} else {
			_ = json.NewEncoder(w).Encode(map[string]string{"code": "unavailable", "message": "no answer"})
		}
	}})
	a := &Agent{Refresh: time.Hour, daemon: c, ready: true, poke: make(chan event.GenericEvent, 1), Log: slog.New(slog.DiscardHandler)}
	m := &model{wish: plan.Wish{ModelVersion: v1alpha1.ModelVersion{Node: "n", Term: 1}, Public: true}}
	ask := func() time.Duration {
		a.mu.Lock()
		wait := a.lookUp(t.Context(), "r/a:1", m)
		runs := m.lookup.runs
		a.mu.Unlock()
		if runs {
			<-a.poke
		}
		return wait
	}
	ask()
	if want := (&v1alpha1.LookupState{Term: 1, Digest: string(version.Digest)}); !cmp.Equal(want, m.state.Lookup) {
		t.Errorf("got %+v, want %+v", m.state.Lookup, want)
	}
	if wait := ask(); wait < 44*time.Minute || wait > 76*time.Minute || len(asked) != 1 {
		t.Errorf("again in %v, %d questions", wait, len(asked))
	}
	for i, imported := range []bool{false, true} {
		m.wish.Term, version = int64(4-i), wire.FleetVersion{Imported: imported}
		if ask(); !cmp.Equal(&v1alpha1.LookupState{Term: m.wish.Term}, m.state.Lookup) {
			t.Errorf("no digest: %+v", m.state.Lookup)
		}
	}
	m.wish.Term, m.wish.Digest = 2, "d"
	if ask(); m.state.Lookup.Error == "" { // others may not have what was imported here
		t.Errorf("imported: %+v", m.state.Lookup)
	}
	m.wish.Term, status = 3, http.StatusServiceUnavailable
	if ask(); m.state.Lookup.Term != 3 || m.state.Lookup.Error == "" || time.Until(m.lookup.due) > 20*time.Second {
		t.Errorf("an error: %+v, again at %v", m.state.Lookup, m.lookup.due)
	}
	m.wish.Node = ""
	if ask(); m.state.Lookup != nil || len(asked) != 5 {
		t.Errorf("not its term: %+v, %d questions", m.state.Lookup, len(asked))
	}
	m.wish.Node, m.wish.Term, m.wish.Paused = "n", 4, true
	if ask(); m.state.Lookup != nil || len(asked) != 5 {
		t.Errorf("paused: %+v, %d questions", m.state.Lookup, len(asked))
	}
}

// TestMarksOff: an agent without marks, which has no right to change nodes, leaves the labels that it once set.
func TestMarksOff(t *testing.T) {
	node := &core.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{plan.SetLabel + "old": "ready"}}}
	if err := (Marks{}).set(t.Context(), nil, node, map[string]string{plan.SetLabel + "new": "ready"}, true); err != nil {
		t.Error(err)
	}
}

// TestLacks: a node downloads the version that it is told, once, and what each looks up, again and again.
func TestLacks(t *testing.T) {
	const ready, failed, pending = v1alpha1.PhaseReady, v1alpha1.PhaseFailed, v1alpha1.PhasePending
	for name, tt := range map[string]struct {
		wish  v1alpha1.ModelVersion
		state v1alpha1.ModelState
		lacks bool
		phase v1alpha1.Phase
	}{
		"not known":       {v1alpha1.ModelVersion{}, v1alpha1.ModelState{Phase: pending}, false, pending},
		"no such tag":     {v1alpha1.ModelVersion{Error: "404"}, v1alpha1.ModelState{Phase: pending}, false, failed},
		"the tag is new":  {v1alpha1.ModelVersion{Digest: "d"}, v1alpha1.ModelState{Phase: failed, Error: "404"}, true, pending},
		"known":           {v1alpha1.ModelVersion{Digest: "d"}, v1alpha1.ModelState{Phase: pending}, true, pending},
		"it has it":       {v1alpha1.ModelVersion{Digest: "d"}, v1alpha1.ModelState{Phase: ready, Origin: "d"}, false, ready},
		"of an index":     {v1alpha1.ModelVersion{Digest: "d"}, v1alpha1.ModelState{Phase: ready, Origin: "entry", Version: "d"}, false, ready},
		"another one":     {v1alpha1.ModelVersion{Digest: "e"}, v1alpha1.ModelState{Phase: ready, Origin: "d"}, true, ready},
		"an error before": {v1alpha1.ModelVersion{Digest: "d"}, v1alpha1.ModelState{Phase: ready, Origin: "d", Error: "of another version"}, false, ready},
		"an error then":   {v1alpha1.ModelVersion{Error: "500"}, v1alpha1.ModelState{Phase: ready, Origin: "d"}, false, ready},
		"each":            {v1alpha1.ModelVersion{Each: true}, v1alpha1.ModelState{Phase: ready, Origin: "d"}, true, ready},
		"it was removed":  {v1alpha1.ModelVersion{Digest: "d"}, v1alpha1.ModelState{Phase: pending, Origin: "d"}, true, pending},
	} {
		m := &model{wish: plan.Wish{ModelVersion: tt.wish}, state: tt.state}
		if m.resolved(); m.lacks() != tt.lacks || m.state.Phase != tt.phase || (m.state.Error != "") != (tt.phase == failed) {
			t.Errorf("%s: lacks %t, %+v", name, m.lacks(), m.state)
		}
	}
}
