package agent

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// checkEvery is the interval between checks of the daemon, pinEvery that between those of its models, lookUsage that
// between looks at its disk and mirrors, and answerWithin how long it may take for a short answer.
const (
	checkEvery   = 5 * time.Second
	pinEvery     = 10 * time.Second
	lookUsage    = 5 * time.Minute
	answerWithin = 30 * time.Second
)

// An Agent has the daemon of its node do what the cluster wishes, and is a prometheus.Collector. The exported fields
// are set before Run.
type Agent struct {
	Node      string // its name; empty: only the daemon is watched, and drops pins
	Marks     Marks
	Models    bool          // fetch the models of ModelSets
	Hold      bool          // the taint, until the node has its models
	Handler   string        // runtime handler of the pods that use models
	Namespace string        // of pull secrets
	Refresh   time.Duration // how often tags are looked up
	Socket    string        // of ballastd
	Log       *slog.Logger

	daemon *wire.Client

	client client.Client // reads nodes and sets from the watches
	direct client.Reader // reads the rest
	poke   chan event.GenericEvent

	gone    atomic.Bool // the ModelNode was removed
	loaded  types.UID   // of the node whose ModelNode is known; what follows is that
	written v1alpha1.ModelNodeStatus
	at      time.Time // of the last write
	pinned  []wire.FleetPin
	pinAt   time.Time                // of the last answer about pins
	usage   v1alpha1.ModelNodeStatus // Disk and Received
	looked  time.Time                // when usage was had
	omitted int                      // models

	mu    sync.Mutex        // guards the fields below
	ready bool              // the daemon
	pulls []wire.Pull       // of containerd
	stale bool              // the daemon may lack pins, also pinned ones
	work  map[string]*model // by reference
}

// A model is the work on a model.
type model struct {
	tries
	state  v1alpha1.ModelState
	wish   plan.Wish
	stop   context.CancelFunc // of the attempt that runs; nil: none
	events map[digest.Digest]wire.Event
	lookup lookup
}

// A lookup is the work on what a tag points to, on the node that looks it up for all.
type lookup struct {
	tries
	runs bool
}

// tries say when something is tried next.
type tries struct {
	due      time.Time
	failures int // in a row
}

// failed records that an attempt has failed.
func (t *tries) failed() {
	t.failures++
	t.due = time.Now().Add(plan.Retry(t.failures))
}

// cacheOptions restrict the watches of an agent to its own node, but for that of the plans.
func (a *Agent) cacheOptions() cache.Options {
	own := fields.OneTermEqualSelector("metadata.name", a.Node)
	by := map[client.Object]cache.ByObject{&core.Node{}: {Field: own}}
	if a.Models { // otherwise the cluster may have no such kind
		by[&v1alpha1.ModelNode{}] = cache.ByObject{Field: own}
	}
	return cache.Options{ByObject: by, DefaultTransform: a.slim}
}

// slim removes from an object what the agent does not read.
func (a *Agent) slim(o any) (any, error) {
	switch o := o.(type) {
	case *core.Node:
		o.ManagedFields, o.Status = nil, core.NodeStatus{}
	case *v1alpha1.ModelPlan:
		o.ManagedFields = nil
		o.Spec.Turns = slices.DeleteFunc(o.Spec.Turns, func(node string) bool { return node != a.Node })
	}
	return o, nil
}

// Run does the work of the agent until ctx ends. newManager returns a manager with options besides these.
func (a *Agent) Run(ctx context.Context, newManager func(manager.Options) (manager.Manager, error)) error {
	a.daemon = wire.NewClient(a.Socket)
	defer a.daemon.Close()
	if a.Node == "" {
		return a.watchDaemon(ctx)
	}
	mgr, err := newManager(manager.Options{Cache: a.cacheOptions()})
	if err != nil {
		return err
	}
	if err := a.setup(mgr); err != nil {
		return err
	}
	defer a.end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.watchDaemon(ctx) })
	g.Go(func() error { return mgr.Start(ctx) })
	return g.Wait()
}

func (a *Agent) setup(mgr manager.Manager) error {
	a.client, a.direct, a.poke, a.work = mgr.GetClient(), mgr.GetAPIReader(), make(chan event.GenericEvent, 1), map[string]*model{}
	node := reconcile.Request{NamespacedName: types.NamespacedName{Name: a.Node}}
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{node} })
	b := ctrl.NewControllerManagedBy(mgr).Named("agent").Watches(&core.Node{}, all).WatchesRawSource(source.Channel(a.poke, all))
	if a.Models {
		removed := handler.Funcs{DeleteFunc: func(_ context.Context, _ event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			a.gone.Store(true)
			q.Add(node)
		}}
		b = b.Watches(&v1alpha1.ModelPlan{}, all).Watches(&v1alpha1.ModelNode{}, removed, builder.OnlyMetadata)
	}
	return b.Complete(a)
}

// wake has the node reconciled soon.
func (a *Agent) wake() {
	select {
	case a.poke <- event.GenericEvent{Object: &core.Node{}}:
	default: // it will be
	}
}

// Reconcile compares the node with what the cluster wishes.
func (a *Agent) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var node core.Node
	if err := a.client.Get(ctx, client.ObjectKey{Name: a.Node}, &node); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	var plans v1alpha1.ModelPlanList
	var wishes map[string]plan.Wish
	again := time.Hour
	if a.Models {
		if err := a.load(ctx, &node); err != nil {
			return reconcile.Result{}, err
		}
		if err := a.client.List(ctx, &plans); err != nil {
			return reconcile.Result{}, err
		}
		var omitted int
		wishes, omitted = plan.Wishes(plans.Items, plan.Node{Name: node.Name, Labels: node.Labels})
		if omitted > 0 && omitted != a.omitted {
			a.Log.Warn("the node does not get all models of its sets", "omitted", omitted)
		}
		a.omitted = omitted
		again = min(again, a.start(ctx, wishes))
	}
	if err := a.setPins(ctx); err != nil { // without ModelSets there are none
		a.Log.Warn("pins are not set", "err", err)
		again = min(again, checkEvery)
	}
	if len(a.pinned) > 0 {
		again = min(again, pinEvery)
	}
	states, ready := a.states()
	var unwritten error
	if a.Models {
		if ready {
			again = min(again, a.look(ctx))
		}
		wait, err := a.write(ctx, states)
		again, unwritten = min(again, wait), err
	}
	if ready {
		want := plan.Labels(plans.Items, node.Labels, states)
		held := a.Hold && plan.Holds(wishes, states)
		switch err := a.Marks.set(ctx, a.client, &node, want, !held); {
		case apierrors.IsConflict(err): // the change of another one, which wakes this again
		case err != nil:
			return reconcile.Result{}, err
		}
	}
	if unwritten != nil {
		return reconcile.Result{}, unwritten
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// load reads the ModelNode of an earlier agent, or creates one, also when it was removed.
func (a *Agent) load(ctx context.Context, node *core.Node) error {
	if a.gone.Swap(false) {
		a.loaded = ""
	}
	if a.loaded == node.UID {
		return nil
	}
	var is v1alpha1.ModelNode
	err := a.direct.Get(ctx, client.ObjectKey{Name: a.Node}, &is)
	if apierrors.IsNotFound(err) {
		is.Name = a.Node
		is.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
		err = a.client.Create(ctx, &is)
	}
	if err != nil {
		return err
	}
	a.loaded, a.written = node.UID, is.Status
	if is.Status.Disk != nil {
		a.usage = is.Status
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range is.Status.List {
		if a.work[s.Ref] == nil {
			s.Rate = 0 // nothing is downloaded yet
			a.work[s.Ref] = &model{state: s}
		}
	}
	return nil
}

// start starts the attempts that are due, stops those for models that nothing wishes, and returns when the next one
// is due.
func (a *Agent) start(ctx context.Context, wishes map[string]plan.Wish) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref, m := range a.work {
		if _, ok := wishes[ref]; !ok {
			if m.stop != nil {
				m.stop()
			}
			delete(a.work, ref)
		}
	}
	next := time.Hour
	for ref, w := range wishes {
		m := a.work[ref]
		if m == nil {
			m = &model{state: v1alpha1.ModelState{Ref: ref, Phase: v1alpha1.PhasePending, Since: metav1.Now()}}
			a.work[ref] = m
		}
		if m.stop != nil && (m.wish.Rate != w.Rate || m.wish.Set != w.Set) {
			m.stop() // and once more, with the other rate
		}
		if m.wish.Digest != w.Digest {
			m.tries = tries{}
		}
		m.wish = w
		m.state.Pinned = m.state.Pinned[:min(len(m.state.Pinned), w.Keep)]
		next = min(next, a.lookUp(ctx, ref, m))
		m.resolved()
		if m.stop != nil || !a.ready || w.Paused || !m.lacks() || w.Queued && m.state.Phase != v1alpha1.PhaseReady {
			continue
		}
		if wait := time.Until(m.due); wait > 0 {
			next = min(next, wait)
			continue
		}
		attempt, stop := context.WithCancel(context.WithoutCancel(ctx))
		m.stop, m.events = stop, map[digest.Digest]wire.Event{}
		go a.attempt(attempt, ref, w, m)
	}
	return next
}

// resolved records why it is not known what to download, or that it is. The caller holds Agent.mu.
func (m *model) resolved() {
	switch w := m.wish; {
	case m.stop != nil:
	case w.Known() && m.failures == 0:
		m.state.Error = ""
		if m.state.Phase == v1alpha1.PhaseFailed {
			m.enter(v1alpha1.PhasePending)
		}
	case !w.Known() && w.Error != "" && m.state.Phase != v1alpha1.PhaseReady:
		m.state.Error = truncated(w.Error)
		m.enter(v1alpha1.PhaseFailed)
	}
}

// lacks reports whether there is something to download, as far as the node knows. The caller holds Agent.mu.
func (m *model) lacks() bool {
	return m.wish.Each || m.wish.Digest != "" && (m.state.Phase != v1alpha1.PhaseReady || plan.Had(m.state) != m.wish.Digest)
}

// attempt has the daemon fetch a model.
func (a *Agent) attempt(ctx context.Context, ref string, w plan.Wish, m *model) {
	im, err := a.fetch(ctx, ref, w, func(e wire.Event) { a.progress(m, e) })
	digest, origin := im.ID().String(), im.Origin.Digest.String()
	a.mu.Lock()
	defer a.mu.Unlock()
	stopped := ctx.Err() != nil
	m.stop()
	m.stop, a.stale = nil, true // a model that was removed is there again, without its pin
	if a.work[ref] != m {
		return // nothing wishes it any more
	}
	m.state.Rate = 0
	switch {
	case err != nil && stopped: // it is due again
	case err != nil:
		m.failed()
		m.state.Error = truncated(wire.Text(err))
		if m.state.Phase != v1alpha1.PhaseReady {
			m.enter(v1alpha1.PhaseFailed)
		}
		if m.failures == 1 || !errdefs.IsUnavailable(err) {
			a.Log.Warn("model was not fetched", "ref", ref, "err", m.state.Error)
		}
	default:
		m.tries, m.state.Error = tries{}, ""
		if w.Each {
			m.due = a.refresh()
		}
		m.state.Completed = m.state.Total
		if !slices.Contains(m.state.Pinned, digest) {
			a.Log.Info("model is ready", "ref", ref, "digest", digest)
		}
		m.state.Pinned, m.state.Origin, m.state.Version = plan.Versions(m.state.Pinned, digest, m.wish.Keep), origin, w.Digest
		if m.state.Version == origin {
			m.state.Version = ""
		}
		m.enter(v1alpha1.PhaseReady)
	}
	a.wake()
}

// maxError limits an error in a ModelNode, in bytes.
const maxError = 1000

func truncated(s string) string {
	if len(s) > maxError {
		s = s[:maxError] + "…"
	}
	return s
}

// progress adds a line of a download.
func (a *Agent) progress(m *model, e wire.Event) {
	if e.Digest == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	m.events[e.Digest] = e
	var total, completed, rate, registries, mirrors int64
	for _, e := range m.events {
		total, completed, registries, mirrors = total+e.Total, completed+e.Completed, registries+e.Registries, mirrors+e.Mirrors
		if e.Status == wire.StatusDownloading {
			rate += e.Rate
		}
	}
	m.state.Total, m.state.Completed, m.state.Rate = plan.Bounded(total), plan.Bounded(min(completed, total)), plan.Bounded(rate)
	if registries+mirrors > 0 { // otherwise everything was present
		m.state.Registries, m.state.Mirrors = plan.Bounded(registries), plan.Bounded(mirrors)
	}
	if completed < total && len(m.state.Pinned) == 0 && m.state.Phase != v1alpha1.PhaseDownloading {
		m.enter(v1alpha1.PhaseDownloading)
		a.wake()
	}
}

// enter changes the phase. The caller holds Agent.mu.
func (m *model) enter(p v1alpha1.Phase) {
	if m.state.Phase != p {
		m.state.Phase, m.state.Since = p, metav1.Now()
	}
}

var nodeModels = prometheus.NewDesc("ballast_fleet_models", "Models of ModelSets on this node, by phase.", []string{"phase"}, nil)

// Describe describes the metrics of the agent.
func (a *Agent) Describe(all chan<- *prometheus.Desc) { all <- nodeModels }

// Collect counts the models of the node.
func (a *Agent) Collect(all chan<- prometheus.Metric) {
	states, _ := a.states()
	for _, p := range v1alpha1.Phases {
		all <- prometheus.MustNewConstMetric(nodeModels, prometheus.GaugeValue, float64(plan.Count(states, p)), string(p))
	}
}

// states returns the states of all models, and whether the daemon is ready.
func (a *Agent) states() ([]v1alpha1.ModelState, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]v1alpha1.ModelState{}
	for ref, m := range a.work {
		all[ref] = m.state
	}
	return plan.Sorted(all), a.ready
}

// write writes the ModelNode if it is time, and otherwise returns when it is.
func (a *Agent) write(ctx context.Context, states []v1alpha1.ModelState) (time.Duration, error) {
	is := v1alpha1.ModelNodeStatus{
		Desired: int32(len(states)), Ready: plan.Count(states, v1alpha1.PhaseReady), Failed: plan.Count(states, v1alpha1.PhaseFailed), List: states, Omitted: int32(a.omitted), Pulls: a.pulling(), Disk: a.usage.Disk, Received: a.usage.Received,
	}
	after, changed := plan.WriteAfter(a.written, is)
	if !changed {
		return plan.WriteEvery, nil
	}
	if wait := time.Until(a.at.Add(after)); wait > 0 {
		return wait, nil
	}
	// Without a version: the agent is the only one who writes it. An empty list replaces an earlier one.
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"desired": is.Desired, "ready": is.Ready, "failed": is.Failed, "list": states, "omitted": is.Omitted, "pulls": is.Pulls, "disk": is.Disk, "received": is.Received,
	}})
	if err != nil {
		return 0, err
	}
	node := v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: a.Node}}
	if err := a.client.Status().Patch(ctx, &node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		if apierrors.IsNotFound(err) { // its node was another one of the same name, or an administrator removed it
			a.loaded = ""
		}
		return 0, err
	}
	a.written, a.at = is, time.Now()
	return plan.WriteEvery, nil
}

// end stops all attempts. The daemon continues the downloads.
func (a *Agent) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for m := range maps.Values(a.work) {
		if m.stop != nil {
			m.stop()
		}
	}
}
