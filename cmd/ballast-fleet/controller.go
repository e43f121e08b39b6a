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
	nodes    labels.Selector // the nodes of the DaemonSet
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
	return ctrl.NewControllerManagedBy(mgr).Named("modelset").For(&v1alpha1.ModelSet{}).
		Watches(&v1alpha1.ModelNode{}, c.allSets()).Watches(node, c.allSets()).Complete(c)
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
			_, state := e.ObjectNew.(*v1alpha1.ModelNode)
			if state || !equality.Semantic.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) {
				add(ctx, q)
			}
		},
	}
}

// setNodes counts the nodes of each set. A set that is gone has no value.
var setNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "ballast_fleet_set_nodes", Help: "Nodes of a ModelSet: selected, with all its models, where one cannot be downloaded, or not ready by its deadline.",
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
	late := int32(0)
	if set.Spec.Deadline != nil {
		late = t.Late
	}
	for state, n := range map[string]int32{"desired": t.Desired, "ready": t.Ready, "failed": t.Failed, "late": late} {
		setNodes.WithLabelValues(set.Name, state).Set(float64(n))
	}
	is := set.DeepCopy()
	is.Status.ObservedGeneration = set.Generation
	is.Status.Desired, is.Status.Ready, is.Status.Failed = t.Desired, t.Ready, t.Failed
	is.Status.Nodes, is.Status.Progress = t.Nodes(), t.Progress()
	condition := plan.Condition(t)
	condition.ObservedGeneration = set.Generation
	meta.SetStatusCondition(&is.Status.Conditions, condition)
	warning := plan.Warning(&set, t, time.Now())
	if warning != "" {
		is.Status.Warned = set.Spec.Deadline
	}
	if !equality.Semantic.DeepEqual(set.Status, is.Status) {
		if err := c.client.Status().Update(ctx, is); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	if warning != "" { // after the update: one that fails is repeated
		c.recorder.Eventf(&set, nil, core.EventTypeWarning, "DeadlineAtRisk", "Count", "%s", warning)
	}
	if at := plan.WarnAt(&set); t.Ready < t.Desired && time.Now().Before(at) {
		return reconcile.Result{RequeueAfter: time.Until(at)}, nil
	}
	return reconcile.Result{}, nil
}

// look returns what the page shows, from the watches.
func (c *controller) look(r *http.Request) (v page.Cluster, err error) {
	var sets v1alpha1.ModelSetList
	if err := c.client.List(r.Context(), &sets); err != nil {
		return v, err
	}
	nodes, states, err := c.list(r.Context())
	if err != nil {
		return v, err
	}
	v.Sets, v.States = sets.Items, states
	for _, n := range nodes {
		v.Nodes = append(v.Nodes, page.Node{Name: n.Name, Labels: n.Labels})
	}
	return v, nil
}

// list returns the nodes with agents and all states.
func (c *controller) list(ctx context.Context) ([]metav1.PartialObjectMetadata, []v1alpha1.ModelNode, error) {
	nodes := nodeList()
	if err := c.client.List(ctx, nodes, client.MatchingLabelsSelector{Selector: c.nodes}); err != nil {
		return nil, nil, err
	}
	var states v1alpha1.ModelNodeList
	if err := c.client.List(ctx, &states); err != nil {
		return nil, nil, err
	}
	return nodes.Items, states.Items, nil
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
	slices.SortFunc(nodes, func(a, b metav1.PartialObjectMetadata) int { return strings.Compare(a.Name, b.Name) })
	left := plan.Left(set, time.Now())
	for _, n := range nodes {
		if plan.Selects(set, n.Labels) {
			t.Add(set, n.Name, by[n.Name], left)
		}
	}
	return t, nil
}
