package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A Node is a node of the cluster with a pod of the DaemonSet.
type Node struct {
	Name    string
	Labels  map[string]string
	Down    bool // the pod is not ready
	Omitted bool // it does not get some models: TooMany
	Silent  bool // no agent has written its ModelNode
}

// A Wish is a model that a node should have.
type Wish struct {
	v1alpha1.ModelVersion // with a Node if that is this one

	Paused  bool     // begin nothing
	Queued  bool     // begin nothing before the node has the model: it is not its turn
	Secrets []string // names of the pull secrets of all sets; each may have an entry for it
	Public  bool     // a set has it without a pull secret
	Keep    int      // versions
	Rate    int64    // bytes per second, which the models of Set share; 0: no limit
	Set     string
}

// Wishes returns the models of all sets that select a node, by reference. Of sets that name the same model, the version
// of the latest term, the largest number of versions and the highest rate count, and one that lets the node begin
// suffices. Versions above the limit are left out, and models above the limit are omitted.
func Wishes(plans []v1alpha1.ModelPlan, node Node) (all map[string]Wish, omitted int) {
	all = map[string]Wish{}
	plans = slices.Clone(plans)
	slices.SortFunc(plans, func(a, b v1alpha1.ModelPlan) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range plans {
		s := &p.Spec.Set
		if !Selects(s, node.Labels) {
			continue
		}
		queued := paused(s) || s.Parallelism != nil && !slices.Contains(p.Spec.Turns, node.Name)
		for _, ref := range s.Models {
			w, shared := all[ref]
			if rate := rateOf(s); !shared || w.Rate > 0 && (rate == 0 || rate > w.Rate) {
				w.Rate, w.Set = rate, p.Name
			}
			if v := versionOf(p.Spec.Versions, ref); !shared || v.Term > w.Term {
				if v.Node != node.Name {
					v.Node = ""
				}
				w.ModelVersion = v
			}
			w.Public = w.Public || len(s.PullSecrets) == 0
			for _, secret := range s.PullSecrets {
				if !slices.Contains(w.Secrets, secret) {
					w.Secrets = append(w.Secrets, secret)
				}
			}
			w.Paused, w.Queued = paused(s) && (w.Paused || !shared), queued && (w.Queued || !shared)
			w.Keep = max(w.Keep, int(s.Keep), 1)
			all[ref] = w
		}
	}
	refs := slices.Sorted(maps.Keys(all))
	beyond := refs[min(len(refs), maxModels):]
	for _, ref := range beyond {
		delete(all, ref)
	}
	for ref, w := range all {
		w.Keep = min(w.Keep, maxPins/len(all))
		all[ref] = w
	}
	return all, len(beyond)
}

// rateOf returns the limit of a set in bytes per second; 0: none.
func rateOf(s *v1alpha1.ModelSetSpec) int64 {
	if s.Rate == nil {
		return 0
	}
	return s.Rate.Value()
}

// Limits of a node: the models that ModelNodeStatus.List can have, and the pins that the daemon takes.
const (
	maxModels = 512
	maxPins   = 1024
)

// TooMany is why a node has no state of a model, if it omits some.
var TooMany = fmt.Sprintf("the node has more than %d models", maxModels)

// Selector returns the selector of the nodes of a set. One that is not valid selects none.
func Selector(s *v1alpha1.ModelSetSpec) (labels.Selector, error) {
	if s.NodeSelector == nil {
		return labels.Everything(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s.NodeSelector)
	if err != nil {
		return labels.Nothing(), fmt.Errorf("nodeSelector: %w", err)
	}
	return selector, nil
}

// Selects reports whether a set selects the nodes with these labels.
func Selects(s *v1alpha1.ModelSetSpec, node map[string]string) bool {
	selector, _ := Selector(s)
	return selector.Matches(labels.Set(node))
}

// StateOf returns the state of a model, of sorted ones. A model without one has no phase.
func StateOf(states []v1alpha1.ModelState, ref string) v1alpha1.ModelState {
	return StateNear(states, ref, new(int))
}

// StateNear is StateOf where at is perhaps the index of the model, which it sets: most nodes have the same models.
func StateNear(states []v1alpha1.ModelState, ref string, at *int) v1alpha1.ModelState {
	if i := *at; i < len(states) && states[i].Ref == ref {
		return states[i]
	}
	i, ok := slices.BinarySearchFunc(states, ref, func(m v1alpha1.ModelState, ref string) int { return strings.Compare(m.Ref, ref) })
	if !ok {
		return v1alpha1.ModelState{}
	}
	*at = i
	return states[i]
}

// Holds reports whether a node lacks models that it downloads. A model that failed does not hold a node back: a wrong
// name in a set would hold all nodes. Nor does one of a set that is paused.
func Holds(wishes map[string]Wish, states []v1alpha1.ModelState) bool {
	return slices.ContainsFunc(states, func(m v1alpha1.ModelState) bool {
		return m.Phase != v1alpha1.PhaseReady && m.Phase != v1alpha1.PhaseFailed && !wishes[m.Ref].Paused
	})
}

// complete reports whether a node has all models of a set.
func complete(s *v1alpha1.ModelSetSpec, states []v1alpha1.ModelState) bool {
	return !slices.ContainsFunc(s.Models, func(ref string) bool { return StateOf(states, ref).Phase != v1alpha1.PhaseReady })
}

// SetLabel is the prefix of the labels of a node for the sets that are complete there. Their value is "ready".
const SetLabel = "models.ballast.dev/"

// Labels returns the labels of SetLabel that a node should have.
func Labels(plans []v1alpha1.ModelPlan, node map[string]string, states []v1alpha1.ModelState) map[string]string {
	out := map[string]string{}
	for _, p := range plans {
		if Selects(&p.Spec.Set, node) && complete(&p.Spec.Set, states) {
			out[SetLabel+p.Name] = "ready"
		}
	}
	return out
}

// Versions returns the pinned versions after a model was had with a digest: the newest first, at most keep.
func Versions(pinned []string, digest string, keep int) []string {
	rest := slices.DeleteFunc(slices.Clone(pinned), func(d string) bool { return d == digest })
	all := append([]string{digest}, rest...)
	return all[:min(len(all), keep)]
}

// Intervals of the agent.
const (
	WriteEvery = 30 * time.Second // between two writes of progress
	writeFloor = 10 * time.Second // between any two
	firstRetry = 10 * time.Second
	lastRetry  = 5 * time.Minute
)

// Retry returns the time until a model is tried again after failures in a row.
func Retry(failures int) time.Duration {
	return min(firstRetry<<min(max(failures-1, 0), 8), lastRetry)
}

// WriteAfter returns when the state of a node is written, in relation to the last write: at once if a tag was looked
// up, for which all nodes wait, and early if more than the progress of downloads, the disk and the received bytes has
// changed. It returns false if nothing has changed.
func WriteAfter(was, is v1alpha1.ModelNodeStatus) (time.Duration, bool) {
	progress := !equality.Semantic.DeepEqual(was.Disk, is.Disk) || !equality.Semantic.DeepEqual(was.Received, is.Received) || !equality.Semantic.DeepEqual(was.Pulls, is.Pulls)
	other := len(was.List) != len(is.List) || was.Omitted != is.Omitted
	found := slices.ContainsFunc(is.List, func(m v1alpha1.ModelState) bool {
		return m.Lookup != nil && !equality.Semantic.DeepEqual(m.Lookup, StateOf(was.List, m.Ref).Lookup)
	})
	for i := range min(len(was.List), len(is.List)) {
		a, b := was.List[i], is.List[i]
		other = other || a.Ref != b.Ref || a.Phase != b.Phase || a.Error != b.Error || a.Origin != b.Origin || a.Version != b.Version || !slices.Equal(a.Pinned, b.Pinned)
		other = other || a.Lookup != nil && b.Lookup == nil
		progress = progress || a.Total != b.Total || a.Completed != b.Completed || a.Rate != b.Rate
	}
	switch {
	case found:
		return 0, true
	case other:
		return writeFloor, true
	case progress:
		return WriteEvery, true
	}
	return 0, false
}

// Bounded returns a number of bytes that the schema of a ModelNode allows.
func Bounded(n int64) int64 { return min(max(n, 0), v1alpha1.MaxBytes) }

// Sum adds numbers of bytes that nodes report. It is at most the largest number.
func Sum(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// Pulls returns what a ModelNode says about pulls.
func Pulls(all []wire.Pull) (out []v1alpha1.PullState) {
	const maxPulls, maxRefs, maxRef = 16, 16, 512 // of the schema
	for _, p := range all[:min(len(all), maxPulls)] {
		s := v1alpha1.PullState{Total: Bounded(p.Total), Completed: Bounded(min(p.Completed, p.Total)), Rate: Bounded(p.Rate)}
		for _, ref := range p.Refs {
			if len(s.Refs) < maxRefs && len(ref) <= maxRef {
				s.Refs = append(s.Refs, ref)
			}
		}
		out = append(out, s)
	}
	return out
}

// Usage returns what a ModelNode says about the disk and the sources of a node: of its mirrors those with the most
// bytes, and gigabytes of the free disk, which otherwise changes all the time.
func Usage(n wire.FleetNode) v1alpha1.ModelNodeStatus {
	const maxMirrors, maxAddress = 16, 512 // of the schema
	r := &v1alpha1.ReceivedState{Registries: Bounded(n.Direct)}
	for _, m := range slices.SortedFunc(slices.Values(n.Mirrors), func(a, b wire.Mirror) int { return cmp.Compare(b.Bytes, a.Bytes) }) {
		if len(r.Mirrors) < maxMirrors && len(m.Address) <= maxAddress {
			r.Mirrors = append(r.Mirrors, v1alpha1.MirrorState{Address: m.Address, Bytes: Bounded(m.Bytes), Wrong: Bounded(m.Wrong)})
		}
	}
	return v1alpha1.ModelNodeStatus{
		Disk: &v1alpha1.DiskState{Models: Bounded(n.Usage.Unique), Saved: Bounded(n.Usage.Saved), Free: Bounded(n.Usage.Free / 1e9 * 1e9)}, Received: r,
	}
}

// Count returns the number of models in a phase.
func Count(states []v1alpha1.ModelState, p v1alpha1.Phase) (n int32) {
	for _, m := range states {
		if m.Phase == p {
			n++
		}
	}
	return n
}

// Sorted returns states by reference.
func Sorted(states map[string]v1alpha1.ModelState) []v1alpha1.ModelState {
	out := make([]v1alpha1.ModelState, 0, len(states))
	for _, ref := range slices.Sorted(maps.Keys(states)) {
		out = append(out, states[ref])
	}
	return out
}
