package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
	core "k8s.io/api/core/v1"
	eventsapi "k8s.io/api/events/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func restClient(config *rest.Config) (*rest.RESTClient, error) { return rest.RESTClientFor(config) }

// TestModelSets has three nodes with the models of sets, from the first set to the removal of the last one.
func TestModelSets(t *testing.T) {
	c := startCluster(t, plane.Options{})
	r := node.StartRegistry(t, t.TempDir())
	for _, name := range []string{"n1", "n2", "n3"} {
		c.join(t, name, r)
	}
	push(t, r, "team/llama", "v1", weights(1))
	llama := r.Ref("team/llama", "v1")
	steps := []struct {
		name string
		do   func(*testing.T)
	}{
		{"wrong sets are refused", func(t *testing.T) { c.refuses(t, llama) }},
		{"all nodes have a model", func(t *testing.T) { c.allHave(t, llama) }},
		{"rights", func(t *testing.T) { c.rights(t) }},
		{"rights of users", func(t *testing.T) { c.users(t, llama) }},
		{"a state is deleted", func(t *testing.T) { c.stateDeleted(t, llama) }},
		{"one node looks up", func(t *testing.T) { c.oneLooksUp(t, r, llama) }},
		{"a tag moves", func(t *testing.T) { c.tagMoves(t, r, llama) }},
		{"a wrong name", func(t *testing.T) { c.wrongName(t, r) }},
		{"a private model, while the controller loses its lease", func(t *testing.T) {
			pid := c.controller.Pid()
			c.takeLease(t)
			c.private(t)
			eventually(t, "another start of the controller", func() error {
				if c.controller.Pid() == pid {
					return errors.New("it has not ended")
				}
				return nil
			})
		}},
		{"a limit of the rate", func(t *testing.T) { c.limited(t, r) }},
		{"one node after the other", func(t *testing.T) { c.turns(t, r) }},
		{"a pod that waits", func(t *testing.T) { c.podWaits(t, r) }},
		{"no API server", func(t *testing.T) { c.withoutAPI(t, r, llama) }},
		{"a node joins, another one leaves", func(t *testing.T) { c.joinAndLeave(t, r, llama) }},
		{"no set", func(t *testing.T) { c.remove(t, llama) }},
	}
	for _, s := range steps {
		if !t.Run(s.name, s.do) {
			t.FailNow() // the next step begins where this one ends
		}
	}
}

// refuses checks the validation of the API server.
func (c *cluster) refuses(t *testing.T, good string) {
	for want, spec := range map[string]v1alpha1.ModelSetSpec{
		"with the host of its registry": {Models: []string{"library/llama3.2:1b"}},
		"a model is HOST":               {Models: []string{strings.TrimSuffix(good, ":v1")}},
		"Duplicate value":               {Models: []string{good, good}},
		"spec.models":                   {Models: []string{}},
		"spec.keep":                     {Models: []string{good}, Keep: 17},
		"less than 64Ki bytes a second": {Models: []string{good}, Rate: new(resource.MustParse("63Ki"))},
		"or a percentage up to 100%":    {Models: []string{good}, MaxUnavailable: new(intstr.FromString("101%"))},
		"a number of nodes, or a":       {Models: []string{good}, MaxUnavailable: new(intstr.FromInt32(-1))},
		"spec.parallelism":              {Models: []string{good}, Parallelism: new(int32(-1))},
		"an operator is In or NotIn":    {Models: []string{good}, NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: "Is", Values: []string{"a"}}}}},
		"or Exists or DoesNotExist":     {Models: []string{good}, NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: "Exists", Values: []string{"a"}}}}},
		"with values":                   {Models: []string{good}, NodeSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: "In"}}}},
	} {
		err := c.admin.Create(t.Context(), &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Spec: spec})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", spec, err, want)
		}
	}
}

// pins returns the pins of a node.
func (n *clusterNode) pins(t *testing.T) []string {
	t.Helper()
	out := n.Ballast("pin", "ls", "-q")
	if out.Err != nil {
		t.Fatalf("pin ls: %v\n%s", out.Err, out.Output())
	}
	return strings.Fields(out.Stdout)
}

// pinned waits until a node has a number of pins: its state may be written a moment before them.
func (n *clusterNode) pinned(t *testing.T, want int) (pins []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d pins on %s", want, n.name), func() error {
		if pins = n.pins(t); len(pins) != want {
			return fmt.Errorf("pins %q", pins)
		}
		return nil
	})
	return pins
}

// listed reports whether the kubelet would find an image.
func (n *clusterNode) listed(t *testing.T, ref string) bool {
	t.Helper()
	resp, err := n.cri.Images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Image != nil
}

func (c *cluster) allHave(t *testing.T, llama string) {
	c.set(t, "llama", v1alpha1.ModelSetSpec{Models: []string{llama}, Keep: 2})
	c.awaitSet(t, "llama", "3/3 True")
	for name, n := range c.nodes {
		if !n.listed(t, llama) {
			t.Errorf("%s: the kubelet does not list the model", name)
		}
		if pins := n.pinned(t, 1); !strings.HasPrefix(pins[0], "fleet/"+llama+"@sha256:") {
			t.Errorf("%s: pins %q", name, pins)
		}
		recorded(t, n.metrics, "agent.prom", `ballast_fleet_models{phase="Ready"} 1`)
		eventually(t, "disk and received bytes of "+name, func() error {
			var is v1alpha1.ModelNode
			err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, &is)
			if d, r := is.Status.Disk, is.Status.Received; d == nil || r == nil || d.Free == 0 {
				return fmt.Errorf("%w: %+v", err, is.Status)
			}
			return nil
		})
		s := c.modelNode(t, name)[llama]
		if s.Phase != v1alpha1.PhaseReady || s.Total < 4<<20 || s.Completed != s.Total || len(s.Pinned) != 1 {
			t.Errorf("%s: %+v", name, s)
		}
		eventually(t, "labels of "+name+", and no taint", func() error {
			var is core.Node
			if err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, &is); err != nil {
				return err
			}
			foreign := len(is.Spec.Taints) > 0 && slices.ContainsFunc(is.Spec.Taints, func(t core.Taint) bool { return t.Key == "example.com/gpu" })
			if is.Labels[label] != "true" || is.Labels["models.ballast.dev/llama"] != "ready" || !foreign || slices.ContainsFunc(is.Spec.Taints, func(x core.Taint) bool { return x.Key == taint }) {
				return fmt.Errorf("%v, %v", is.Labels, is.Spec.Taints)
			}
			return nil
		})
	}
	row, err := c.columns(t.Context(), "llama")
	if err != nil || fmt.Sprint(row["Percent"]) != "100" || row["Reason"] != "Complete" {
		t.Errorf("columns: %v, %v", row, err)
	}
}

// rights tries what an agent must not do, with the token of one.
func (c *cluster) rights(t *testing.T) {
	k, ctx := c.client(t, c.token(t, "ballast", "n1")), t.Context()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status": {"ready": 9}}`))
	state := func(name string) *v1alpha1.ModelNode {
		return &v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	of := func(name string) *core.Node { return &core.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	labelled := func(key string) client.Patch {
		return client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata": {"labels": {%q: "true"}}}`, key))
	}
	eventually(t, "the policy", func() error { // it is known to the API server a moment after its creation
		if err := k.Status().Patch(ctx, state("n2"), patch, client.DryRunAll); !apierrors.IsForbidden(err) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	for what, do := range map[string]func() error{
		"the state of another node":    func() error { return k.Status().Patch(ctx, state("n2"), patch) },
		"a new state of another node":  func() error { return k.Create(ctx, state("n9")) },
		"the removal of its own state": func() error { return k.Delete(ctx, state("n1")) },
		"a label of another node":      func() error { return k.Patch(ctx, of("n2"), labelled(label)) },
		"another label of its node":    func() error { return k.Patch(ctx, of("n1"), labelled("node-role.kubernetes.io/control-plane")) },
		"the taint of others": func() error {
			return k.Patch(ctx, of("n1"), client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"taints": null}}`)))
		},
		"a plan": func() error {
			return k.Patch(ctx, &v1alpha1.ModelPlan{ObjectMeta: metav1.ObjectMeta{Name: "llama"}}, client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"turns": ["n1"]}}`)))
		},
		"a set":          func() error { return k.Delete(ctx, &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "llama"}}) },
		"all sets":       func() error { return k.List(ctx, &v1alpha1.ModelSetList{}) }, // with their counts
		"another secret": func() error { return k.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "other"}, &core.Secret{}) },
		"all secrets":    func() error { return k.List(ctx, &core.SecretList{}, client.InNamespace(namespace)) },
		"events": func() error {
			return k.Create(ctx, &eventsapi.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}})
		},
	} {
		if err := do(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := k.Patch(ctx, of("n1"), labelled(label)); err != nil {
		t.Errorf("its own label: %v", err)
	}
}

// stateDeleted deletes the state of a node, which its agent writes again.
func (c *cluster) stateDeleted(t *testing.T, llama string) {
	var was v1alpha1.ModelNode
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: "n1"}, &was); err != nil {
		t.Fatal(err)
	}
	if err := c.admin.Delete(t.Context(), was.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the same state", func() error {
		var is v1alpha1.ModelNode
		if err := c.admin.Get(t.Context(), client.ObjectKey{Name: "n1"}, &is); err != nil {
			return err
		}
		if is.UID == was.UID || is.Status.Ready != 1 || is.Status.Disk == nil || is.Status.List[0].Ref != llama || !is.Status.List[0].Since.Equal(&was.Status.List[0].Since) {
			return fmt.Errorf("%+v", is)
		}
		return nil
	})
}

// users tries what users may do who have the roles view and edit in the whole cluster.
func (c *cluster) users(t *testing.T, llama string) {
	as := func(role string) client.Client {
		c.create(t, &rbac.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "of-" + role}, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbac.Subject{{APIGroup: rbac.GroupName, Kind: "User", Name: "user-" + role}},
		})
		config := c.config(t, "admin")
		config.Impersonate.UserName = "user-" + role
		k, err := client.New(config, client.Options{Scheme: scheme(t)})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, role+" to be aggregated", func() error {
			return errors.Join(k.List(t.Context(), &v1alpha1.ModelSetList{}), k.List(t.Context(), &v1alpha1.ModelNodeList{}))
		})
		return k
	}
	view, edit := as("view"), as("edit")
	set := func() *v1alpha1.ModelSet {
		return &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "of-a-user"}, Spec: v1alpha1.ModelSetSpec{Models: []string{llama}}}
	}
	if err := view.Create(t.Context(), set(), client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("view creates a set: %v", err)
	}
	if err := edit.Create(t.Context(), set(), client.DryRunAll); err != nil {
		t.Errorf("edit creates no set: %v", err)
	}
	for what, o := range map[string]client.Object{"a node": &v1alpha1.ModelNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, "a set": &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "llama"}}} {
		if err := edit.Status().Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"status": {"ready": 9}}`)), client.DryRunAll); !apierrors.IsForbidden(err) {
			t.Errorf("edit writes the status of %s: %v", what, err)
		}
	}
}

// oneLooksUp has one node look up the tag of a set for all nodes, and another one when that one is down.
func (c *cluster) oneLooksUp(t *testing.T, r *node.Registry, llama string) {
	var version v1alpha1.ModelVersion
	looks := func() {
		t.Helper()
		eventually(t, "one node to look up the tag", func() error {
			var set v1alpha1.ModelSet
			var plan v1alpha1.ModelPlan
			if err := errors.Join(c.admin.Get(t.Context(), client.ObjectKey{Name: "llama"}, &set), c.admin.Get(t.Context(), client.ObjectKey{Name: "llama"}, &plan)); err != nil {
				return err
			}
			if version = set.Status.Versions[0]; !slices.Equal(set.Status.Versions, plan.Spec.Versions) {
				return fmt.Errorf("%+v, and %+v in the plan", version, plan.Spec.Versions)
			}
			for name := range c.nodes {
				s := c.modelNode(t, name)[llama]
				if found := s.Lookup != nil && s.Lookup.Term == version.Term && s.Lookup.Digest == version.Digest; found != (name == version.Node) || s.Origin != version.Digest {
					return fmt.Errorf("%s: %+v, %+v, want %+v", name, s, s.Lookup, version)
				}
			}
			return nil
		})
	}
	looks()
	asked := func() (n int) {
		r.Wire.Reset()
		time.Sleep(10 * time.Second)
		for _, q := range r.Wire.Requests() {
			if strings.HasSuffix(q.Path, "/manifests/v1") {
				n++
			}
		}
		return n
	}
	if n := asked(); n < 1 || n > 10 { // each 1.5 s at most
		t.Errorf("%d questions for the tag in ten seconds", n)
	}
	first := version
	mark := func(ready core.ConditionStatus) {
		for _, p := range c.podsOf(t, first.Node) {
			c.markPod(t, &p, ready)
		}
	}
	mark(core.ConditionFalse)
	eventually(t, "another node", func() error {
		if looks(); version.Node == first.Node {
			return fmt.Errorf("%+v", version)
		}
		return nil
	})
	if version.Digest != first.Digest || version.Term != first.Term+1 {
		t.Errorf("%+v after %+v", version, first)
	}
	mark(core.ConditionTrue)
}

func (c *cluster) tagMoves(t *testing.T, r *node.Registry, llama string) {
	before := c.modelNode(t, "n1")[llama].Pinned
	push(t, r, "team/llama", "v1", weights(2))
	for name, n := range c.nodes {
		eventually(t, "the new version on "+name, func() error {
			s := c.modelNode(t, name)[llama]
			if s.Phase != v1alpha1.PhaseReady || len(s.Pinned) != 2 || s.Pinned[0] == before[0] || s.Pinned[1] != before[0] {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		n.pinned(t, 2)
	}
	push(t, r, "team/llama", "v1", weights(3)) // two are kept
	eventually(t, "the third version", func() error {
		s := c.modelNode(t, "n1")[llama]
		if len(s.Pinned) != 2 || slices.Contains(s.Pinned, before[0]) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.nodes["n1"].pinned(t, 2)
	c.awaitSet(t, "llama", "3/3 True")
	eventually(t, "the third version on all nodes", func() error {
		var set v1alpha1.ModelSet
		err := c.admin.Get(t.Context(), client.ObjectKey{Name: "llama"}, &set)
		if s := set.Status; err == nil && (s.Updated != 3 || s.Versions[0].Digest != c.modelNode(t, "n1")[llama].Origin) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}

// wrongName has a set that cannot be complete, with a deadline.
func (c *cluster) wrongName(t *testing.T, r *node.Registry) {
	ref := r.Ref("team/missing", "v1")
	deadline := metav1.NewTime(time.Now().Add(5 * time.Second).Truncate(time.Second))
	c.set(t, "missing", v1alpha1.ModelSetSpec{Models: []string{ref}, NodeSelector: only("n2"), Deadline: &deadline})
	eventually(t, "the error in the set", func() error {
		row, err := c.columns(t.Context(), "missing")
		if err != nil {
			return err
		}
		if message := fmt.Sprint(row["Message"]); fmt.Sprintf("%v/%v %v %v", row["Have"], row["Nodes"], row["Failed"], row["Reason"]) != "0/1 1 Failed" || row["Deadline"] != deadline.UTC().Format(time.RFC3339) || !strings.Contains(message, ref+" on n2: ") {
			return fmt.Errorf("%v", row)
		}
		return nil
	})
	if _, there := c.modelNode(t, "n1")[ref]; there {
		t.Error("a node that the set does not select has its model")
	}
	eventually(t, "the event about the deadline", func() error {
		var all eventsapi.EventList
		if err := c.admin.List(t.Context(), &all); err != nil {
			return err
		}
		for _, e := range all.Items {
			if e.Regarding.Name == "missing" && e.Reason == "DeadlineAtRisk" && strings.HasPrefix(e.Note, "1 of 1 nodes do not ") && strings.Contains(e.Note, deadline.UTC().Format(time.RFC3339)) {
				return nil
			}
		}
		return fmt.Errorf("%d events", len(all.Items))
	})
	if err := c.admin.Delete(t.Context(), &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "missing"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node to forget the model", func() error {
		if s, there := c.modelNode(t, "n2")[ref]; there {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// withoutAPI stops the API server while a container reads a model, and gives the nodes work when it is back.
func (c *cluster) withoutAPI(t *testing.T, r *node.Registry, llama string) {
	n := c.nodes["n1"]
	push(t, r, "team/later", "v1", weights(4))
	r.Push(t, "busybox", "1", node.Busybox(t))
	var images []string
	for _, ref := range []string{r.Ref("busybox", "1"), llama} {
		image, err := n.cri.Pull(ref, "")
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, image)
	}
	pids := map[string]int{}
	for name, n := range c.nodes {
		pids[name] = n.agent.Pid()
	}
	c.StopAPI(t)
	container, err := n.cri.RunPod(t, "").Run(images[0], node.ImageMount{Image: images[1], Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := n.cri.Exec(container, "sh", "-c", "sha256sum /model/model.gguf"); err != nil || !strings.Contains(out, fmt.Sprintf("%x", sha256.Sum256(weights(3)))) {
		t.Errorf("read of a model: %v\n%s", err, out)
	}
	c.StartAPI(c.whole)
	for name, n := range c.nodes {
		if n.agent.Pid() != pids[name] {
			t.Errorf("the agent of %s has ended", name)
		}
	}
	c.set(t, "later", v1alpha1.ModelSetSpec{Models: []string{r.Ref("team/later", "v1")}})
	c.awaitSet(t, "later", "3/3 True")
}

// only selects the node with a name.
func only(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "kubernetes.io/hostname", Operator: metav1.LabelSelectorOpIn, Values: []string{name}}}}
}

// turns has a set that is paused, then one node after the other downloads.
func (c *cluster) turns(t *testing.T, r *node.Registry) {
	push(t, r, "team/turns", "v1", weights(7))
	ref := r.Ref("team/turns", "v1")
	c.set(t, "turns", v1alpha1.ModelSetSpec{Models: []string{ref}, Paused: true, Parallelism: new(int32(1))})
	eventually(t, "the set to be paused", func() error {
		row, err := c.columns(t.Context(), "turns")
		if err == nil && row["Reason"] != "Paused" {
			err = fmt.Errorf("%v", row)
		}
		return err
	})
	for name := range c.nodes {
		eventually(t, "the model to wait on "+name, func() error {
			if s := c.modelNode(t, name)[ref]; s.Phase != v1alpha1.PhasePending {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w, err := c.admin.Watch(ctx, &v1alpha1.ModelSetList{}, client.MatchingFields{"metadata.name": "turns"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	c.update(t, "turns", func(s *v1alpha1.ModelSet) { s.Spec.Paused = false })
	var order []string
	for e := range w.ResultChan() {
		s, ok := e.Object.(*v1alpha1.ModelSet)
		if !ok {
			t.Fatalf("%s: %v", e.Type, e.Object)
		}
		if len(s.Status.Turns) > 1 {
			t.Errorf("turns of %q", s.Status.Turns)
		}
		if name := strings.Join(s.Status.Turns, " "); name != "" && !slices.Contains(order, name) {
			order = append(order, name)
		}
		if s.Status.Ready == 3 && len(s.Status.Turns) == 0 {
			break
		}
	}
	if got := strings.Join(order, " "); got != "n1 n2 n3" {
		t.Errorf("turns of %q", got)
	}
	if err := c.admin.Delete(t.Context(), &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "turns"}}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) joinAndLeave(t *testing.T, r *node.Registry, llama string) {
	n := c.join(t, "n4", r)
	c.nodes["n3"].agent.Kill()
	c.awaitSet(t, "llama", "4/4 True")
	c.down(t, r)
	if !n.listed(t, llama) {
		t.Error("the kubelet does not list the model")
	}
	if err := c.admin.Delete(t.Context(), &core.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}}); err != nil {
		t.Fatal(err)
	}
	c.awaitSet(t, "llama", "3/3 True")
	eventually(t, "the state of the removed node to be gone", func() error {
		err := c.admin.Get(t.Context(), client.ObjectKey{Name: "n3"}, &v1alpha1.ModelNode{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %v", err)
	})
	delete(c.nodes, "n3")
	if err := c.admin.Delete(t.Context(), &v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: "down"}}); err != nil {
		t.Fatal(err)
	}
	// An agent that starts again goes on where it was, and downloads nothing.
	n.agent.Stop(t)
	since := c.modelNode(t, "n4")[llama].Since
	n.agent = c.start(t, "agent-n4", "ballast", "n4", "agent", "--name=n4", "--label="+label, "--taint="+taint, "--models", "--refresh=2s", "--socket="+n.Run()+"/fleet/fleet.sock")
	push(t, r, "team/llama", "v1", weights(9))
	eventually(t, "the next version", func() error {
		if s := c.modelNode(t, "n4")[llama]; s.Phase != v1alpha1.PhaseReady || !s.Since.Equal(&since) || len(s.Pinned) != 2 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// down has a set of which a node that is down, n3, lacks the model, and which says so, until the DaemonSet has no pod there.
func (c *cluster) down(t *testing.T, r *node.Registry) {
	for _, p := range c.podsOf(t, "n3") {
		c.markPod(t, &p, core.ConditionFalse)
	}
	push(t, r, "team/down", "v1", weights(8))
	c.set(t, "down", v1alpha1.ModelSetSpec{Models: []string{r.Ref("team/down", "v1")}})
	is := func(want, message string) {
		t.Helper()
		eventually(t, want, func() error {
			row, err := c.columns(t.Context(), "down")
			if err != nil {
				return err
			}
			got := fmt.Sprintf("%v/%v, %v down, %v %v", row["Have"], row["Nodes"], row["Down"], row["Ready"], row["Reason"])
			if got != want || !strings.Contains(fmt.Sprint(row["Message"]), message) {
				return fmt.Errorf("%v", row)
			}
			return nil
		})
	}
	is("3/4, 1 down, False NodesDown", "ballast does not run on n3")
	c.update(t, "down", func(s *v1alpha1.ModelSet) { s.Spec.MaxUnavailable = new(intstr.FromString("25%")) })
	is("3/4, 1 down, True MaxUnavailable", "ballast does not run on n3")
	for _, p := range c.podsOf(t, "n3") {
		if err := c.admin.Delete(t.Context(), &p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	is("3/3, 0 down, True Complete", "3 of 3 nodes have all models")
}

// remove removes all sets. What they had is unpinned and stays, because containers may use it.
func (c *cluster) remove(t *testing.T, llama string) {
	n := c.nodes["n1"]
	if out := n.Ballast("pin", llama); out.Err != nil {
		t.Fatalf("pin: %v\n%s", out.Err, out.Output())
	}
	if err := c.admin.DeleteAllOf(context.Background(), &v1alpha1.ModelSet{}); err != nil {
		t.Fatal(err)
	}
	for name, n := range c.nodes {
		want := map[string]string{"n1": llama}[name]
		eventually(t, "no pins on "+name, func() error {
			if got := strings.Join(n.pins(t), " "); got != want {
				return fmt.Errorf("pins %q", got)
			}
			return nil
		})
		if !n.listed(t, llama) {
			t.Errorf("%s: the image is gone", name)
		}
		eventually(t, "no label of a set on "+name, func() error {
			var is core.Node
			if err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, &is); err != nil {
				return err
			}
			for k := range is.Labels {
				if strings.HasPrefix(k, "models.ballast.dev/") {
					return fmt.Errorf("%v", is.Labels)
				}
			}
			return nil
		})
	}
}
