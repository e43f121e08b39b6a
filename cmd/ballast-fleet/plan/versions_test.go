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

// TestVersionOfTag has a tag through its life: one node looks it up, another one does when that one is down or fails,
// and what a node said in an earlier term does not count.
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
		{"nothing is said", func() {}, v1alpha1.ModelVersion{Node: "n1", Term: 1}},
		{"a digest", func() { n.said["n1"] = v1alpha1.LookupState{Term: 1, Digest: "d1"} }, v1alpha1.ModelVersion{Digest: "d1", Node: "n1", Term: 1}},
		{"the turn of another one", func() { now = now.Add(turn) }, v1alpha1.ModelVersion{Digest: "d1", Node: "n1", Term: 1}},
		{"it is down", func() { n.up = []string{"n2"} }, v1alpha1.ModelVersion{Digest: "d1", Node: "n2", Term: 2}},
		{"the tag has moved", func() { n.said["n2"] = v1alpha1.LookupState{Term: 2, Digest: "d2"} }, v1alpha1.ModelVersion{Digest: "d2", Node: "n2", Term: 2}},
		{"it is up again", func() { n.up = []string{"n1", "n2"}; now = now.Add(turn) }, v1alpha1.ModelVersion{Digest: "d2", Node: "n2", Term: 2}},
		{"an error", func() { n.said["n2"] = v1alpha1.LookupState{Term: 2, Error: "e"} }, v1alpha1.ModelVersion{Digest: "d2", Node: "n1", Term: 3, Error: "e"}},
		{"what it said before", func() { now = now.Add(turn / 2) }, v1alpha1.ModelVersion{Digest: "d2", Node: "n1", Term: 3, Error: "e"}},
		{"an error of that one too", func() { n.said["n1"] = v1alpha1.LookupState{Term: 3, Error: "f"} }, v1alpha1.ModelVersion{Digest: "d2", Node: "n1", Term: 3, Error: "f"}},
		{"the next turn", func() { now = now.Add(turn / 2) }, v1alpha1.ModelVersion{Digest: "d2", Node: "n2", Term: 4, Error: "f"}},
		{"no digest", func() { n.said["n2"] = v1alpha1.LookupState{Term: 4} }, v1alpha1.ModelVersion{Each: true, Node: "n2", Term: 4}},
		{"all are down", func() { n.up = nil }, v1alpha1.ModelVersion{Each: true, Node: "n2", Term: 4}},
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

// TestWishedVersion: of several sets, the first one that knows the version of a model counts, and a node looks a tag up
// if one of them says so.
func TestWishedVersion(t *testing.T) {
	of := func(name string, v v1alpha1.ModelVersion) v1alpha1.ModelSet {
		s := set(name, v1alpha1.ModelSetSpec{Models: []string{"r/a:1"}})
		v.Ref = "r/a:1"
		s.Status.Versions = []v1alpha1.ModelVersion{v}
		return s
	}
	for name, tt := range map[string]struct {
		sets []v1alpha1.ModelSet
		want Wish
	}{
		"not known": {[]v1alpha1.ModelSet{of("a", v1alpha1.ModelVersion{Node: "n", Term: 1, Error: "e"})}, Wish{Term: 1, Error: "e"}},
		"later":     {[]v1alpha1.ModelSet{of("a", v1alpha1.ModelVersion{Node: "n", Term: 1}), of("b", v1alpha1.ModelVersion{Digest: "d", Node: "m", Term: 2})}, Wish{Version: "d", Term: 1}},
		"first":     {[]v1alpha1.ModelSet{of("b", v1alpha1.ModelVersion{Digest: "e"}), of("a", v1alpha1.ModelVersion{Digest: "d", Node: "n", Term: 7})}, Wish{Version: "d", Term: 7}},
		"each":      {[]v1alpha1.ModelSet{of("a", v1alpha1.ModelVersion{Each: true, Node: "m", Term: 7})}, Wish{Each: true}},
	} {
		all, _ := Wishes(plans(tt.sets...), Node{Name: "n"})
		got := all["r/a:1"]
		if got = (Wish{Version: got.Version, Each: got.Each, Term: got.Term, Error: got.Error}); !cmp.Equal(tt.want, got) || got.Known() != (name != "not known") {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}
