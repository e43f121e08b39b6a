package plan

import (
	"fmt"
	"math"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Tally is what a set has on its nodes.
type Tally struct {
	Desired, Ready, Failed int32
	Total, Completed       int64 // bytes, as far as they are known

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
}

// A Model is a reference with the digest that it stands for in the registry.
type Model struct{ Ref, Origin string }

// Made is the digest of the image that a node made of a Model.
type Made struct{ Node, Digest string }

// maxDigest limits a digest in a message: the schema does not limit what a node says.
const maxDigest = 71

// compare compares what a node made of a model with what the nodes before it made.
func (t *Tally) compare(node string, m v1alpha1.ModelState) {
	if m.Origin == "" || len(m.Pinned) == 0 {
		return
	}
	of, made := Model{m.Ref, m.Origin}, Made{node, m.Pinned[0][:min(len(m.Pinned[0]), maxDigest)]}
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

// Nodes is "ready/desired".
func (t Tally) Nodes() string { return fmt.Sprintf("%d/%d", t.Ready, t.Desired) }

// Progress is a percentage, which is 100 only if all nodes are ready.
func (t Tally) Progress() string {
	switch {
	case t.Desired > 0 && t.Ready == t.Desired:
		return "100%"
	case t.Total <= 0:
		return "0%"
	}
	return fmt.Sprintf("%.0f%%", min(99, math.Floor(100*float64(t.Completed)/float64(t.Total))))
}

// Left returns the time until the deadline of a set, for Tally.Add; an hour, which nothing uses, if it has none.
func Left(s *v1alpha1.ModelSet, now time.Time) time.Duration {
	if s.Spec.Deadline == nil {
		return time.Hour
	}
	return s.Spec.Deadline.Sub(now)
}

// Add counts a node with its name and the states of its models; left is the time until the deadline.
func (t *Tally) Add(s *v1alpha1.ModelSet, node string, states []v1alpha1.ModelState, left time.Duration) {
	t.Desired++
	by := make(map[string]v1alpha1.ModelState, len(states))
	for _, m := range states {
		by[m.Ref] = m
	}
	var missing, rate int64
	complete, failed, known := true, false, true
	for _, ref := range s.Spec.Models {
		m, ok := by[ref]
		m.Completed = min(m.Completed, m.Total) // the schema does not compare them
		t.Total, t.Completed = Sum(t.Total, m.Total), Sum(t.Completed, m.Completed)
		if ok && m.Phase == v1alpha1.PhaseReady {
			t.compare(node, m)
			continue
		}
		complete = false
		missing, rate = Sum(missing, m.Total-m.Completed), Sum(rate, m.Rate)
		known = known && m.Total > 0
		if m.Phase == v1alpha1.PhaseFailed {
			failed = true
			if t.Trouble == "" {
				t.Trouble = fmt.Sprintf("%s on %s: %s", ref, node, m.Error)
			}
		}
	}
	switch {
	case complete:
		t.Ready++
		return
	case failed:
		t.Failed++
	}
	needs := time.Duration(0)
	if known && rate > 0 {
		needs = timeFor(missing, rate)
	}
	if needs == 0 || needs > left {
		t.Late++
		if t.Slowest == "" || t.Needs != 0 && (needs == 0 || needs > t.Needs) {
			t.Slowest, t.Needs = node, needs
		}
	}
}

// timeFor returns how long bytes take at a rate in bytes per second.
func timeFor(bytes, rate int64) time.Duration {
	return time.Duration(min(float64(bytes)/float64(rate)*float64(time.Second), 1<<62))
}

// WarnAt returns when 80 % of the time of a set has passed; zero if it has no deadline.
func WarnAt(s *v1alpha1.ModelSet) time.Time {
	if s.Spec.Deadline == nil {
		return time.Time{}
	}
	begin := s.CreationTimestamp.Time
	return begin.Add(s.Spec.Deadline.Sub(begin) * 8 / 10)
}

// Warning returns the message of the event that the deadline of a set cannot be met; empty if there is none to make.
func Warning(s *v1alpha1.ModelSet, t Tally, now time.Time) string {
	at := WarnAt(s)
	if at.IsZero() || now.Before(at) || t.Late == 0 || s.Status.Warned != nil && s.Status.Warned.Equal(s.Spec.Deadline) {
		return ""
	}
	slow := t.Slowest + " has no progress"
	if t.Needs > 0 {
		slow = fmt.Sprintf("%s needs %v more", t.Slowest, t.Needs.Round(time.Second))
	}
	return fmt.Sprintf("%d of %d nodes will not have all models by %s: %s", t.Late, t.Desired, s.Spec.Deadline.UTC().Format(time.RFC3339), slow)
}

// Condition returns the condition Ready of a set.
func Condition(t Tally) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ReadyCondition, Status: metav1.ConditionFalse, Reason: "Downloading", Message: t.Nodes() + " nodes have all models"}
	switch {
	case t.Desired == 0:
		c.Reason, c.Message = "NoNodes", "no node is selected"
	case t.Ready == t.Desired:
		c.Status, c.Reason = metav1.ConditionTrue, "Complete"
	case t.Failed > 0:
		c.Reason, c.Message = "Failed", c.Message+"; "+t.Trouble
	}
	if t.Differ != "" {
		c.Message += "; " + t.Differ
	}
	return c
}
