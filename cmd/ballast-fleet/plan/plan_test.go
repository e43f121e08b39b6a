package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func set(name string, spec v1alpha1.ModelSetSpec) v1alpha1.ModelSet {
	return v1alpha1.ModelSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func state(ref string, p v1alpha1.Phase, total, completed, rate int64) v1alpha1.ModelState {
	return v1alpha1.ModelState{Ref: ref, Phase: p, Total: total, Completed: completed, Rate: rate}
}

func TestWishes(t *testing.T) {
	gone := set("gone", v1alpha1.ModelSetSpec{Models: []string{"r/x:1"}})
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	sets := []v1alpha1.ModelSet{
		set("b", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}, PullSecret: "of-b", Keep: 2}),
		set("a", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, PullSecret: "of-a"}),
		set("other", v1alpha1.ModelSetSpec{Models: []string{"r/c:1"}, NodeSelector: map[string]string{"gpu": "true"}}),
		gone,
	}
	want := map[string]Wish{"r/a:1": {Secret: "of-a", Keep: 2, Set: "a"}, "r/b:1": {Secret: "of-b", Keep: 2, Set: "b"}}
	got, _ := Wishes(sets, map[string]string{"gpu": "false"})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got, _ := Wishes(sets, map[string]string{"gpu": "true"}); len(got) != 3 || got["r/c:1"].Keep != 1 {
		t.Errorf("with the label: %v", got)
	}
}

// TestRates: of several sets with a model, the highest rate counts, and none is the highest.
func TestRates(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		rate int64
		set  string
	}{{"1Mi", "2Mi", 2 << 20, "b"}, {"2Mi", "1Mi", 2 << 20, "a"}, {"", "1Mi", 0, "a"}, {"1Mi", "", 0, "b"}, {"1M", "1M", 1e6, "a"}} {
		var sets []v1alpha1.ModelSet
		for name, rate := range map[string]string{"a": tt.a, "b": tt.b} {
			spec := v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}}
			if rate != "" {
				spec.Rate = new(resource.MustParse(rate))
			}
			sets = append(sets, set(name, spec))
		}
		got, _ := Wishes(sets, nil)
		if w := got["r/a:1"]; w.Rate != tt.rate || w.Set != tt.set {
			t.Errorf("%q and %q: %+v", tt.a, tt.b, w)
		}
	}
}

// TestProgress makes events for pods that wait, each tenth of the bytes and at most each 30 seconds.
func TestProgress(t *testing.T) {
	pod := func(uid, ref string, phase core.PodPhase) core.Pod {
		p := core.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Status: core.PodStatus{Phase: phase}}
		p.Spec.Volumes = []core.Volume{{}, {VolumeSource: core.VolumeSource{Image: &core.ImageVolumeSource{Reference: ref}}}}
		return p
	}
	pods := []core.Pod{
		pod("waits", "R.example/a:1", core.PodPending), pod("runs", "r.example/a:1", core.PodRunning),
		pod("other", "r.example/b:1", core.PodPending), pod("bad", "\n", core.PodPending), {Status: core.PodStatus{Phase: core.PodPending}},
	}
	notes, now := map[types.UID]Note{"gone": {}}, time.Now()
	for _, tt := range []struct {
		after     time.Duration
		completed int64
		rate      int64
		want      string
	}{
		{0, 1e9, 0, "downloading R.example/a:1: 2 %, 1.0 GB of 40 GB"},
		{time.Minute, 3e9, 1e8, ""},
		{time.Minute, 5e9, 1e8, "downloading R.example/a:1: 12 %, 5.0 GB of 40 GB, 100 MB/s, 5m50s left"},
		{20 * time.Second, 20e9, 1e8, ""},
		{10 * time.Second, 20e9, 1e8, "downloading R.example/a:1: 50 %, 20 GB of 40 GB, 100 MB/s, 3m20s left"},
		{time.Minute, 20e9, 1e8, ""},
	} {
		now = now.Add(tt.after)
		pulls := []v1alpha1.PullState{{}, {Refs: []string{"r.example/x:1", "r.example/a:1"}, Total: 40e9, Completed: tt.completed, Rate: tt.rate}}
		want := map[types.UID]string{}
		if tt.want != "" {
			want["waits"] = tt.want
		}
		if d := cmp.Diff(want, Progress(pods, pulls, notes, now)); d != "" {
			t.Errorf("%d bytes (-want +got):\n%s", tt.completed, d)
		}
		if len(notes) != 1 {
			t.Errorf("notes of %d pods, want those of one", len(notes))
		}
	}
}

// TestLimits: more models and versions than a node can have do not prevent the others.
func TestLimits(t *testing.T) {
	for models, want := range map[int]struct{ models, keep int }{64: {64, 16}, 65: {65, 15}, 600: {512, 2}} {
		var refs []string
		for i := range models {
			refs = append(refs, fmt.Sprintf("r/%d:1", i))
		}
		got, omitted := Wishes([]v1alpha1.ModelSet{set("a", v1alpha1.ModelSetSpec{Models: refs, Keep: 16})}, nil)
		if len(got) != want.models || omitted != models-want.models || got["r/0:1"].Keep != want.keep {
			t.Errorf("%d: %d models, %+v", models, len(got), got["r/0:1"])
		}
	}
}

func TestLabels(t *testing.T) {
	sets := []v1alpha1.ModelSet{
		set("a", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}}),
		set("ab", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}}),
		set("other", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, NodeSelector: map[string]string{"gpu": "true"}}),
	}
	states := []v1alpha1.ModelState{state("r/a:1", v1alpha1.PhaseReady, 1, 1, 0), state("r/b:1", v1alpha1.PhaseFailed, 1, 0, 0)}
	if d := cmp.Diff(map[string]string{"models.ballast.dev/a": "ready"}, Labels(sets, nil, states)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestVersions(t *testing.T) {
	for _, tt := range []struct {
		was  string
		keep int
		want string
	}{{"", 1, "n"}, {"a", 1, "n"}, {"a b", 2, "n a"}, {"a b", 9, "n a b"}, {"a n", 2, "n a"}, {"n a", 1, "n"}} {
		was := strings.Fields(tt.was)
		if got := strings.Join(Versions(was, "n", tt.keep), " "); got != tt.want || strings.Join(was, " ") != tt.was {
			t.Errorf("%q, keep %d: got %q, want %q", tt.was, tt.keep, got, tt.want)
		}
	}
}

func TestRetry(t *testing.T) {
	if a, b, c := Retry(1), Retry(2), Retry(1<<20); a != 10*time.Second || b != 20*time.Second || c != 5*time.Minute {
		t.Errorf("%v, %v, %v", a, b, c)
	}
}

func TestWriteAfter(t *testing.T) {
	base := state("r/a:1", v1alpha1.PhaseDownloading, 10, 1, 1)
	of := func(list ...v1alpha1.ModelState) v1alpha1.ModelNodeStatus {
		return v1alpha1.ModelNodeStatus{List: list}
	}
	for name, tt := range map[string]struct {
		change  func(*v1alpha1.ModelState)
		after   time.Duration
		changed bool
	}{
		"nothing":  {func(*v1alpha1.ModelState) {}, 0, false},
		"progress": {func(m *v1alpha1.ModelState) { m.Completed = 2 }, WriteEvery, true},
		"rate":     {func(m *v1alpha1.ModelState) { m.Rate = 2 }, WriteEvery, true},
		"phase":    {func(m *v1alpha1.ModelState) { m.Phase = v1alpha1.PhaseReady }, 0, true},
		"error":    {func(m *v1alpha1.ModelState) { m.Error = "x" }, 0, true},
		"pin":      {func(m *v1alpha1.ModelState) { m.Pinned = []string{"x"} }, 0, true},
		"model":    {func(m *v1alpha1.ModelState) { m.Ref = "r/b:1" }, 0, true},
	} {
		is := base
		tt.change(&is)
		if after, changed := WriteAfter(of(base), of(is)); after != tt.after || changed != tt.changed {
			t.Errorf("%s: %v, %t", name, after, changed)
		}
	}
	if after, changed := WriteAfter(of(base), of()); after != 0 || !changed {
		t.Errorf("none left: %v, %t", after, changed)
	}
	used := of(base)
	used.Disk = &v1alpha1.DiskState{Models: 1}
	if after, changed := WriteAfter(of(base), used); after != WriteEvery || !changed {
		t.Errorf("the disk: %v, %t", after, changed)
	}
	again := of(base)
	again.Disk = &v1alpha1.DiskState{Models: 1}
	if _, changed := WriteAfter(used, again); changed {
		t.Error("the same disk is a change")
	}
}

// TestTally counts nodes in each state, and finds the slowest one.
func TestTally(t *testing.T) {
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}})
	ready := func(ref string) v1alpha1.ModelState { return state(ref, v1alpha1.PhaseReady, 100, 100, 0) }
	failed := state("r/b:1", v1alpha1.PhaseFailed, 0, 0, 0)
	failed.Error = "no such model"
	var got Tally
	for _, n := range []struct {
		name   string
		states []v1alpha1.ModelState
	}{
		{"ready", []v1alpha1.ModelState{ready("r/a:1"), ready("r/b:1"), state("r/other:1", v1alpha1.PhaseFailed, 0, 0, 0)}},
		{"fast", []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 50, 50)}},
		{"slow", []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 50, 1)}},
		{"new", nil},
		{"bad", []v1alpha1.ModelState{ready("r/a:1"), failed}},
	} {
		got.Add(&s, n.name, n.states, 10*time.Second)
	}
	want := Tally{Desired: 5, Ready: 1, Failed: 1, Total: 700, Completed: 600, Late: 3, Slowest: "new", Trouble: "r/b:1 on bad: no such model"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got.Nodes() != "1/5" || got.Progress() != "85%" {
		t.Errorf("%s %s", got.Nodes(), got.Progress())
	}
	// What compromised agents say, to the limits of the schema, leaves numbers in their range.
	var lies Tally
	for range 1 << 14 {
		a, b := state("r/a:1", v1alpha1.PhaseDownloading, v1alpha1.MaxBytes, v1alpha1.MaxBytes, 1), state("r/b:1", v1alpha1.PhaseDownloading, 1, v1alpha1.MaxBytes, 1)
		lies.Add(&s, "lies", []v1alpha1.ModelState{a, b}, time.Hour)
		a.Completed = 0
		lies.Add(&s, "late", []v1alpha1.ModelState{a, b}, time.Hour)
	}
	if lies.Total < 0 || lies.Completed < 0 || lies.Completed > lies.Total || lies.Progress() != "50%" && lies.Progress() != "99%" || lies.Needs < 0 || lies.Late < 1<<14 {
		t.Errorf("lies: %+v, %s", lies, lies.Progress())
	}
	var slow Tally
	slow.Add(&s, "slow", []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 50, 1)}, 10*time.Second)
	slow.Add(&s, "slower", []v1alpha1.ModelState{ready("r/a:1"), state("r/b:1", v1alpha1.PhaseDownloading, 100, 20, 1)}, 10*time.Second)
	if slow.Late != 2 || slow.Slowest != "slower" || slow.Needs != 80*time.Second {
		t.Errorf("%+v", slow)
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
		tally.Add(&s, fmt.Sprint("n", node), states, time.Hour)
	}
	if tally.Differ != "" {
		t.Errorf("nodes agree: %s", tally.Differ)
	}
	tally.Add(&s, "other", at("o2", "d3"), time.Hour)
	want := "r/a:1 is d2 on n2 and d3 on other: "
	if c := Condition(tally); !strings.HasPrefix(tally.Differ, want) || !strings.Contains(c.Message, "; "+want) || c.Reason != "Complete" {
		t.Errorf("got %q, %+v", tally.Differ, c)
	}
}

func TestCondition(t *testing.T) {
	for _, tt := range []struct {
		t              Tally
		status, reason string
	}{
		{Tally{}, "False", "NoNodes"},
		{Tally{Desired: 2, Ready: 1}, "False", "Downloading"},
		{Tally{Desired: 2, Ready: 1, Failed: 1, Trouble: "x"}, "False", "Failed"},
		{Tally{Desired: 2, Ready: 2}, "True", "Complete"},
	} {
		if c := Condition(tt.t); string(c.Status) != tt.status || c.Reason != tt.reason {
			t.Errorf("%+v: %+v", tt.t, c)
		}
	}
	if p := (Tally{Desired: 2, Ready: 1, Total: 10, Completed: 10}).Progress(); p != "99%" {
		t.Errorf("not all nodes are ready: %s", p)
	}
}

// TestWarning wants one event, at 80 % of the time or later, if a node is late.
func TestWarning(t *testing.T) {
	begin := time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: begin.Add(d)} }
	s := set("s", v1alpha1.ModelSetSpec{})
	late := Tally{Desired: 3, Late: 2, Slowest: "n1", Needs: 30 * time.Minute}
	if w := Warning(&s, late, begin.Add(time.Hour)); w != "" {
		t.Errorf("without a deadline: %q", w)
	}
	s.CreationTimestamp, s.Spec.Deadline = *at(0), at(100*time.Minute)
	if w := Warning(&s, late, begin.Add(79*time.Minute)); w != "" {
		t.Errorf("too early: %q", w)
	}
	if w, want := Warning(&s, late, begin.Add(80*time.Minute)), "2 of 3 nodes will not have all models by 2026-12-01T07:40:00Z: n1 needs 30m0s more"; w != want {
		t.Errorf("got %q, want %q", w, want)
	}
	if w := Warning(&s, Tally{Desired: 3, Ready: 3}, begin.Add(90*time.Minute)); w != "" {
		t.Errorf("no node is late: %q", w)
	}
	late.Needs = 0
	if w := Warning(&s, late, begin.Add(200*time.Minute)); !strings.HasSuffix(w, "n1 has no progress") {
		t.Errorf("no rate: %q", w)
	}
	s.Status.Warned = at(100 * time.Minute)
	if w := Warning(&s, late, begin.Add(90*time.Minute)); w != "" {
		t.Errorf("again: %q", w)
	}
	s.Spec.Deadline = at(101 * time.Minute)
	if w := Warning(&s, late, begin.Add(90*time.Minute)); w == "" {
		t.Error("no warning for another deadline")
	}
}

// TestUsage has the mirrors with the most bytes, at most as many as the schema, and whole gigabytes of the free disk.
func TestUsage(t *testing.T) {
	n := wire.FleetNode{Usage: wire.Usage{Unique: 3, Saved: 2, Free: 7_999_999_999}, Direct: 5}
	for i := range 20 {
		n.Mirrors = append(n.Mirrors, wire.Mirror{Address: fmt.Sprint(i), Bytes: int64(i), Wrong: 1})
	}
	n.Mirrors = append(n.Mirrors, wire.Mirror{Address: strings.Repeat("x", 513), Bytes: 100})
	got := Usage(n)
	if d := cmp.Diff(&v1alpha1.DiskState{Models: 3, Saved: 2, Free: 7e9}, got.Disk); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if r := got.Received; r.Registries != 5 || len(r.Mirrors) != 16 || r.Mirrors[0] != (v1alpha1.MirrorState{Address: "19", Bytes: 19, Wrong: 1}) {
		t.Errorf("%+v", got.Received)
	}
}

func TestSorted(t *testing.T) {
	got := Sorted(map[string]v1alpha1.ModelState{"b": {Ref: "b"}, "a": {Ref: "a", Phase: v1alpha1.PhaseReady}})
	if !slices.EqualFunc(got, []string{"a", "b"}, func(m v1alpha1.ModelState, ref string) bool { return m.Ref == ref }) || Count(got) != "1/2" {
		t.Errorf("%v, %s", got, Count(got))
	}
}
