package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Marks are the label of a node with ballast, whose value is "true", and the taint of one without. An empty one is
// not used.
type Marks struct{ Label, Taint string }

// set labels a node, also for sets, and, if free is true, removes the taint. Without a label of its own all labels stay
// as they are: there may be no right to change them. An update that another one has preceded is refused, so concurrent
// changes of taints stay.
func (m Marks) set(ctx context.Context, c client.Client, node *core.Node, sets map[string]string, free bool) error {
	is := node.DeepCopy()
	if is.Labels == nil {
		is.Labels = map[string]string{}
	}
	changed := false
	if m.Label != "" {
		want := map[string]string{m.Label: "true"}
		maps.Copy(want, sets)
		changed = m.clear(is, want)
		for k, v := range want {
			if is.Labels[k] != v {
				is.Labels[k], changed = v, true
			}
		}
	}
	ours := func(t core.Taint) bool { return t.Key == m.Taint }
	if free && m.Taint != "" && slices.ContainsFunc(is.Spec.Taints, ours) {
		is.Spec.Taints, changed = slices.DeleteFunc(is.Spec.Taints, ours), true
	}
	if !changed {
		return nil
	}
	return c.Patch(ctx, is, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
}

// clear removes the labels of sets that are not in keep, and reports whether there was one.
func (m Marks) clear(node *core.Node, keep map[string]string) (changed bool) {
	for k := range node.Labels {
		if _, ok := keep[k]; strings.HasPrefix(k, plan.SetLabel) && !ok {
			delete(node.Labels, k)
			changed = true
		}
	}
	return changed
}

// Leave removes all labels of a node. The taint, which is set by the creator of the node, does not come back.
func (m Marks) Leave(ctx context.Context, c client.Client, name string) error {
	var node core.Node
	if err := c.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return client.IgnoreNotFound(err)
	}
	is := node.DeepCopy()
	changed := m.clear(is, nil)
	if _, ok := is.Labels[m.Label]; ok {
		delete(is.Labels, m.Label)
		changed = true
	}
	if !changed {
		return nil
	}
	return client.IgnoreNotFound(c.Patch(ctx, is, client.MergeFrom(&node)))
}
