package main

import (
	"cmp"
	"context"
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
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	runs "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A controller counts the nodes of ModelSets.
type controller struct {
	client   client.Client
	recorder events.EventRecorder
	pods     labels.Selector // the pods of the DaemonSet; nil: all nodes have one
	elected  <-chan struct{} // closed when this controller is the one that counts
	table    table
	wrote    map[string]time.Time // when the status of each set was written last; one goroutine uses it
}

func (c *controller) setup(mgr ctrl.Manager) error {
	c.client, c.recorder, c.elected = mgr.GetClient(), mgr.GetEventRecorder("ballast-fleet"), mgr.Elected()
	c.wrote = map[string]time.Time{}
	edited := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return plan.Edited(e.ObjectOld, e.ObjectNew) }}
	always := runs.Options{NeedLeaderElection: new(false)} // the page of each replica needs the table
	b := ctrl.NewControllerManagedBy(mgr).Named("modelset").WithOptions(always).For(&v1alpha1.ModelSet{}, builder.WithPredicates(edited)).
		Watches(&v1alpha1.ModelSet{}, handler.EnqueueRequestsFromMapFunc(c.others), builder.WithPredicates(edited)).
		Watches(&v1alpha1.ModelPlan{}, setOfPlan(), builder.WithPredicates(edited)).
		Watches(&v1alpha1.ModelNode{}, c.changed()).Watches(node(), c.changed())
	if c.pods != nil {
		b = b.Watches(&core.Pod{}, c.changed())
	}
	return b.Complete(c)
}

// others returns the other sets with models of a set: what looks up tags for one does so for all.
func (c *controller) others(ctx context.Context, o client.Object) (all []reconcile.Request) {
	set, ok := o.(*v1alpha1.ModelSet)
	sets, err := c.sets(ctx)
	if !ok || err != nil {
		return nil
	}
	for _, s := range sets {
		if s.Name != set.Name && slices.ContainsFunc(s.Spec.Models, func(ref string) bool { return slices.Contains(set.Spec.Models, ref) }) {
			all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&s)})
		}
	}
	return all
}

// sets returns all sets, by name.
func (c *controller) sets(ctx context.Context) ([]v1alpha1.ModelSet, error) {
	var all v1alpha1.ModelSetList
	err := c.client.List(ctx, &all)
	slices.SortFunc(all.Items, func(a, b v1alpha1.ModelSet) int { return strings.Compare(a.Name, b.Name) })
	return all.Items, err
}

// setNodes counts the nodes of each set. A set that is gone has no value.
var setNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "ballast_fleet_set_nodes", Help: "Nodes of a ModelSet: selected, with all its models, where one cannot be downloaded, without them and down, or, when 80 % of the time has passed, not ready by its deadline.",
}, []string{"set", "state"})

var allNodes = prometheus.NewDesc("ballast_fleet_nodes", "Nodes with a pod of the DaemonSet, and those of them where it is ready.", []string{"state"}, nil)

// Describe describes the metrics of the controller.
func (c *controller) Describe(all chan<- *prometheus.Desc) {
	setNodes.Describe(all)
	all <- allNodes
}

// Collect counts nodes. Only the leader does.
func (c *controller) Collect(all chan<- prometheus.Metric) {
	setNodes.Collect(all)
	if !c.leads() {
		return
	}
	var desired, ready float64
	c.table.each(c.pods != nil, func(n plan.Node, _ *v1alpha1.ModelNode) {
		desired++
		if !n.Down {
			ready++
		}
	})
	all <- prometheus.MustNewConstMetric(allNodes, prometheus.GaugeValue, desired, "desired")
	all <- prometheus.MustNewConstMetric(allNodes, prometheus.GaugeValue, ready, "ready")
}

// leads reports whether this controller is the one that counts.
func (c *controller) leads() bool {
	select {
	case <-c.elected:
		return true
	default:
		return false
	}
}

// Reconcile counts the nodes of a set.
func (c *controller) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var set v1alpha1.ModelSet
	if err := c.client.Get(ctx, req.NamespacedName, &set); err != nil {
		if apierrors.IsNotFound(err) && c.leads() {
			setNodes.DeletePartialMatch(prometheus.Labels{"set": req.Name})
			delete(c.wrote, req.Name)
			err = c.client.Delete(ctx, &v1alpha1.ModelPlan{ObjectMeta: metav1.ObjectMeta{Name: req.Name}})
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if !c.leads() {
		return reconcile.Result{RequeueAfter: countEvery}, nil
	}
	sets, err := c.sets(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	t := c.tally(&set)
	now := time.Now()
	for state, n := range map[string]int32{"desired": t.Desired, "ready": t.Ready, "failed": t.Failed, "down": t.Down, "late": plan.Alarm(&set, t, now)} {
		setNodes.WithLabelValues(set.Name, state).Set(float64(n))
	}
	warning := plan.Warning(&set, t, now)
	is := set.DeepCopy()
	is.Status.Changed, is.Status.ObservedGeneration = plan.Changed(&set, now), set.Generation
	is.Status.Desired, is.Status.Ready, is.Status.Updated, is.Status.Failed, is.Status.Down = t.Desired, t.Ready, t.Ready-t.Outdated, t.Failed, t.Down
	is.Status.Progress, is.Status.Turns = t.Progress(), plan.Turns(&set, t, now)
	is.Status.Versions = (&plan.Resolver{Sets: sets, Up: c.up, State: c.table.model}).Versions(&set, now)
	for _, condition := range plan.Conditions(is, t) {
		meta.SetStatusCondition(&is.Status.Conditions, condition)
	}
	if warning != "" {
		is.Status.WarnedGeneration = set.Generation
	}
	again := plan.Again(is, t, now)
	if after, changed := plan.StatusAfter(set.Status, is.Status); changed {
		if wait := c.wrote[set.Name].Add(after).Sub(now); after > 0 && wait > 0 {
			is, again = &set, min(wait, cmp.Or(again, wait))
		} else if err := c.client.Status().Update(ctx, is); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		} else {
			c.wrote[set.Name] = now
		}
	}
	if warning != "" && is != &set { // after the update: one that fails is repeated
		c.recorder.Eventf(&set, nil, core.EventTypeWarning, "DeadlineAtRisk", "Count", "%s", warning)
	}
	switch err := c.writePlan(ctx, is); {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // the watch has an earlier one
		return reconcile.Result{RequeueAfter: countEvery}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// writePlan has the agents do what a set says now.
func (c *controller) writePlan(ctx context.Context, set *v1alpha1.ModelSet) error {
	spec := plan.Of(set)
	var was v1alpha1.ModelPlan
	owner := []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ModelSet", Name: set.Name, UID: set.UID}}
	p := &v1alpha1.ModelPlan{ObjectMeta: metav1.ObjectMeta{Name: set.Name, OwnerReferences: owner}, Spec: spec}
	err := c.client.Get(ctx, client.ObjectKeyFromObject(p), &was)
	switch {
	case !set.DeletionTimestamp.IsZero():
		return client.IgnoreNotFound(c.client.Delete(ctx, p))
	case apierrors.IsNotFound(err):
		return c.client.Create(ctx, p)
	case err != nil, equality.Semantic.DeepEqual(was.Spec, spec) && equality.Semantic.DeepEqual(was.OwnerReferences, owner):
		return err
	}
	is := was.DeepCopy()
	is.Spec, is.OwnerReferences = spec, owner
	return c.client.Update(ctx, is)
}

// look returns what the page shows, from the watches.
func (c *controller) look(r *http.Request) (v page.Cluster, err error) {
	if v.Sets, err = c.sets(r.Context()); err != nil {
		return v, err
	}
	c.table.each(c.pods != nil, func(n plan.Node, state *v1alpha1.ModelNode) {
		v.Nodes = append(v.Nodes, n)
		if state != nil {
			v.States = append(v.States, *state)
		}
	})
	return v, nil
}

// servePage adds the page to a manager, at an address.
func (c *controller) servePage(mgr ctrl.Manager, address string) error {
	return serve(mgr, "page", address, func(local bool) http.Handler { return page.Handler(c.look, local) })
}

// tally counts the nodes that a set selects.
func (c *controller) tally(set *v1alpha1.ModelSet) (t plan.Tally) {
	left := plan.Left(set, time.Now())
	c.selected(set, func(n plan.Node, state *v1alpha1.ModelNode) { t.Add(set, n, list(state), left) })
	return t
}

// up returns the nodes that a set selects, that have an agent and that are not down, sorted.
func (c *controller) up(set *v1alpha1.ModelSet) (names []string) {
	c.selected(set, func(n plan.Node, _ *v1alpha1.ModelNode) {
		if !n.Down && !n.Silent {
			names = append(names, n.Name)
		}
	})
	return names
}

// selected calls f with the nodes that a set selects, by name.
func (c *controller) selected(set *v1alpha1.ModelSet, f func(plan.Node, *v1alpha1.ModelNode)) {
	selector, _ := plan.Selector(&set.Spec) // an error is in the conditions
	c.table.each(c.pods != nil, func(n plan.Node, state *v1alpha1.ModelNode) {
		if set.DeletionTimestamp.IsZero() && selector.Matches(labels.Set(n.Labels)) {
			f(n, state)
		}
	})
}
