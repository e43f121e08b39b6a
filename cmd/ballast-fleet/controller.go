package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/page"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// countEvery is how long changes of nodes are collected before a set is counted again.
const countEvery = time.Second

// A controller counts the nodes of ModelSets.
type controller struct {
	client   client.Client
	recorder events.EventRecorder
	pods     labels.Selector // the pods of the DaemonSet; nil: all nodes have one
}

// nodeList is a list of the metadata of nodes: the rest is large and changes often.
func nodeList() *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{}
	l.SetGroupVersionKind(core.SchemeGroupVersion.WithKind("NodeList"))
	return l
}

func (c *controller) setup(mgr ctrl.Manager) error {
	c.client, c.recorder = mgr.GetClient(), mgr.GetEventRecorder("ballast-fleet")
	if err := metrics.Registry.Register(setNodes); err != nil {
		return err
	}
	node := &metav1.PartialObjectMetadata{}
	node.SetGroupVersionKind(core.SchemeGroupVersion.WithKind("Node"))
	b := ctrl.NewControllerManagedBy(mgr).Named("modelset").For(&v1alpha1.ModelSet{}).
		Watches(&v1alpha1.ModelNode{}, c.allSets()).Watches(node, c.allSets())
	if c.pods != nil {
		b = b.Watches(&core.Pod{}, c.allSets())
	}
	return b.Complete(c)
}

// cacheOptions are the watch of the pods of the DaemonSet.
func (c *controller) cacheOptions(namespace string) cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&core.Pod{}: {Namespaces: map[string]cache.Config{namespace: {LabelSelector: c.pods}}, Transform: slim},
	}}
}

// slim removes from a pod what the controller does not read.
func slim(o any) (any, error) {
	if p, ok := o.(*core.Pod); ok {
		p.ManagedFields, p.Spec, p.Status = nil, core.PodSpec{NodeName: p.Spec.NodeName}, core.PodStatus{Conditions: p.Status.Conditions}
	}
	return o, nil
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// allSets has all sets counted, at most each countEvery.
func (c *controller) allSets() handler.EventHandler {
	add := func(ctx context.Context, q queue) {
		var sets v1alpha1.ModelSetList
		if err := c.client.List(ctx, &sets); err != nil {
			return // from the cache, which has it
		}
		for _, s := range sets.Items {
			q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: s.Name}}, countEvery)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, _ event.CreateEvent, q queue) { add(ctx, q) },
		DeleteFunc: func(ctx context.Context, _ event.DeleteEvent, q queue) { add(ctx, q) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if counts(e.ObjectOld, e.ObjectNew) {
				add(ctx, q)
			}
		},
	}
}

// counts reports whether a change of an object is one for sets.
func counts(was, is client.Object) bool {
	switch is := is.(type) {
	case *v1alpha1.ModelNode:
		return true
	case *core.Pod:
		was, ok := was.(*core.Pod)
		return !ok || was.Spec.NodeName != is.Spec.NodeName || isReady(was) != isReady(is)
	}
	return !equality.Semantic.DeepEqual(was.GetLabels(), is.GetLabels())
}

// setNodes counts the nodes of each set. A set that is gone has no value.
var setNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "ballast_fleet_set_nodes", Help: "Nodes of a ModelSet: selected, with all its models, where one cannot be downloaded, without them and down, or not ready by its deadline.",
}, []string{"set", "state"})

// Reconcile counts the nodes of a set.
func (c *controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var set v1alpha1.ModelSet
	if err := c.client.Get(ctx, req.NamespacedName, &set); err != nil {
		if apierrors.IsNotFound(err) {
			setNodes.DeletePartialMatch(prometheus.Labels{"set": req.Name})
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	t, err := c.tally(ctx, &set)
	if err != nil {
		return reconcile.Result{}, err
	}
	for state, n := range map[string]int32{"desired": t.Desired, "ready": t.Ready, "failed": t.Failed, "down": t.Down, "late": t.Late} {
		setNodes.WithLabelValues(set.Name, state).Set(float64(n))
	}
	now := time.Now()
	warning := plan.Warning(&set, t, now)
	is := set.DeepCopy()
	is.Status.Changed, is.Status.ObservedGeneration = plan.Changed(&set, now), set.Generation
	is.Status.Desired, is.Status.Ready, is.Status.Failed, is.Status.Down = t.Desired, t.Ready, t.Failed, t.Down
	is.Status.Progress, is.Status.Turns = t.Progress(), plan.Turns(&set, t, now)
	for _, condition := range plan.Conditions(&set, t) {
		meta.SetStatusCondition(&is.Status.Conditions, condition)
	}
	if warning != "" {
		is.Status.WarnedGeneration = set.Generation
	}
	if !equality.Semantic.DeepEqual(set.Status, is.Status) {
		if err := c.client.Status().Update(ctx, is); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if warning != "" { // after the update: one that fails is repeated
		c.recorder.Eventf(&set, nil, core.EventTypeWarning, "DeadlineAtRisk", "Count", "%s", warning)
	}
	return reconcile.Result{RequeueAfter: plan.Again(is, t, now)}, nil
}

// look returns what the page shows, from the watches.
func (c *controller) look(r *http.Request) (v page.Cluster, err error) {
	var sets v1alpha1.ModelSetList
	if err := c.client.List(r.Context(), &sets); err != nil {
		return v, err
	}
	v.Nodes, v.States, err = c.list(r.Context())
	v.Sets = sets.Items
	return v, err
}

// list returns the nodes with agents, by name, and all states.
func (c *controller) list(ctx context.Context) (nodes []plan.Node, states []v1alpha1.ModelNode, err error) {
	all := nodeList()
	if err := c.client.List(ctx, all); err != nil {
		return nil, nil, err
	}
	var list v1alpha1.ModelNodeList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, nil, err
	}
	ready, err := c.ready(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range all.Items {
		if up, ok := ready[n.Name]; ok || c.pods == nil {
			nodes = append(nodes, plan.Node{Name: n.Name, Labels: n.Labels, Down: ok && !up})
		}
	}
	slices.SortFunc(nodes, func(a, b plan.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, list.Items, nil
}

// ready returns the nodes with pods of the DaemonSet, and whether one is ready.
func (c *controller) ready(ctx context.Context) (map[string]bool, error) {
	ready := map[string]bool{}
	if c.pods == nil {
		return ready, nil
	}
	var pods core.PodList
	if err := c.client.List(ctx, &pods); err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		ready[p.Spec.NodeName] = ready[p.Spec.NodeName] || isReady(&p)
	}
	return ready, nil
}

// isReady reports whether a pod is ready. The controllers of Kubernetes make those of a node not ready that they do not
// hear of.
func isReady(p *core.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool { return c.Type == core.PodReady && c.Status == core.ConditionTrue })
}

// servePage adds the page to a manager, at an address.
func (c *controller) servePage(mgr ctrl.Manager, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--page: %w", err)
	}
	local := l.Addr().(*net.TCPAddr).IP.IsLoopback()
	return mgr.Add(&manager.Server{Name: "page", Listener: l, Server: &http.Server{
		Handler: page.Handler(c.look, local), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}})
}

// tally counts the nodes that a set selects.
func (c *controller) tally(ctx context.Context, set *v1alpha1.ModelSet) (t plan.Tally, err error) {
	nodes, states, err := c.list(ctx)
	if err != nil {
		return t, err
	}
	by := make(map[string][]v1alpha1.ModelState, len(states))
	for _, s := range states {
		by[s.Name] = s.Status.List
	}
	selector, _ := plan.Selector(set) // an error is in the conditions
	left := plan.Left(set, time.Now())
	for _, n := range nodes {
		if selector.Matches(labels.Set(n.Labels)) {
			t.Add(set, n, by[n.Name], left)
		}
	}
	return t, nil
}
