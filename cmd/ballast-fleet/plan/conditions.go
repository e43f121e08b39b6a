package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// mayLack returns how many nodes may lack models of a set that is ready.
func mayLack(s *v1alpha1.ModelSet, desired int32) int32 {
	if s.Spec.MaxUnavailable == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(s.Spec.MaxUnavailable, int(desired), false)
	if err != nil {
		return 0
	}
	return int32(min(n, math.MaxInt32))
}

// A problem is a reason of the condition Degraded.
type problem struct{ reason, text string }

// problems returns what does not go as the spec says.
func (t Tally) problems() (all []problem) {
	if t.Failed > 0 {
		all = append(all, problem{"Failed", t.Trouble})
	}
	if t.Down > 0 {
		all = append(all, problem{"NodesDown", "ballast does not run on " + Names(t.down)})
	}
	if t.Late > 0 {
		all = append(all, problem{"Late", fmt.Sprintf("nodes that will not have all models by the deadline: %d", t.Late)})
	}
	if t.NotUpdated > 0 {
		all = append(all, problem{"UpdateFailed", fmt.Sprintf("nodes that cannot download the current versions: %d, such as %s", t.NotUpdated, t.Refused)})
	}
	if t.Differ != "" {
		all = append(all, problem{"ImagesDiffer", t.Differ})
	}
	return all
}

// texts joins problems.
func texts(all []problem) string {
	var out []string
	for _, p := range all {
		out = append(out, p.text)
	}
	return strings.Join(out, "; ")
}

// Names are the first of some nodes, and how many there are besides.
func Names(nodes []string) string {
	const shown = 4
	text := strings.Join(nodes[:min(len(nodes), shown)], ", ")
	if n := len(nodes) - shown; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// Conditions returns the conditions of a set.
func Conditions(s *v1alpha1.ModelSet, t Tally) []metav1.Condition {
	ready, progressing, degraded := reasons(s, t)
	have := fmt.Sprintf("%d of %d nodes have all models", t.Ready, t.Desired)
	if t.Outdated > 0 {
		have += fmt.Sprintf(", %d of them in an earlier version", t.Outdated)
	}
	problems := t.problems()
	if i := slices.IndexFunc(s.Status.Versions, func(v v1alpha1.ModelVersion) bool { return v.Error != "" }); i >= 0 && t.Failed == 0 {
		v := s.Status.Versions[i]
		problems = append(problems, problem{"LookupFailed", fmt.Sprintf("%s cannot be looked up: %s", v.Ref, v.Error)})
	}
	if _, err := Selector(&s.Spec); err != nil {
		problems = []problem{{"InvalidSelector", err.Error()}}
	}
	detail := have
	if len(problems) > 0 {
		degraded, detail = yes(problems[0].reason), have+"; "+texts(problems)
	}
	all := []metav1.Condition{
		{Type: v1alpha1.ReadyCondition, Status: ready.status, Reason: ready.reason, Message: detail},
		{Type: v1alpha1.ProgressingCondition, Status: progressing.status, Reason: progressing.reason, Message: have},
		{Type: v1alpha1.DegradedCondition, Status: degraded.status, Reason: degraded.reason, Message: texts(problems)},
	}
	for i := range all {
		all[i].ObservedGeneration = s.Generation
	}
	return all
}

// A verdict is the status of a condition with its reason.
type verdict struct {
	status metav1.ConditionStatus
	reason string
}

func yes(reason string) verdict { return verdict{metav1.ConditionTrue, reason} }
func no(reason string) verdict  { return verdict{metav1.ConditionFalse, reason} }

// reasons returns the conditions of a set whose selector is valid and that has no problem.
func reasons(s *v1alpha1.ModelSet, t Tally) (ready, progressing, degraded verdict) {
	lack := t.Desired - t.Ready
	switch {
	case t.Desired == 0:
		progressing = no("NoNodes")
	case lack == 0 && t.Outdated > 0 && !paused(&s.Spec):
		progressing = yes("Updating")
	case lack == 0:
		progressing = no("Complete")
	case paused(&s.Spec):
		progressing = no("Paused")
	case lack > t.Failed+t.Down:
		progressing = yes("Downloading")
	case t.Failed > 0:
		progressing = no("Failed")
	default:
		progressing = no("NodesDown")
	}
	switch {
	case t.Desired > 0 && lack == 0:
		ready = yes("Complete")
	case t.Desired > 0 && lack <= mayLack(s, t.Desired):
		ready = yes("MaxUnavailable")
	case t.Failed > 0 && !paused(&s.Spec):
		ready = no("Failed")
	default:
		ready = no(progressing.reason)
	}
	return ready, progressing, no("AsExpected")
}
