package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func pod(name, node string, ready core.ConditionStatus) *core.Pod {
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ballast-system", Name: name}, Spec: core.PodSpec{NodeName: node},
		Status: core.PodStatus{Conditions: []core.PodCondition{{Type: core.PodScheduled, Status: core.ConditionTrue}, {Type: core.PodReady, Status: ready}}},
	}
}

func labelled(name, gpu string) *metav1.PartialObjectMetadata {
	n := node()
	n.Name, n.Labels = name, map[string]string{"gpu": gpu}
	return n
}

func stateOf(name string, phase v1alpha1.Phase) *v1alpha1.ModelNode {
	return &v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ModelNodeStatus{List: []v1alpha1.ModelState{{Ref: "r/a:1", Phase: phase}}}}
}

func omitting(name string, phase v1alpha1.Phase) *v1alpha1.ModelNode {
	n := stateOf(name, phase)
	n.Status.Omitted = 1
	return n
}

// TestTable follows nodes, their pods and their states as they come, change and go, in any order.
func TestTable(t *testing.T) {
	var tab table
	for i, step := range []struct {
		was, is client.Object
		want    string // with pods
		all     string // without
	}{
		{nil, stateOf("n2", "Pending"), "", ""},
		{nil, pod("p1", "n1", core.ConditionTrue), "", ""},
		{nil, labelled("n2", "a"), "", "n2 a Pending"},
		{nil, labelled("n1", "a"), "n1 a", "n1 a, n2 a Pending"},
		{nil, pod("p2", "", core.ConditionFalse), "n1 a", "n1 a, n2 a Pending"},
		{pod("p2", "", core.ConditionFalse), pod("p2", "n2", core.ConditionFalse), "n1 a, n2 a Pending down", "n1 a, n2 a Pending"},
		{nil, pod("p3", "n2", core.ConditionTrue), "n1 a, n2 a Pending", "n1 a, n2 a Pending"}, // an update of the DaemonSet
		{pod("p2", "n2", core.ConditionFalse), nil, "n1 a, n2 a Pending", "n1 a, n2 a Pending"},
		{stateOf("n2", "Pending"), stateOf("n2", "Ready"), "n1 a, n2 a Ready", "n1 a, n2 a Ready"},
		{labelled("n1", "a"), labelled("n1", "b"), "n1 b, n2 a Ready", "n1 b, n2 a Ready"},
		{nil, labelled("n0", "a"), "n1 b, n2 a Ready", "n0 a, n1 b, n2 a Ready"},
		{labelled("n1", "b"), nil, "n2 a Ready", "n0 a, n2 a Ready"},
		{pod("p1", "n1", core.ConditionTrue), nil, "n2 a Ready", "n0 a, n2 a Ready"},
		{stateOf("n2", "Ready"), omitting("n2", "Ready"), "n2 a Ready omits", "n0 a, n2 a Ready omits"},
		{omitting("n2", "Ready"), nil, "n2 a", "n0 a, n2 a"},
		{nil, labelled("n3", "a"), "n2 a", "n0 a, n2 a, n3 a"},
	} {
		tab.set(step.was, step.is)
		for pods, want := range map[bool]string{true: step.want, false: step.all} {
			var got []string
			tab.each(pods, func(n plan.Node, state *v1alpha1.ModelNode) {
				text := n.Name + " " + n.Labels["gpu"]
				for _, m := range list(state) {
					text += " " + string(m.Phase)
				}
				if n.Down {
					text += " down"
				}
				if n.Omitted {
					text += " omits"
				}
				got = append(got, text)
			})
			if got := strings.Join(got, ", "); got != want {
				t.Errorf("step %d, with pods %t: got %q, want %q", i, pods, got, want)
			}
		}
	}
	if _, there := tab.by["n1"]; there {
		t.Error("a node that is gone stays")
	}
}

// TestUp: a node is up if its pod is ready and an agent has begun there, also if it has no model yet.
func TestUp(t *testing.T) {
	c, set := &controller{pods: labels.Everything()}, &v1alpha1.ModelSet{}
	set.Spec.Models = []string{"r/a:1"}
	for name, ready := range map[string]core.ConditionStatus{"n1": core.ConditionTrue, "n2": core.ConditionTrue, "n3": core.ConditionFalse} {
		c.table.set(nil, labelled(name, "a"))
		c.table.set(nil, pod("pod-"+name, name, ready))
	}
	for i, tt := range []struct {
		was, is client.Object
		want    string
	}{
		{nil, stateOf("n3", "Ready"), ""},
		{nil, &v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, "n2"},
		{nil, stateOf("n1", "Pending"), "n1 n2"},
		{stateOf("n2", "Ready"), nil, "n1"},
	} {
		c.table.set(tt.was, tt.is)
		if got := strings.Join(c.up(set), " "); got != tt.want {
			t.Errorf("step %d: %q are up, want %q", i, got, tt.want)
		}
	}
}

// TestConcerns: a change has only those sets counted again whose tally it may change.
func TestConcerns(t *testing.T) {
	all, gpu, other := &v1alpha1.ModelSet{}, &v1alpha1.ModelSet{}, &v1alpha1.ModelSet{}
	all.Spec.Models, gpu.Spec.Models, other.Spec.Models = []string{"r/a:1"}, []string{"r/a:1"}, []string{"r/b:1"}
	gpu.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"gpu": "a"}}
	moved := stateOf("n", "Ready")
	moved.Status.Disk = &v1alpha1.DiskState{Models: 1}
	for name, tt := range map[string]struct {
		was, is client.Object
		want    string // all, gpu, other
	}{
		"a new state":      {nil, stateOf("n", "Ready"), "true true true"},
		"a phase":          {stateOf("n", "Pending"), stateOf("n", "Ready"), "true true false"},
		"the disk":         {stateOf("n", "Ready"), moved, "false false false"},
		"omitted models":   {stateOf("n", "Ready"), omitting("n", "Ready"), "true true true"},
		"no state":         {stateOf("n", "Ready"), nil, "true true true"},
		"a new node":       {nil, labelled("n", "b"), "true false true"},
		"a label":          {labelled("n", "b"), labelled("n", "a"), "false true false"},
		"a node that goes": {labelled("n", "b"), nil, "true false true"},
		"an equal label":   {labelled("n", "a"), labelled("n", "a"), "none"},
		"a pod":            {pod("p", "n", "False"), pod("p", "n", "True"), "true true true"},
		"a pod, as before": {pod("p", "n", "True"), pod("p", "n", "True"), "none"},
	} {
		got := "none"
		if tt.was == nil || tt.is == nil || counts(tt.was, tt.is) {
			got = fmt.Sprint(concerns(all, tt.was, tt.is), concerns(gpu, tt.was, tt.is), concerns(other, tt.was, tt.is))
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}

// A reader answers with an error, and does nothing else.
type reader struct {
	client.Client
	err error
}

func (r reader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return r.err
}

// TestStandby: a replica that is not the leader counts nothing, and looks again whether it is, unless the set is gone.
func TestStandby(t *testing.T) {
	for _, tt := range []struct {
		err   error
		again time.Duration
	}{{nil, countEvery}, {apierrors.NewNotFound(schema.GroupResource{}, "s"), 0}} {
		c := &controller{elected: make(chan struct{}), client: reader{err: tt.err}}
		if r, err := c.Reconcile(t.Context(), reconcile.Request{}); err != nil || r.RequeueAfter != tt.again {
			t.Errorf("%v: %+v, %v", tt.err, r, err)
		}
	}
}

// TestLongTexts are not kept: a node that writes another one each time would take the memory of the controller.
func TestLongTexts(t *testing.T) {
	var texts texts
	for _, n := range []int{maxText + 1, 1 << 20} {
		if long := strings.Repeat("x", n); texts.once(long) != long || len(texts.known) != 0 {
			t.Errorf("a text of %d bytes: %d are kept", n, len(texts.known))
		}
	}
	if texts.once(strings.Repeat("x", maxText)); len(texts.known) != 1 {
		t.Errorf("%d are kept", len(texts.known))
	}
}

// TestSlim: the watches keep what counts and the page need, and equal texts once.
func TestSlim(t *testing.T) {
	var texts texts
	var refs []string
	for i := range 2 {
		n := modelNode(i, 0)
		n.Status.List[1].Error = "no such model"
		if _, err := texts.slim(n); err != nil {
			t.Fatal(err)
		}
		m := n.Status.List[1]
		if n.ManagedFields != nil || n.Name != nodeMeta(i).Name || n.Status.List[0].Phase != v1alpha1.PhaseDownloading || m.Error != "no such model" || len(m.Pinned) != 1 || m.Since.IsZero() {
			t.Errorf("%+v", n)
		}
		refs = append(refs, m.Ref)
	}
	if refs[0] != modelRef(0, 1) || unsafe.StringData(refs[0]) != unsafe.StringData(refs[1]) {
		t.Errorf("two texts: %q", refs)
	}
	p := pod("p", "n", core.ConditionTrue)
	p.Spec.Containers = []core.Container{{Name: "c"}}
	if _, err := texts.slim(p); err != nil || !isReady(p) || len(p.Status.Conditions) != 1 || p.Spec.NodeName != "n" || p.Spec.Containers != nil {
		t.Errorf("%+v, %v", p, err)
	}
	n := labelled("n", "a")
	n.Annotations = map[string]string{"x": "y"}
	if _, err := texts.slim(n); err != nil || n.Name != "n" || n.Labels["gpu"] != "a" || n.Annotations != nil || slices.Contains([]string{n.Kind, n.APIVersion}, "") {
		t.Errorf("%+v, %v", n, err)
	}
}
