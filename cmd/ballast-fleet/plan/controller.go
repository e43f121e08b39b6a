package plan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Tally is what a set has on its nodes.
type Tally struct {
	Desired, Ready, Failed, Down int32

	// Outdated is how many of the ready nodes do not have all versions of the status of the set, NotUpdated how many of
	// these cannot download one, and Refused an error of such a node.
	Outdated, NotUpdated int32
	Refused              string

	// Late is the number of nodes that will not have the models by the deadline, and Slowest one of them with the
	// longest time.
	Late    int32
	Slowest string
	Needs   time.Duration // of it; 0: not known

	// Trouble is an error of a node.
	Trouble string

	// Made has what the first node made of each model and origin. Differ is set if another node made something else.
	Made   map[Model]Made
	Differ string

	models []amount // as in the spec
	down   []string // nodes that are counted in Down
	waits  []string // nodes with an agent that lack models, and are neither down nor failed
	failed []string // nodes that are counted in Failed
	busy   []string // nodes that download, whether they wait, are down or failed
}

// An amount is what all nodes have of a model.
type amount struct {
	share float64 // the sum of the shares that nodes have
	size  int64   // the sum of the sizes that nodes know
	known int64   // how many nodes know it
	at    int     // the index that the model has among the states of the last node
}

func (a *amount) add(m v1alpha1.ModelState) {
	if m.Total > 0 {
		a.size, a.known = Sum(a.size, m.Total), a.known+1
	}
	switch {
	case m.Phase == v1alpha1.PhaseReady:
		a.share++
	case m.Total > 0:
		a.share += float64(m.Completed) / float64(m.Total)
	}
}

// A Model is a reference with the digest that it points to in the registry.
type Model struct{ Ref, Origin string }

// Made is the digest of the image that a node made of a Model.
type Made struct{ Node, Digest string }

// compare compares what a node made of a model with what the nodes before it made.
func (t *Tally) compare(node string, m v1alpha1.ModelState) {
	if m.Origin == "" || len(m.Pinned) == 0 {
		return
	}
	of, made := Model{m.Ref, m.Origin}, Made{node, m.Pinned[0]}
	if t.Made == nil {
		t.Made = map[Model]Made{}
	}
	switch first, ok := t.Made[of]; {
	case !ok:
		t.Made[of] = made
	case first.Digest != made.Digest && t.Differ == "":
		t.Differ = fmt.Sprintf("%s is %s on %s and %s on %s: their settings (layout, upstream.ollama_runner) or versions of ballast differ",
			m.Ref, first.Digest, first.Node, made.Digest, made.Node)
	}
}

// Progress is the percentage of the models that all nodes have, by their sizes. A model whose size no node knows
// counts as the mean of the others. It is 100 only if all nodes are ready.
func (t Tally) Progress() int32 {
	if t.Desired > 0 && t.Ready == t.Desired {
		return 100
	}
	mean, sizes := 1.0, make([]float64, len(t.models))
	sum, known := 0.0, 0.0
	for i, m := range t.models {
		if m.known > 0 {
			sizes[i] = float64(m.size) / float64(m.known)
			sum, known = sum+sizes[i], known+1
		}
	}
	if known > 0 {
		mean = sum / known
	}
	done, all := 0.0, 0.0
	for i, m := range t.models {
		size := cmp.Or(sizes[i], mean)
		done, all = done+size*m.share/float64(t.Desired), all+size
	}
	if all == 0 {
		return 0
	}
	return int32(min(99, 100*done/all))
}

// Left returns the time until the deadline of a set, for Tally.Add; without one, there is always time.
func Left(s *v1alpha1.ModelSet, now time.Time) time.Duration {
	if s.Spec.Deadline == nil {
		return math.MaxInt64
	}
	return s.Spec.Deadline.Sub(now)
}

// Add counts a node with the states of its models, which are sorted; left is the time until the deadline. A node is
// late if the time has passed, or if the bytes that it is known to lack need longer at its rate: of a model that waits
// for its turn or is tried again, nothing is known.
func (t *Tally) Add(s *v1alpha1.ModelSet, n Node, states []v1alpha1.ModelState, left time.Duration) {
	t.Desired++
	if t.models == nil {
		t.models = make([]amount, len(s.Spec.Models))
	}
	var missing, rate int64
	complete, updated, failed, busy, trouble, refused := true, true, false, false, "", ""
	for i, ref := range s.Spec.Models {
		m := StateNear(states, ref, &t.models[i].at)
		m.Completed = min(m.Completed, m.Total) // the schema does not compare them
		t.models[i].add(m)
		if m.Phase == v1alpha1.PhaseReady {
			t.compare(n.Name, m)
			updated = updated && current(s, i, m)
			if refused == "" && NotUpdated(s, i, m) {
				refused = fmt.Sprintf("%s on %s: %s", ref, n.Name, m.Error)
			}
			continue
		}
		complete = false
		missing, rate = Sum(missing, m.Total-m.Completed), Sum(rate, m.Rate)
		busy = busy || m.Phase == v1alpha1.PhaseDownloading
		if m.Phase == "" && n.Omitted {
			m.Phase, m.Error = v1alpha1.PhaseFailed, TooMany
		}
		if m.Phase == v1alpha1.PhaseFailed && !failed {
			failed, trouble = true, fmt.Sprintf("%s on %s: %s", ref, n.Name, m.Error)
		}
	}
	if busy {
		t.busy = append(t.busy, n.Name)
	}
	switch {
	case complete:
		t.Ready++
		if !updated {
			t.Outdated++
		}
		if refused != "" {
			t.NotUpdated, t.Refused = t.NotUpdated+1, cmp.Or(t.Refused, refused)
		}
		return
	case n.Down:
		t.Down, t.down, rate = t.Down+1, append(t.down, n.Name), 0
	case failed:
		t.Failed, t.failed, t.Trouble = t.Failed+1, append(t.failed, n.Name), cmp.Or(t.Trouble, trouble)
	case !n.Silent:
		t.waits = append(t.waits, n.Name)
	}
	needs := time.Duration(0)
	if rate > 0 {
		needs = timeFor(missing, rate)
	}
	if left <= 0 || needs > left {
		t.Late++
		if t.Slowest == "" || t.Needs != 0 && (needs == 0 || needs > t.Needs) {
			t.Slowest, t.Needs = n.Name, needs
		}
	}
}

// current reports whether a model that is ready, the i-th of a set, has the version of the set. What each node looks up
// always does.
func current(s *v1alpha1.ModelSet, i int, m v1alpha1.ModelState) bool {
	if i >= len(s.Status.Versions) || s.Status.Versions[i].Ref != m.Ref || s.Status.Versions[i].Digest == "" {
		return true
	}
	return Had(m) == s.Status.Versions[i].Digest
}

// NotUpdated reports whether a model that is ready, the i-th of a set, does not have the version of the set because the
// node cannot download it.
func NotUpdated(s *v1alpha1.ModelSet, i int, m v1alpha1.ModelState) bool {
	return m.Phase == v1alpha1.PhaseReady && m.Error != "" && !current(s, i, m)
}

// Differ reports whether Add counts two states of a node differently. Those of other models do not matter.
func Differ(s *v1alpha1.ModelSet, was, is []v1alpha1.ModelState) bool {
	return slices.ContainsFunc(s.Spec.Models, func(ref string) bool {
		a, b := StateOf(was, ref), StateOf(is, ref)
		return a.Phase != b.Phase || a.Total != b.Total || a.Completed != b.Completed || a.Rate != b.Rate || a.Error != b.Error || a.Origin != b.Origin || a.Version != b.Version ||
			!slices.Equal(a.Pinned, b.Pinned) || !equality.Semantic.DeepEqual(a.Lookup, b.Lookup)
	})
}

// timeFor returns how long bytes take at a rate in bytes per second.
func timeFor(bytes, rate int64) time.Duration {
	return time.Duration(min(float64(bytes)/float64(rate)*float64(time.Second), 1<<62))
}

// Changed returns when the spec of a set was changed: what the status says, or now if it is about an earlier spec.
func Changed(s *v1alpha1.ModelSet, now time.Time) *metav1.Time {
	switch {
	case s.Status.ObservedGeneration == 0:
		return &s.CreationTimestamp
	case s.Status.ObservedGeneration != s.Generation || s.Status.Changed == nil:
		return &metav1.Time{Time: now}
	}
	return s.Status.Changed
}

// Edited reports whether an object of a set is about another spec, and not only about another status.
func Edited(was, is metav1.Object) bool {
	return was.GetUID() != is.GetUID() || was.GetGeneration() != is.GetGeneration()
}

// warnAt returns when 80 % of the time from the last change of a set to its deadline has passed.
func warnAt(s *v1alpha1.ModelSet, now time.Time) time.Time {
	begin := Changed(s, now)
	return begin.Add(s.Spec.Deadline.Sub(begin.Time) / 10 * 8) // in this order: a product overflows after 36 years
}

// urgent reports whether 80 % of the time to the deadline of a set has passed.
func urgent(s *v1alpha1.ModelSet, now time.Time) bool {
	return s.Spec.Deadline != nil && !now.Before(warnAt(s, now))
}

// Alarm returns how many nodes are late, when it is time to say so: once 80 % of the time to the deadline has passed.
func Alarm(s *v1alpha1.ModelSet, t Tally, now time.Time) int32 {
	if !urgent(s, now) {
		return 0
	}
	return t.Late
}

// maxNote limits the text of an event, in bytes: the API server refuses a longer one.
const maxNote = 1024

// Warning returns the message of the event that the deadline of a set will not be met; empty if there is none to make.
func Warning(s *v1alpha1.ModelSet, t Tally, now time.Time) string {
	text := warning(s, t, now)
	if len(text) <= maxNote {
		return text
	}
	const more = "…"
	return strings.ToValidUTF8(text[:maxNote-len(more)], "") + more
}

// warning is Warning of any length.
func warning(s *v1alpha1.ModelSet, t Tally, now time.Time) string {
	if !urgent(s, now) || s.Status.WarnedGeneration == s.Generation {
		return ""
	}
	by := s.Spec.Deadline.UTC().Format(time.RFC3339)
	switch {
	case t.Late > 0 && t.Needs > 0:
		return fmt.Sprintf("%d of %d nodes will not have all models by %s: %s needs %v more", t.Late, t.Desired, by, t.Slowest, t.Needs.Round(time.Second))
	case t.Late > 0:
		return fmt.Sprintf("%d of %d nodes do not have all models by %s, such as %s", t.Late, t.Desired, by, t.Slowest)
	case t.Failed+t.Down > 0:
		return fmt.Sprintf("%d of %d nodes do not download, and the deadline is %s: %s", t.Failed+t.Down, t.Desired, by, texts(t.problems()))
	}
	return ""
}

// Again returns when a set is counted again if no object changes before; 0: never.
func Again(s *v1alpha1.ModelSet, t Tally, now time.Time) time.Duration {
	var all []time.Duration
	if d := s.Spec.Deadline; d != nil && t.Ready < t.Desired {
		all = append(all, warnAt(s, now).Sub(now), d.Sub(now))
	}
	tags := slices.ContainsFunc(s.Status.Versions, func(v v1alpha1.ModelVersion) bool { return v.Node != "" })
	if s.Spec.Parallelism != nil && len(t.failed) > 0 || tags {
		all = append(all, turn)
	}
	all = slices.DeleteFunc(all, func(d time.Duration) bool { return d <= 0 })
	if len(all) == 0 {
		return 0
	}
	return slices.Min(all)
}

// Intervals between two writes of the status of a set.
const (
	statusFloor = 10 * time.Second
	statusEvery = time.Minute
)

// StatusAfter returns when the status of a set is written, in relation to the last write: at once if it is about
// another spec or a warning, or if nodes wait for a version, early if more than 5 % of the nodes or of the bytes are in
// another state, if a condition has another reason, or if other nodes have their turn or another version. It returns
// false if nothing has changed.
func StatusAfter(was, is v1alpha1.ModelSetStatus) (time.Duration, bool) {
	far := func(a, b, step int32) bool { return max(a-b, b-a) >= max(step, 1) }
	step := is.Desired / 20
	switch {
	case equality.Semantic.DeepEqual(was, is):
		return 0, false
	case was.ObservedGeneration != is.ObservedGeneration || was.WarnedGeneration != is.WarnedGeneration || learned(was.Versions, is.Versions):
		return 0, true
	case far(was.Desired, is.Desired, step) || far(was.Ready, is.Ready, step) || far(was.Updated, is.Updated, step) || far(was.Failed, is.Failed, step) || far(was.Down, is.Down, step),
		far(was.Progress, is.Progress, 5), !slices.Equal(was.Turns, is.Turns), !slices.Equal(was.Versions, is.Versions),
		!slices.EqualFunc(was.Conditions, is.Conditions, func(a, b metav1.Condition) bool { return a.Status == b.Status && a.Reason == b.Reason }):
		return statusFloor, true
	}
	return statusEvery, true
}

// turn is how long nodes where a model failed have the turn: each tries meanwhile (lastRetry).
const turn = lastRetry

// Turns returns the nodes that may download, sorted; nil if the set does not limit them. A node keeps its turn until
// it has all models, fails or is down, and longer if it downloads, because that goes on. Nodes that are down may never
// come back: they do not have all turns. Nodes where a model failed come after all others, one after the other.
func Turns(s *v1alpha1.ModelSet, t Tally, now time.Time) []string {
	if s.Spec.Parallelism == nil || paused(&s.Spec) {
		return nil
	}
	had := slices.DeleteFunc(slices.Clone(s.Status.Turns), func(node string) bool { return !has(t.waits, node) && !has(t.busy, node) })
	if !slices.ContainsFunc(had, func(node string) bool { return !has(t.down, node) }) {
		had = nil
	}
	n, others := int(*s.Spec.Parallelism), t.waits
	if len(t.failed) > 0 {
		first := int(now.Unix()/int64(turn.Seconds())) * n % len(t.failed)
		others = slices.Concat(others, t.failed[first:], t.failed[:first])
	}
	all := slices.Concat(had, slices.DeleteFunc(slices.Clone(others), func(node string) bool { return has(had, node) }))
	all = all[:min(n, len(all))]
	slices.Sort(all)
	return all
}

// has reports whether a node is among sorted ones.
func has(sorted []string, node string) bool {
	_, ok := slices.BinarySearch(sorted, node)
	return ok
}

// paused reports whether nodes begin no downloads for a set.
func paused(s *v1alpha1.ModelSetSpec) bool {
	return s.Paused || s.Parallelism != nil && *s.Parallelism == 0
}
