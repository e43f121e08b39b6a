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

// plans are what nodes do for sets.
func plans(sets ...v1alpha1.ModelSet) (all []v1alpha1.ModelPlan) {
	for _, s := range sets {
		all = append(all, v1alpha1.ModelPlan{ObjectMeta: metav1.ObjectMeta{Name: s.Name}, Spec: Of(&s)})
	}
	return all
}

// labelled selects the nodes with a label.
func labelled(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func state(ref string, p v1alpha1.Phase, total, completed, rate int64) v1alpha1.ModelState {
	return v1alpha1.ModelState{Ref: ref, Phase: p, Total: total, Completed: completed, Rate: rate}
}

func TestWishes(t *testing.T) {
	all := plans(
		set("b", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}, PullSecrets: []string{"of-b", "of-all"}, Keep: 2}),
		set("a", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, PullSecrets: []string{"of-a", "of-all"}}),
		set("other", v1alpha1.ModelSetSpec{Models: []string{"r/c:1"}, NodeSelector: labelled("gpu", "true")}),
	)
	want := map[string]Wish{
		"r/a:1": {ModelVersion: v1alpha1.ModelVersion{Ref: "r/a:1"}, Secrets: []string{"of-a", "of-all", "of-b"}, Keep: 2, Set: "a"},
		"r/b:1": {ModelVersion: v1alpha1.ModelVersion{Ref: "r/b:1"}, Secrets: []string{"of-b", "of-all"}, Keep: 2, Set: "b"},
	}
	got, _ := Wishes(all, Node{Labels: map[string]string{"gpu": "false"}})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got, _ := Wishes(all, Node{Labels: map[string]string{"gpu": "true"}}); len(got) != 3 || got["r/c:1"].Keep != 1 || !got["r/c:1"].Public {
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
		got, _ := Wishes(plans(sets...), Node{})
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
		got, omitted := Wishes(plans(set("a", v1alpha1.ModelSetSpec{Models: refs, Keep: 16})), Node{})
		if len(got) != want.models || omitted != models-want.models || got["r/0:1"].Keep != want.keep {
			t.Errorf("%d: %d models, %+v", models, len(got), got["r/0:1"])
		}
	}
}

func TestLabels(t *testing.T) {
	all := plans(
		set("a", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}}),
		set("ab", v1alpha1.ModelSetSpec{Models: []string{"r/a:1", "r/b:1"}}),
		set("other", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, NodeSelector: labelled("gpu", "true")}),
	)
	states := []v1alpha1.ModelState{state("r/a:1", v1alpha1.PhaseReady, 1, 1, 0), state("r/b:1", v1alpha1.PhaseFailed, 1, 0, 0)}
	if d := cmp.Diff(map[string]string{"models.ballast.dev/a": "ready"}, Labels(all, nil, states)); d != "" {
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
		"phase":    {func(m *v1alpha1.ModelState) { m.Phase = v1alpha1.PhaseReady }, writeFloor, true},
		"error":    {func(m *v1alpha1.ModelState) { m.Error = "x" }, writeFloor, true},
		"pin":      {func(m *v1alpha1.ModelState) { m.Pinned = []string{"x"} }, writeFloor, true},
		"model":    {func(m *v1alpha1.ModelState) { m.Ref = "r/b:1" }, writeFloor, true},
		"version":  {func(m *v1alpha1.ModelState) { m.Version = "x" }, writeFloor, true},
		"lookup":   {func(m *v1alpha1.ModelState) { m.Lookup = &v1alpha1.LookupState{Term: 1} }, 0, true},
	} {
		is := base
		tt.change(&is)
		if after, changed := WriteAfter(of(base), of(is)); after != tt.after || changed != tt.changed {
			t.Errorf("%s: %v, %t", name, after, changed)
		}
	}
	if after, changed := WriteAfter(of(base), of()); after != writeFloor || !changed {
		t.Errorf("none left: %v, %t", after, changed)
	}
	looked := base
	looked.Ref, looked.Lookup = "r/0:1", &v1alpha1.LookupState{Term: 1}
	if after, changed := WriteAfter(of(base), of(looked, base)); after != 0 || !changed {
		t.Errorf("a new tag was looked up: %v, %t", after, changed)
	}
	if after, changed := WriteAfter(of(looked), of(state("r/0:1", base.Phase, 10, 1, 1))); after != writeFloor || !changed {
		t.Errorf("the end of its term: %v, %t", after, changed)
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

// TestBegin: a node begins a model if one of its sets lets it.
func TestBegin(t *testing.T) {
	free := set("free", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}})
	paused := set("paused", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, Paused: true})
	other := set("limited", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}, Parallelism: new(int32(1))})
	mine := other
	other.Status.Turns, mine.Status.Turns = []string{"other"}, []string{"n"}
	for name, tt := range map[string]struct {
		sets           []v1alpha1.ModelSet
		paused, queued bool
	}{
		"free":                 {sets: []v1alpha1.ModelSet{free}},
		"paused":               {[]v1alpha1.ModelSet{paused}, true, true},
		"paused, but not here": {sets: []v1alpha1.ModelSet{paused, free}},
		"its turn":             {sets: []v1alpha1.ModelSet{mine}},
		"not its turn":         {[]v1alpha1.ModelSet{other}, false, true},
		"not its turn, paused": {[]v1alpha1.ModelSet{other, paused}, false, true},
		"paused, its turn":     {sets: []v1alpha1.ModelSet{mine, paused}},
	} {
		got, _ := Wishes(plans(tt.sets...), Node{Name: "n"})
		if w := got["r/a:1"]; w.Paused != tt.paused || w.Queued != tt.queued {
			t.Errorf("%s: %+v", name, w)
		}
	}
}

// TestHolds: neither a model that failed nor one of a paused set keeps the taint of a node.
func TestHolds(t *testing.T) {
	states := []v1alpha1.ModelState{state("r/a:1", v1alpha1.PhaseReady, 1, 1, 0), state("r/b:1", v1alpha1.PhaseFailed, 0, 0, 0), state("r/c:1", v1alpha1.PhasePending, 0, 0, 0)}
	for want, w := range map[bool]Wish{true: {Queued: true}, false: {Paused: true}} {
		if got := Holds(map[string]Wish{"r/a:1": {}, "r/b:1": {}, "r/c:1": w}, states); got != want {
			t.Errorf("%+v: %t", w, got)
		}
	}
}

// TestSelector has sets with expressions, without a selector, and with one that is not valid.
func TestSelector(t *testing.T) {
	in := func(op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "gpu", Operator: op, Values: values}}}
	}
	for name, tt := range map[string]struct {
		selector *metav1.LabelSelector
		want     string // values of the label
		err      bool
	}{
		"none":   {nil, "h100 a100 -", false},
		"empty":  {&metav1.LabelSelector{}, "h100 a100 -", false},
		"label":  {labelled("gpu", "a100"), "a100", false},
		"in":     {in("In", "h100", "a100"), "h100 a100", false},
		"not in": {in("NotIn", "h100"), "a100 -", false},
		"exists": {in("Exists"), "h100 a100", false},
		"wrong":  {in("in", "h100"), "", true},
	} {
		s := set("s", v1alpha1.ModelSetSpec{NodeSelector: tt.selector})
		var got []string
		for _, gpu := range []string{"h100", "a100", "-"} {
			node := map[string]string{"gpu": gpu}
			if gpu == "-" {
				node = nil
			}
			if Selects(&s.Spec, node) {
				got = append(got, gpu)
			}
		}
		if _, err := Selector(&s.Spec); strings.Join(got, " ") != tt.want || (err != nil) != tt.err {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
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
	if !slices.EqualFunc(got, []string{"a", "b"}, func(m v1alpha1.ModelState, ref string) bool { return m.Ref == ref }) || Count(got, v1alpha1.PhaseReady) != 1 || Count(got, v1alpha1.PhaseFailed) != 0 {
		t.Errorf("%v", got)
	}
}
