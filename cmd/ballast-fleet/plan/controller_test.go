package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestTally counts nodes in each state, and finds the slowest one. A node is late if it cannot be otherwise.
func TestTally(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/b:1", "r/a:1"}})
	ready := func(ref string) v1alpha1.ModelState { return state(ref, v1alpha1.PhaseReady, 100, 100, 0) }
	failed := state("r/b:1", v1alpha1.PhaseFailed, 0, 0, 0)
	failed.Error = "no such model"
	count := func(left time.Duration) (t Tally) {
		for _, n := range []struct {
			node   Node
			states []v1alpha1.ModelState
		}{
			{Node{Name: "ready"}, []v1alpha1.ModelState{ready("r/a:1"), ready("r/b:1"), state("r/other:1", v1alpha1.PhaseFailed, 0, 0, 0)}},
			{Node{Name: "fast"}, []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 50, 50)}},
			{Node{Name: "slow"}, []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 50, 1)}},
			{Node{Name: "slower"}, []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 20, 1)}},
			{Node{Name: "new"}, nil},
			{Node{Name: "waits"}, []v1alpha1.ModelState{state("r/a:1", v1alpha1.PhaseDownloading, 100, 50, 50), state("r/b:1", v1alpha1.PhasePending, 0, 0, 0)}},
			{Node{Name: "bad"}, []v1alpha1.ModelState{ready("r/a:1"), failed}},
			{Node{Name: "dead", Down: true}, []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 50, 1)}},
			{Node{Name: "whole", Down: true}, []v1alpha1.ModelState{ready("r/a:1"), ready("r/b:1")}},
		} {
			t.Add(&s, n.node, n.states, left)
		}
		return t
	}
	want := Tally{Desired: 9, Ready: 2, Failed: 1, Down: 1, Late: 2, Slowest: "slower", Needs: 80 * time.Second, Trouble: "r/b:1 on bad: no such model"}
	got := count(10 * time.Second)
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Tally{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// r/a:1: 7 of 9 and a half; r/b:1: 2 of 9, three halves and a fifth.
	if p := got.Progress(); p != 62 {
		t.Errorf("progress %d", p)
	}
	for versions, want := range map[string]int32{"": 0, "d1": 1, "d2": 0, "d3": 2} {
		a := set("a", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}})
		a.Status.Versions = []v1alpha1.ModelVersion{{Ref: "r/a:1", Digest: versions}}
		var got Tally
		for _, m := range []v1alpha1.ModelState{{Origin: "d2"}, {Origin: "entry of d2", Version: "d2"}} {
			if m.Ref, m.Phase = "r/a:1", v1alpha1.PhaseReady; versions == "d1" && m.Version != "" {
				m.Version = "d1"
			}
			got.Add(&a, Node{Name: "n"}, []v1alpha1.ModelState{m}, time.Hour)
		}
		if got.Outdated != want || got.Ready != 2 {
			t.Errorf("version %q: %+v, want %d outdated", versions, got, want)
		}
	}
	if got := count(-1); got.Late != 7 || got.Slowest != "new" || got.Needs != 0 {
		t.Errorf("after the deadline: %+v", got)
	}
	s.Spec.Deadline = nil
	if got := count(Left(&s, time.Now())); got.Late != 0 {
		t.Errorf("without a deadline: %+v", got)
	}
	// What compromised agents say, to the limits of the schema, leaves numbers in their range.
	var lies Tally
	for range 1 << 14 {
		a, b := state("r/a:1", v1alpha1.PhaseDownloading, v1alpha1.MaxBytes, v1alpha1.MaxBytes, 1), state("r/b:1", v1alpha1.PhaseDownloading, 1, v1alpha1.MaxBytes, 1)
		lies.Add(&s, Node{Name: "lies"}, []v1alpha1.ModelState{a, b}, time.Hour)
		a.Completed = 0
		lies.Add(&s, Node{Name: "late"}, []v1alpha1.ModelState{a, b}, time.Hour)
	}
	if p := lies.Progress(); p != 50 && p != 99 || lies.Needs < 0 || lies.Late < 1<<14 {
		t.Errorf("lies: %+v, %d", lies, p)
	}
}

// TestPercent counts nodes and bytes: what one node has is not what all have, and a model of unknown size is a model.
func TestPercent(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}})
	a, b := state("r/a:1", v1alpha1.PhaseReady, 300, 300, 0), state("r/b:1", v1alpha1.PhaseReady, 100, 100, 0)
	waits := state("r/b:1", v1alpha1.PhasePending, 0, 0, 0)
	for name, tt := range map[string]struct {
		nodes [][]v1alpha1.ModelState
		want  int32
	}{
		"no node":       {nil, 0},
		"nothing":       {[][]v1alpha1.ModelState{nil, nil}, 0},
		"one of four":   {[][]v1alpha1.ModelState{{a, b}, nil, nil, nil}, 25},
		"all":           {[][]v1alpha1.ModelState{{a, b}, {a, b}}, 100},
		"by size":       {[][]v1alpha1.ModelState{{a, b}, {a, waits}}, 87},
		"unknown size":  {[][]v1alpha1.ModelState{{a, waits}}, 50},
		"almost":        {[][]v1alpha1.ModelState{{a, state("r/b:1", v1alpha1.PhaseDownloading, 100, 100, 0)}}, 99},
		"one in 1000":   {append([][]v1alpha1.ModelState{{a, b}}, make([][]v1alpha1.ModelState, 999)...), 0},
		"all have less": {[][]v1alpha1.ModelState{{state("r/a:1", v1alpha1.PhaseDownloading, 300, 200, 1)}}, 33},
	} {
		var got Tally
		for _, states := range tt.nodes {
			got.Add(&s, Node{}, states, time.Hour)
		}
		if p := got.Progress(); p != tt.want {
			t.Errorf("%s: %d, want %d", name, p, tt.want)
		}
	}
}

// TestDiffer finds nodes that make different images of one manifest. Nodes that have not yet seen that a tag was moved are not such.
func TestDiffer(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}})
	at := func(origin string, pinned ...string) []v1alpha1.ModelState {
		m := state("r/a:1", v1alpha1.PhaseReady, 1, 1, 0)
		m.Origin, m.Pinned = origin, pinned
		return []v1alpha1.ModelState{m}
	}
	var tally Tally
	for node, states := range [][]v1alpha1.ModelState{at("", "x"), at("o1", "d1"), at("o2", "d2", "d1"), at("o1", "d1"), at("o2", "d2"), at("o1"), at("", "y")} {
		tally.Add(&s, Node{Name: fmt.Sprint("n", node)}, states, time.Hour)
	}
	if tally.Differ != "" {
		t.Errorf("nodes agree: %s", tally.Differ)
	}
	tally.Add(&s, Node{Name: "other"}, at("o2", "d3"), time.Hour)
	want := "r/a:1 is d2 on n2 and d3 on other: "
	c := Conditions(&s, tally)
	if c[0].Reason != "Complete" || c[2].Status != "True" || c[2].Reason != "ImagesDiffer" || !strings.HasPrefix(c[2].Message, want) {
		t.Errorf("got %+v, want %q", c, want)
	}
}

// TestUpdateFails: nodes that have a model and cannot download its new version do so for a reason, which the set says.
// One that was refused an earlier version, or looks the tag up itself, lacks none.
func TestUpdateFails(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}})
	s.Status.Versions = []v1alpha1.ModelVersion{{Ref: "r/a:1", Digest: "d2"}, {Ref: "r/b:1", Each: true}}
	var tally Tally
	for i, text := range []string{"", "the disk is full", "no such model"} {
		for _, origin := range []string{"d1", "d2"} {
			a, b := state("r/a:1", v1alpha1.PhaseReady, 1, 1, 0), state("r/b:1", v1alpha1.PhaseReady, 1, 1, 0)
			a.Origin, a.Error, b.Error = origin, text, text
			tally.Add(&s, Node{Name: fmt.Sprint("n", i)}, []v1alpha1.ModelState{a, b}, time.Hour)
		}
	}
	want := "nodes that cannot download the current versions: 2, such as r/a:1 on n1: the disk is full"
	c := Conditions(&s, tally)
	if tally.Ready != 6 || tally.Outdated != 3 || tally.Failed != 0 || c[0].Reason != "Complete" || c[1].Reason != "Updating" || c[2].Status != "True" || c[2].Reason != "UpdateFailed" || c[2].Message != want {
		t.Errorf("got %+v, %+v, want %q", tally, c, want)
	}
}

// TestConditions has the statuses and reasons of Ready, Progressing and Degraded.
func TestConditions(t *testing.T) {
	paused, none := v1alpha1.ModelSetSpec{Paused: true}, v1alpha1.ModelSetSpec{Parallelism: new(int32(0))}
	lacking := func(n string) v1alpha1.ModelSetSpec {
		return v1alpha1.ModelSetSpec{MaxUnavailable: new(intstr.Parse(n))}
	}
	wrong := v1alpha1.ModelSetSpec{NodeSelector: labelled("a b", "c")}
	waits, late := []string{"n2"}, Tally{Desired: 2, Ready: 1, Late: 1, waits: []string{"n2"}}
	bad := Tally{Desired: 2, Ready: 1, Failed: 1, Trouble: "x on n2: y"}
	dead := Tally{Desired: 100, Ready: 94, Down: 6, down: []string{"n1", "n2", "n3", "n4", "n5", "n6"}}
	for name, tt := range map[string]struct {
		spec v1alpha1.ModelSetSpec
		t    Tally
		want string
		says string // by Ready
	}{
		"no node":         {v1alpha1.ModelSetSpec{}, Tally{}, "False NoNodes, False NoNodes, False AsExpected", "0 of 0 nodes have all models"},
		"begins":          {v1alpha1.ModelSetSpec{}, Tally{Desired: 2, Ready: 1, waits: waits}, "False Downloading, True Downloading, False AsExpected", "1 of 2 nodes have all models"},
		"complete":        {v1alpha1.ModelSetSpec{}, Tally{Desired: 2, Ready: 2}, "True Complete, False Complete, False AsExpected", "2 of 2 nodes have all models"},
		"a later version": {v1alpha1.ModelSetSpec{}, Tally{Desired: 2, Ready: 2, Outdated: 1}, "True Complete, True Updating, False AsExpected", "2 of 2 nodes have all models, 1 of them in an earlier version"},
		"paused":          {paused, Tally{Desired: 2, Ready: 1, waits: waits}, "False Paused, False Paused, False AsExpected", "1 of 2 nodes have all models"},
		"none at a time":  {none, Tally{Desired: 2, Ready: 1, waits: waits}, "False Paused, False Paused, False AsExpected", "1 of 2 nodes have all models"},
		"paused and bad":  {paused, bad, "False Paused, False Paused, True Failed", "1 of 2 nodes have all models; x on n2: y"},
		"paused complete": {paused, Tally{Desired: 1, Ready: 1}, "True Complete, False Complete, False AsExpected", "1 of 1 nodes have all models"},
		"failed":          {v1alpha1.ModelSetSpec{}, bad, "False Failed, False Failed, True Failed", "1 of 2 nodes have all models; x on n2: y"},
		"some failed":     {v1alpha1.ModelSetSpec{}, Tally{Desired: 3, Ready: 1, Failed: 1, Trouble: "x", waits: waits}, "False Failed, True Downloading, True Failed", "1 of 3 nodes have all models; x"},
		"half suffice":    {lacking("50%"), bad, "True MaxUnavailable, False Failed, True Failed", "1 of 2 nodes have all models; x on n2: y"},
		"rounded down":    {lacking("49%"), bad, "False Failed, False Failed, True Failed", "1 of 2 nodes have all models; x on n2: y"},
		"one may lack":    {lacking("1"), Tally{Desired: 2, Ready: 1, waits: waits}, "True MaxUnavailable, True Downloading, False AsExpected", "1 of 2 nodes have all models"},
		"none selected":   {lacking("100%"), Tally{}, "False NoNodes, False NoNodes, False AsExpected", "0 of 0 nodes have all models"},
		"dead":            {lacking("5%"), dead, "False NodesDown, False NodesDown, True NodesDown", "94 of 100 nodes have all models; ballast does not run on n1, n2, n3, n4 and 2 more"},
		"few dead":        {lacking("6%"), dead, "True MaxUnavailable, False NodesDown, True NodesDown", "94 of 100 nodes have all models; ballast does not run on n1, n2, n3, n4 and 2 more"},
		"late":            {v1alpha1.ModelSetSpec{}, late, "False Downloading, True Downloading, True Late", "1 of 2 nodes have all models; nodes that will not have all models by the deadline: 1"},
		"selector":        {wrong, Tally{}, "False NoNodes, False NoNodes, True InvalidSelector", "0 of 0 nodes have all models; nodeSelector: "},
	} {
		s := set("s", tt.spec)
		s.Generation = 7
		var got []string
		all := Conditions(&s, tt.t)
		for _, c := range all {
			got = append(got, fmt.Sprintf("%s %s", c.Status, c.Reason))
			if c.ObservedGeneration != 7 {
				t.Errorf("%s: %+v", name, c)
			}
		}
		if got := strings.Join(got, ", "); got != tt.want || !strings.HasPrefix(all[0].Message, tt.says) || all[0].Type != "Ready" || all[1].Type != "Progressing" || all[2].Type != "Degraded" {
			t.Errorf("%s: got %s, %+v", name, got, all)
		}
	}
}

// TestTurns gives turns to as many nodes as the set says, until they have the models.
func TestTurns(t *testing.T) {
	now := time.Unix(0, 0)
	for name, tt := range map[string]struct {
		n             int32
		paused        bool
		had           string
		waits, failed string
		busy, down    string
		after         time.Duration
		want          string
	}{
		"first":               {n: 2, waits: "a b c d", want: "a b"},
		"kept":                {n: 2, had: "b d", waits: "a b c d", want: "b d"},
		"next":                {n: 2, had: "a b", waits: "b c d", want: "b c"},
		"fewer":               {n: 1, had: "b c", waits: "a b c d", want: "b"},
		"more":                {n: 9, had: "b", waits: "a b c d", want: "a b c d"},
		"a failure passes it": {n: 2, had: "a b", waits: "b c", failed: "a", want: "b c"},
		"failures are last":   {n: 2, waits: "d", failed: "a b c", want: "a d"},
		"in a circle":         {n: 2, failed: "a b c", after: turn, want: "a c"},
		"busy, another fails": {n: 2, had: "a b", waits: "b c", failed: "a", busy: "a b", want: "a b"},
		"busy without a turn": {n: 2, had: "b", waits: "b c", failed: "a", busy: "a", want: "b c"},
		"busy and down":       {n: 2, had: "a b", waits: "b c", down: "a", busy: "a b", want: "a b"},
		"down and not busy":   {n: 2, had: "a b", waits: "b c", down: "a", busy: "b", want: "b c"},
		"all of them down":    {n: 2, had: "a b", waits: "c d", down: "a b", busy: "a b", want: "c d"},
		"busy failures":       {n: 2, had: "b c", failed: "a b c", busy: "b", want: "a b"},
		"none":                {n: 0, had: "a", waits: "a b"},
		"paused":              {n: 2, had: "a", waits: "a b", paused: true},
		"all have it":         {n: 2, had: "a"},
	} {
		s := set("s", v1alpha1.ModelSetSpec{Parallelism: &tt.n, Paused: tt.paused})
		s.Status.Turns = strings.Fields(tt.had)
		tally := Tally{waits: strings.Fields(tt.waits), failed: strings.Fields(tt.failed), busy: strings.Fields(tt.busy), down: strings.Fields(tt.down)}
		if got := strings.Join(Turns(&s, tally, now.Add(tt.after)), " "); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	s := set("s", v1alpha1.ModelSetSpec{})
	if got := Turns(&s, Tally{waits: []string{"a"}}, now); got != nil {
		t.Errorf("without a limit: %q", got)
	}
}

// TestTurnsHold: not more nodes download at the same time than the set says, although a model of it fails on each, and
// the pod of each is not ready for a while. All nodes get the other model.
func TestTurnsHold(t *testing.T) {
	const nodes, takes, parallelism = 60, 7, 6
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}, Parallelism: new(int32(parallelism))})
	var begun [nodes]int // when a node began to download r/a:1, in steps from 1 on
	for step := 1; step <= 3*nodes*takes/parallelism; step++ {
		var tally Tally
		loads, done := 0, 0
		for i := range nodes {
			n, states := Node{Name: fmt.Sprintf("n%02d", i), Down: i == step%nodes}, []v1alpha1.ModelState(nil)
			if has(s.Status.Turns, n.Name) && begun[i] == 0 && !n.Down {
				begun[i] = step
			}
			switch age := step - begun[i]; {
			case begun[i] == 0:
			case age < takes:
				states = []v1alpha1.ModelState{state("r/a:1", v1alpha1.PhaseDownloading, takes, int64(age), 1), state("r/b:1", v1alpha1.PhaseFailed, 0, 0, 0)}
				loads++
			default:
				states = []v1alpha1.ModelState{state("r/a:1", v1alpha1.PhaseReady, takes, takes, 0), state("r/b:1", v1alpha1.PhaseFailed, 0, 0, 0)}
				done++
			}
			tally.Add(&s, n, states, time.Hour)
		}
		if s.Status.Turns = Turns(&s, tally, time.Unix(0, 0)); loads > parallelism {
			t.Fatalf("step %d: %d nodes download", step, loads)
		}
		if done == nodes {
			return
		}
	}
	t.Errorf("begun: %v", begun)
}

// TestOmitted: a node that does not get a model, because it has too many others, has failed.
func TestOmitted(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}})
	a, b := state("r/a:1", v1alpha1.PhaseReady, 1, 1, 0), state("r/b:1", v1alpha1.PhasePending, 0, 0, 0)
	var tally Tally
	tally.Add(&s, Node{Name: "n1"}, []v1alpha1.ModelState{a}, time.Hour)
	tally.Add(&s, Node{Name: "n2", Omitted: true}, []v1alpha1.ModelState{a, b}, time.Hour)
	tally.Add(&s, Node{Name: "n3", Omitted: true}, []v1alpha1.ModelState{a}, time.Hour)
	if strings.Join(tally.waits, " ") != "n1 n2" || tally.Failed != 1 || tally.Trouble != "r/b:1 on n3: the node has more than 512 models" {
		t.Errorf("%+v", tally)
	}
}

// TestNoAgent: a node without an agent gets no turn and passes on the one that it had, and the set does not say that it
// is down.
func TestNoAgent(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, Parallelism: new(int32(1))})
	s.Status.Turns = []string{"n1"}
	var tally Tally
	tally.Add(&s, Node{Name: "n1", Silent: true}, nil, time.Hour)
	if got := Turns(&s, tally, time.Now()); len(got) > 0 || Conditions(&s, tally)[1].Reason != "Downloading" {
		t.Errorf("no agent: turns of %q, %+v", got, Conditions(&s, tally))
	}
	tally.Add(&s, Node{Name: "n2"}, nil, time.Hour)
	if got := Turns(&s, tally, time.Now()); strings.Join(got, " ") != "n2" || tally.Desired != 2 || tally.Down != 0 {
		t.Errorf("turns of %q, %+v", got, tally)
	}
}

// TestWarning wants one event, at 80 % of the time from the last change or later, if nodes are late or do not download.
func TestWarning(t *testing.T) {
	begin := time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: begin.Add(d)} }
	s := set("s", v1alpha1.ModelSetSpec{})
	s.Generation, s.CreationTimestamp = 1, *at(0)
	late := Tally{Desired: 3, Late: 2, Slowest: "n1", Needs: 30 * time.Minute}
	if w := Warning(&s, late, begin.Add(time.Hour)); w != "" {
		t.Errorf("without a deadline: %q", w)
	}
	if n := Alarm(&s, late, begin.Add(time.Hour)); n != 0 {
		t.Errorf("without a deadline, %d nodes are late", n)
	}
	s.Spec.Deadline = at(100 * time.Minute)
	if w := Warning(&s, late, begin.Add(79*time.Minute)); w != "" {
		t.Errorf("too early: %q", w)
	}
	if again := Again(&s, late, begin.Add(79*time.Minute)); again != time.Minute {
		t.Errorf("again in %v", again)
	}
	eighty := begin.Add(80 * time.Minute)
	for at, want := range map[time.Time]int32{begin.Add(79 * time.Minute): 0, eighty: 2} {
		if got := Alarm(&s, late, at); got != want {
			t.Errorf("at %v: %d nodes are late, want %d", at, got, want)
		}
	}
	if again := Again(&s, late, eighty); again != 20*time.Minute {
		t.Errorf("again in %v", again)
	}
	if again := Again(&s, Tally{Desired: 3, Ready: 3}, eighty); again != 0 {
		t.Errorf("complete, again in %v", again)
	}
	for want, tally := range map[string]Tally{
		"2 of 3 nodes will not have all models by 2026-12-01T07:40:00Z: n1 needs 30m0s more":                 late,
		"2 of 3 nodes do not have all models by 2026-12-01T07:40:00Z, such as n1":                            {Desired: 3, Late: 2, Slowest: "n1"},
		"1 of 3 nodes do not download, and the deadline is 2026-12-01T07:40:00Z: r/a:1 on n1: no such model": {Desired: 3, Failed: 1, Trouble: "r/a:1 on n1: no such model"},
		"1 of 3 nodes do not download, and the deadline is 2026-12-01T07:40:00Z: ballast does not run on n2": {Desired: 3, Down: 1, down: []string{"n2"}},
		"": {Desired: 3, waits: []string{"n1"}},
	} {
		if w := Warning(&s, tally, eighty); w != want {
			t.Errorf("got %q, want %q", w, want)
		}
	}
	s.Status = v1alpha1.ModelSetStatus{ObservedGeneration: 1, Changed: at(0), WarnedGeneration: 1}
	if w := Warning(&s, late, eighty); w != "" {
		t.Errorf("again: %q", w)
	}
	// A model is added at 80 minutes, and the deadline becomes 180 minutes: the time begins again.
	s.Generation, s.Spec.Deadline = 2, at(180*time.Minute)
	if w := Warning(&s, late, eighty); w != "" {
		t.Errorf("at the change: %q", w)
	}
	s.Status.Changed, s.Status.ObservedGeneration = Changed(&s, eighty), 2
	if w := Warning(&s, late, begin.Add(159*time.Minute)); w != "" {
		t.Errorf("too early after the change: %q", w)
	}
	if w := Warning(&s, late, begin.Add(160*time.Minute)); w == "" {
		t.Error("no warning after the change")
	}
}

// TestFarDeadline: a deadline that nobody will see is no reason to warn.
func TestFarDeadline(t *testing.T) {
	now := time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)
	for _, year := range []int{2062, 2063, 2200, 9999} {
		s := set("s", v1alpha1.ModelSetSpec{Deadline: &metav1.Time{Time: time.Date(year, 12, 31, 0, 0, 0, 0, time.UTC)}})
		s.Generation, s.CreationTimestamp = 1, metav1.Time{Time: now}
		if w := Warning(&s, Tally{Desired: 1, Failed: 1, Trouble: "x"}, now.AddDate(20, 0, 0)); w != "" || Again(&s, Tally{Desired: 1}, now) <= 0 {
			t.Errorf("%d: %q", year, w)
		}
	}
}

// TestLongWarning: the API server refuses an event with a text of more than 1,024 bytes, and one that is not UTF-8.
func TestLongWarning(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Deadline: &metav1.Time{Time: time.Unix(0, 0)}})
	s.Generation = 1
	for i := range 4 { // the cut is at each byte of a character
		w := Warning(&s, Tally{Desired: 1, Failed: 1, Trouble: strings.Repeat("x", i) + strings.Repeat("🚢", 500)}, time.Unix(1, 0))
		if len(w) > 1024 || len(w) < 1024-3 || !utf8.ValidString(w) || !strings.HasSuffix(w, "🚢…") {
			t.Errorf("%d bytes: %q", len(w), w)
		}
	}
}

// TestStatusAfter writes a status seldom: all agents get it.
func TestStatusAfter(t *testing.T) {
	base := v1alpha1.ModelSetStatus{
		ObservedGeneration: 1, Desired: 1000, Ready: 500, Progress: 50, Turns: []string{"a"},
		Conditions: []metav1.Condition{{Type: "Ready", Status: "False", Reason: "Downloading", Message: "500 of 1000 nodes"}},
	}
	for name, tt := range map[string]struct {
		change  func(*v1alpha1.ModelSetStatus)
		after   time.Duration
		changed bool
	}{
		"nothing":         {func(*v1alpha1.ModelSetStatus) {}, 0, false},
		"the spec":        {func(s *v1alpha1.ModelSetStatus) { s.ObservedGeneration = 2 }, 0, true},
		"a warning":       {func(s *v1alpha1.ModelSetStatus) { s.WarnedGeneration = 1 }, 0, true},
		"few nodes":       {func(s *v1alpha1.ModelSetStatus) { s.Ready = 549 }, statusEvery, true},
		"many nodes":      {func(s *v1alpha1.ModelSetStatus) { s.Ready = 550 }, statusFloor, true},
		"many nodes less": {func(s *v1alpha1.ModelSetStatus) { s.Ready = 450 }, statusFloor, true},
		"many nodes fail": {func(s *v1alpha1.ModelSetStatus) { s.Failed = 50 }, statusFloor, true},
		"many nodes down": {func(s *v1alpha1.ModelSetStatus) { s.Down = 50 }, statusFloor, true},
		"few bytes":       {func(s *v1alpha1.ModelSetStatus) { s.Progress = 54 }, statusEvery, true},
		"many bytes":      {func(s *v1alpha1.ModelSetStatus) { s.Progress = 55 }, statusFloor, true},
		"turns":           {func(s *v1alpha1.ModelSetStatus) { s.Turns = []string{"b"} }, statusFloor, true},
		"a message":       {func(s *v1alpha1.ModelSetStatus) { s.Conditions[0].Message = "501 of 1000 nodes" }, statusEvery, true},
		"a reason":        {func(s *v1alpha1.ModelSetStatus) { s.Conditions[0].Reason = "Failed" }, statusFloor, true},
		"ready":           {func(s *v1alpha1.ModelSetStatus) { s.Conditions[0].Status = "True" }, statusFloor, true},
	} {
		is := *base.DeepCopy()
		tt.change(&is)
		if after, changed := StatusAfter(base, is); after != tt.after || changed != tt.changed {
			t.Errorf("%s: %v, %t", name, after, changed)
		}
	}
	one, two := base, base
	one.Desired, one.Ready, two.Desired, two.Ready = 3, 1, 3, 2
	if after, _ := StatusAfter(one, two); after != statusFloor {
		t.Errorf("one of three nodes: %v", after)
	}
}

// TestRollout counts how often a status is written, and so how many events each agent gets, while 5,000 nodes get a
// model one after the other and the controller counts each second.
func TestRollout(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}})
	s.Generation = 1
	for takes, most := range map[time.Duration]int{time.Second: 3, 90 * time.Second: 11, time.Hour: 62, 24 * time.Hour: 24*60 + 2} {
		s.Status = v1alpha1.ModelSetStatus{}
		writes, last := 0, -time.Hour
		for now := time.Duration(0); now <= takes+statusEvery; now += time.Second {
			tally := Tally{Desired: 5000, Ready: int32(5000 * min(1, now.Seconds()/takes.Seconds()))}
			is := v1alpha1.ModelSetStatus{ObservedGeneration: 1, Desired: tally.Desired, Ready: tally.Ready, Progress: 100 * tally.Ready / 5000, Conditions: Conditions(&s, tally)}
			if after, changed := StatusAfter(s.Status, is); changed && now-last >= after {
				s.Status, last = is, now
				writes++
			}
		}
		if writes > most || s.Status.Ready != 5000 {
			t.Errorf("in %v: %d writes, want at most %d; %d nodes are ready at the end", takes, writes, most, s.Status.Ready)
		}
	}
}
