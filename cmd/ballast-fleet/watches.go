package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// countEvery is how long changes of nodes are collected before a set is counted again.
const countEvery = time.Second

// node is the metadata of a node: the rest is large and changes often.
func node() *metav1.PartialObjectMetadata {
	n := &metav1.PartialObjectMetadata{}
	n.SetGroupVersionKind(core.SchemeGroupVersion.WithKind("Node"))
	return n
}

// cacheOptions are the watches of the controller, and of the pods of the DaemonSet in a namespace. Objects are slim,
// and read without copies, so nothing in them may be changed.
func (c *controller) cacheOptions(namespace string) cache.Options {
	by := map[client.Object]cache.ByObject{&v1alpha1.ModelSet{}: {}, &v1alpha1.ModelPlan{}: {}, &v1alpha1.ModelNode{}: {}, node(): {}}
	if c.pods != nil {
		by[&core.Pod{}] = cache.ByObject{Namespaces: map[string]cache.Config{namespace: {LabelSelector: c.pods}}}
	}
	return cache.Options{ByObject: by, DefaultTransform: (&texts{}).slim, DefaultUnsafeDisableDeepCopy: new(true)}
}

// slim removes from an object what the controller does not read, and keeps a text that many objects have only once.
func (t *texts) slim(o any) (any, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch o := o.(type) {
	case *core.Pod:
		o.ObjectMeta = t.slimMeta(o.ObjectMeta)
		o.Labels, o.Spec = nil, core.PodSpec{NodeName: o.Spec.NodeName}
		o.Status = core.PodStatus{Conditions: slices.DeleteFunc(o.Status.Conditions, func(c core.PodCondition) bool { return c.Type != core.PodReady })}
	case *metav1.PartialObjectMetadata:
		o.ObjectMeta = t.slimMeta(o.ObjectMeta)
	case *v1alpha1.ModelSet, *v1alpha1.ModelPlan:
		o.(client.Object).SetManagedFields(nil)
	case *v1alpha1.ModelNode:
		o.ObjectMeta = t.slimMeta(o.ObjectMeta)
		o.Status.List = slices.Clone(o.Status.List) // that of a decoder has more room than it needs
		for i := range o.Status.List {
			m := &o.Status.List[i]
			m.Ref, m.Phase, m.Origin, m.Error = t.once(m.Ref), v1alpha1.Phase(t.once(string(m.Phase))), t.once(m.Origin), t.once(m.Error)
			m.Version = t.once(m.Version)
			m.Pinned = m.Pinned[:min(len(m.Pinned), 1)]
			for k, d := range m.Pinned {
				m.Pinned[k] = t.once(d)
			}
		}
	}
	return o, nil
}

// slimMeta returns the name of an object, and its labels.
func (t *texts) slimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	is := metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	if len(m.Labels) > 0 {
		is.Labels = make(map[string]string, len(m.Labels))
	}
	for k, v := range m.Labels {
		is.Labels[t.once(k)] = t.once(v)
	}
	return is
}

// Limits of the texts that are known, and of the bytes of each: errors and labels may differ on all nodes.
const (
	maxTexts = 1 << 16
	maxText  = 256
)

// texts are those of the objects of the watches.
type texts struct {
	mu    sync.Mutex // guards what follows
	known map[string]string
}

// once returns a text that shares its memory with equal ones, unless it is long. The caller holds mu.
func (t *texts) once(s string) string {
	if len(s) > maxText {
		return s
	}
	same, ok := t.known[s]
	if !ok {
		if t.known == nil || len(t.known) == maxTexts {
			t.known = map[string]string{}
		}
		t.known[s], same = s, s
	}
	return same
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// changed keeps the table, and has the sets counted that the change of an object concerns, each at most every
// countEvery.
func (c *controller) changed() handler.EventHandler {
	add := func(ctx context.Context, q queue, was, is client.Object) {
		c.table.set(was, is)
		if was != nil && is != nil && !counts(was, is) {
			return
		}
		var sets v1alpha1.ModelSetList
		if err := c.client.List(ctx, &sets); err != nil {
			return // from the cache, which has it
		}
		for i := range sets.Items {
			if s := &sets.Items[i]; concerns(s, was, is) {
				q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: s.Name}}, countEvery)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if e.IsInInitialList { // all sets are counted after that
				c.table.set(nil, e.Object)
				return
			}
			add(ctx, q, nil, e.Object)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, q, e.Object, nil) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
	}
}

// setOfPlan has the set of a plan, whose name it has, counted when the watches know what the controller has written.
func setOfPlan() handler.EventHandler {
	add := func(o client.Object, q queue) {
		q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: o.GetName()}}, countEvery)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { add(e.Object, q) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { add(e.Object, q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { add(e.ObjectNew, q) },
	}
}

// counts reports whether a change of an object can be one for sets.
func counts(was, is client.Object) bool {
	switch is := is.(type) {
	case *v1alpha1.ModelNode:
		return true
	case *core.Pod:
		was, ok := was.(*core.Pod)
		return !ok || was.Spec.NodeName != is.Spec.NodeName || isReady(was) != isReady(is)
	}
	return !labels.Equals(was.GetLabels(), is.GetLabels())
}

// concerns reports whether a set is counted again because of a change of an object, which was or is nil if there was or
// is none: the change of a state is one for the sets with the models that have changed, the first state of a node one
// for all, and the change of a node one for those of which it is now a node, or no longer.
func concerns(s *v1alpha1.ModelSet, was, is client.Object) bool {
	switch cmp.Or(is, was).(type) {
	case *v1alpha1.ModelNode:
		was, _ := was.(*v1alpha1.ModelNode)
		is, _ := is.(*v1alpha1.ModelNode)
		return (was == nil) != (is == nil) || omits(was) != omits(is) || plan.Differ(s, list(was), list(is))
	case *metav1.PartialObjectMetadata:
		return (was != nil && plan.Selects(&s.Spec, was.GetLabels())) != (is != nil && plan.Selects(&s.Spec, is.GetLabels()))
	}
	return true
}

// list returns the states of the models of a node. A node without a ModelNode has none.
func list(n *v1alpha1.ModelNode) []v1alpha1.ModelState {
	if n == nil {
		return nil
	}
	return n.Status.List
}

// omits reports whether a node does not get all models of its sets.
func omits(n *v1alpha1.ModelNode) bool { return n != nil && n.Status.Omitted > 0 }

// A table has what the watches know of each node, so that a count neither copies nor sorts it.
type table struct {
	mu     sync.Mutex // guards what follows
	by     map[string]*row
	sorted []*row // by name; nil: not since a row was added
}

// A row is a node.
type row struct {
	plan.Node
	there bool                // the Node
	pods  map[string]bool     // of the DaemonSet: whether each is ready
	state *v1alpha1.ModelNode // nil: none; nothing in it is changed
}

// set records a change of an object, which was or is nil if there was or is none.
func (t *table) set(was, is client.Object) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch o := cmp.Or(is, was).(type) {
	case *v1alpha1.ModelNode:
		t.at(o.Name).state, _ = is.(*v1alpha1.ModelNode)
	case *metav1.PartialObjectMetadata:
		r := t.at(o.Name)
		r.there, r.Labels = is != nil, o.Labels
	case *core.Pod:
		if was, ok := was.(*core.Pod); ok {
			delete(t.at(was.Spec.NodeName).pods, was.Name)
		}
		if is != nil {
			t.at(o.Spec.NodeName).pods[o.Name] = isReady(o)
		}
	}
}

// at returns the row of a node. The caller holds mu.
func (t *table) at(name string) *row {
	if t.by == nil {
		t.by = map[string]*row{}
	}
	r := t.by[name]
	if r == nil {
		r = &row{Node: plan.Node{Name: name}, pods: map[string]bool{}}
		t.by[name], t.sorted = r, nil
	}
	return r
}

// model returns the state of a model on a node.
func (t *table) model(node, ref string) v1alpha1.ModelState {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.by[node]; r != nil {
		return plan.StateOf(list(r.state), ref)
	}
	return v1alpha1.ModelState{}
}

// each calls f with the nodes that there are, by name: with pods, those that have one.
func (t *table) each(pods bool, f func(plan.Node, *v1alpha1.ModelNode)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sorted == nil {
		maps.DeleteFunc(t.by, func(_ string, r *row) bool { return !r.there && len(r.pods) == 0 && r.state == nil })
		t.sorted = slices.SortedFunc(maps.Values(t.by), func(a, b *row) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, r := range t.sorted {
		if !r.there || pods && len(r.pods) == 0 {
			continue
		}
		r.Down = pods
		for _, ready := range r.pods {
			r.Down = r.Down && !ready
		}
		r.Omitted, r.Silent = omits(r.state), r.state == nil
		f(r.Node, r.state)
	}
}

// isReady reports whether a pod is ready. The controllers of Kubernetes make those of a node not ready that they do not
// hear of.
func isReady(p *core.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool { return c.Type == core.PodReady && c.Status == core.ConditionTrue })
}
