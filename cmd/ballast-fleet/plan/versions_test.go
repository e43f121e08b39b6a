package plan

import (
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
	"github.com/google/go-cmp/cmp"
)

// nodesOf has the answers of nodes about one tag, and which nodes are up.
type nodesOf struct {
	up   []string
	said map[string]v1alpha1.LookupState
}

func (n *nodesOf) resolver(sets ...v1alpha1.ModelSet) *Resolver {
	return &Resolver{
		Sets: sets, Up: func(*v1alpha1.ModelSet) []string { return n.up },
		State: func(node, _ string) (m v1alpha1.ModelState) {
			if said, ok := n.said[node]; ok {
				m.Lookup = &said
			}
			return m
		},
	}
}

// TestVersionOfTag has a tag through its life: one node looks it up, another one does when that one is down, fails or
// says nothing, and what a node said in an earlier term does not count.
func TestVersionOfTag(t *testing.T) {
	const ref = "r/a:1"
	s := set("s", v1alpha1.ModelSetSpec{Models: []string{ref}})
	n := &nodesOf{said: map[string]v1alpha1.LookupState{}}
	now := time.Unix(0, 0) // the turn of the first node
	for _, tt := range []struct {
		what string
		do   func()
		want v1alpha1.ModelVersion
	}{
		{"no node", func() {}, v1alpha1.ModelVersion{}},
		{"two nodes", func() { n.up = []string{"n1", "n2"} }, v1alpha1.ModelVersion{Node: "n1", Term: 1}},
		{"nothing is said", func() { now = now.Add(turn / 2) }, v1alpha1.ModelVersion{Node: "n1", Term: 1}},
		{"and nothing later", func() { now = now.Add(turn / 2) }, v1alpha1.ModelVersion{Node: "n2", Term: 2}},
		{"an answer too late", func() { n.said["n1"] = v1alpha1.LookupState{Term: 1, Digest: "d0"} }, v1alpha1.ModelVersion{Node: "n2", Term: 2}},
		{"a digest", func() { n.said["n2"] = v1alpha1.LookupState{Term: 2, Digest: "d1"} }, v1alpha1.ModelVersion{Digest: "d1", Node: "n2", Term: 2}},
		{"the turn of another one", func() { now = now.Add(turn) }, v1alpha1.ModelVersion{Digest: "d1", Node: "n2", Term: 2}},
		{"it is down", func() { n.up = []string{"n1"} }, v1alpha1.ModelVersion{Digest: "d1", Node: "n1", Term: 3}},
		{"what it said before", func() {}, v1alpha1.ModelVersion{Digest: "d1", Node: "n1", Term: 3}},
		{"the tag has moved", func() { n.said["n1"] = v1alpha1.LookupState{Term: 3, Digest: "d2"} }, v1alpha1.ModelVersion{Digest: "d2", Node: "n1", Term: 3}},
		{"it is up again", func() { n.up = []string{"n1", "n2"}; now = now.Add(turn) }, v1alpha1.ModelVersion{Digest: "d2", Node: "n1", Term: 3}},
		{"an error", func() { n.said["n1"] = v1alpha1.LookupState{Term: 3, Error: "e"} }, v1alpha1.ModelVersion{Digest: "d2", Node: "n2", Term: 4, Error: "e"}},
		{"an error of that one too", func() { n.said["n2"] = v1alpha1.LookupState{Term: 4, Error: "f"} }, v1alpha1.ModelVersion{Digest: "d2", Node: "n2", Term: 4, Error: "f"}},
		{"the next turn", func() { now = now.Add(turn) }, v1alpha1.ModelVersion{Digest: "d2", Node: "n1", Term: 5, Error: "f"}},
		{"no digest", func() { n.said["n1"] = v1alpha1.LookupState{Term: 5} }, v1alpha1.ModelVersion{Each: true, Node: "n1", Term: 5}},
		{"all are down", func() { n.up = nil }, v1alpha1.ModelVersion{Each: true, Node: "n1", Term: 5}},
	} {
		tt.do()
		tt.want.Ref = ref
		s.Status.Versions = n.resolver(s).Versions(&s, now)
		if d := cmp.Diff([]v1alpha1.ModelVersion{tt.want}, s.Status.Versions); d != "" {
			t.Fatalf("%s (-want +got):\n%s", tt.what, d)
		}
	}
}

// TestVersionsOfSets: sets with the same tag have the version of the latest term, and a paused one looks nothing up. A
// digest is its own version.
func TestVersionsOfSets(t *testing.T) {
	const tag, digest = "r/a:1", "r/a@sha256:1"
	a := set("a", v1alpha1.ModelSetSpec{Models: []string{tag}})
	b := set("b", v1alpha1.ModelSetSpec{Models: []string{digest, tag}})
	b.Status.Versions = []v1alpha1.ModelVersion{{Ref: tag, Digest: "d5", Node: "n5", Term: 5}}
	n := &nodesOf{up: []string{"n1"}, said: map[string]v1alpha1.LookupState{"n5": {Term: 5, Digest: "d6"}}}
	want := v1alpha1.ModelVersion{Ref: tag, Digest: "d6", Node: "n1", Term: 6}
	if d := cmp.Diff([]v1alpha1.ModelVersion{want}, n.resolver(a, b).Versions(&a, time.Now())); d != "" {
		t.Errorf("a new set (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]v1alpha1.ModelVersion{{Ref: digest, Digest: "sha256:1"}, want}, n.resolver(a, b).Versions(&b, time.Now())); d != "" {
		t.Errorf("the other one (-want +got):\n%s", d)
	}
	a.Spec.Paused, b.Spec.Paused = true, true
	want.Node, want.Term = "n5", 5
	if d := cmp.Diff([]v1alpha1.ModelVersion{want}, n.resolver(a, b).Versions(&a, time.Now())); d != "" {
		t.Errorf("paused (-want +got):\n%s", d)
	}
}

// TestNodesOfAllSets: if the nodes of one set cannot look a tag up, those of the others do.
func TestNodesOfAllSets(t *testing.T) {
	a, b := set("a", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}}), set("b", v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}})
	r := &Resolver{Sets: []v1alpha1.ModelSet{a, b}, Up: func(s *v1alpha1.ModelSet) []string { return []string{s.Name + "1", s.Name + "2"} }}
	r.State = func(string, string) v1alpha1.ModelState { return v1alpha1.ModelState{} }
	asked := map[string]bool{}
	for i := range 8 {
		asked[r.Versions(&a, time.Unix(0, 0).Add(time.Duration(i)*turn))[0].Node] = true
	}
	if len(asked) != 4 {
		t.Errorf("asked %v", asked)
	}
	a.Status.Versions = []v1alpha1.ModelVersion{{Ref: "r/a:1", Node: "b2", Term: 3}}
	r.Sets[0] = a
	r.State = func(string, string) v1alpha1.ModelState {
		return v1alpha1.ModelState{Lookup: &v1alpha1.LookupState{Term: 3, Digest: "d"}}
	}
	if got := r.Versions(&a, time.Unix(0, 0))[0]; got.Node != "b2" || got.Digest != "d" {
		t.Errorf("a node of the other set has answered: %+v", got)
	}
}

// TestWishedVersion: of several sets with a model, the version of the latest term counts.
func TestWishedVersion(t *testing.T) {
	type version = v1alpha1.ModelVersion
	const ref = "r/a:1"
	of := func(name string, v version) v1alpha1.ModelSet {
		s := set(name, v1alpha1.ModelSetSpec{Models: []string{ref}})
		v.Ref = ref
		s.Status.Versions = []version{v}
		return s
	}
	for name, tt := range map[string]struct {
		sets []v1alpha1.ModelSet
		want version
	}{
		"not known": {[]v1alpha1.ModelSet{of("a", version{Node: "n", Term: 1, Error: "e"})}, version{Ref: ref, Node: "n", Term: 1, Error: "e"}},
		"later":     {[]v1alpha1.ModelSet{of("a", version{Node: "n", Term: 1}), of("b", version{Digest: "d", Node: "m", Term: 2})}, version{Ref: ref, Digest: "d", Term: 2}},
		"its term":  {[]v1alpha1.ModelSet{of("a", version{Digest: "d", Node: "m", Term: 1}), of("b", version{Digest: "d", Node: "n", Term: 2})}, version{Ref: ref, Digest: "d", Node: "n", Term: 2}},
		"earlier":   {[]v1alpha1.ModelSet{of("b", version{Digest: "e", Node: "m", Term: 6}), of("a", version{Digest: "d", Node: "n", Term: 7})}, version{Ref: ref, Digest: "d", Node: "n", Term: 7}},
		"each":      {[]v1alpha1.ModelSet{of("a", version{Each: true, Node: "m", Term: 7})}, version{Ref: ref, Each: true, Term: 7}},
	} {
		all, _ := Wishes(plans(tt.sets...), Node{Name: "n"})
		if got := all[ref].ModelVersion; got != tt.want || got.Known() != (name != "not known") {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
