package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
)

// Of returns what nodes do for a set.
func Of(s *v1alpha1.ModelSet) v1alpha1.ModelPlanSpec {
	return v1alpha1.ModelPlanSpec{Set: s.Spec, Turns: s.Status.Turns, Versions: s.Status.Versions}
}

// Digest returns the digest in a reference; empty: it has a tag.
func Digest(ref string) string {
	_, d, _ := strings.Cut(ref, "@")
	return d
}

// Had returns the digest for which a node has downloaded a model, as in ModelVersion.
func Had(m v1alpha1.ModelState) string { return cmp.Or(m.Version, m.Origin) }

// versionOf returns the version of a reference among some.
func versionOf(all []v1alpha1.ModelVersion, ref string) v1alpha1.ModelVersion {
	i := slices.IndexFunc(all, func(v v1alpha1.ModelVersion) bool { return v.Ref == ref })
	if i < 0 {
		return v1alpha1.ModelVersion{Ref: ref}
	}
	return all[i]
}

// A Resolver finds out what the references of sets point to: for each tag, one node looks it up, and all sets with the
// tag have what it found.
type Resolver struct {
	Sets []v1alpha1.ModelSet // sorted by name

	// Up returns the names of the nodes of a set that have an agent and are not down, sorted.
	Up func(*v1alpha1.ModelSet) []string

	// State returns the state of a model on a node.
	State func(node, ref string) v1alpha1.ModelState

	up map[string][]string // what Up has returned, by set
}

// Versions returns what the references of a set point to. A node looks a tag up as long as it can. Of those that can
// not, or do not answer, each has a turn.
func (r *Resolver) Versions(s *v1alpha1.ModelSet, now time.Time) (all []v1alpha1.ModelVersion) {
	for _, ref := range s.Spec.Models {
		v := v1alpha1.ModelVersion{Ref: ref, Digest: Digest(ref)}
		if v.Digest == "" {
			v = r.version(ref, now)
		}
		all = append(all, v)
	}
	return all
}

// version returns what a tag points to, after what its node has said, and perhaps with another node: of all sets with
// the tag that are not paused. The version is that of the latest term in any set.
func (r *Resolver) version(ref string, now time.Time) v1alpha1.ModelVersion {
	v := v1alpha1.ModelVersion{Ref: ref}
	var up [][]string // by set
	for i := range r.Sets {
		s := &r.Sets[i]
		if !s.DeletionTimestamp.IsZero() || !slices.Contains(s.Spec.Models, ref) {
			continue
		}
		if was := versionOf(s.Status.Versions, ref); was.Term > v.Term {
			v = was
		}
		if !paused(&s.Spec) {
			if nodes := r.nodes(s); len(nodes) > 0 {
				up = append(up, nodes)
			}
		}
	}
	// What a node said in an earlier term, it may have said when the tag was another one.
	said := r.State(v.Node, ref).Lookup
	answered := said != nil && said.Term == v.Term
	if answered {
		v.Error = said.Error
		if v.Error == "" {
			v.Digest, v.Each = said.Digest, said.Digest == ""
		}
	}
	can := slices.ContainsFunc(up, func(nodes []string) bool { return has(nodes, v.Node) })
	if len(up) == 0 || can && answered && v.Error == "" {
		return v
	}
	n := int(now.Unix() / int64(turn.Seconds()))
	nodes := up[n%len(up)] // those of one set may have no credentials
	if node := nodes[n/len(up)%len(nodes)]; node != v.Node {
		v.Node, v.Term = node, v.Term+1
	}
	return v
}

// nodes is Up, once for each set.
func (r *Resolver) nodes(s *v1alpha1.ModelSet) []string {
	if _, ok := r.up[s.Name]; !ok {
		if r.up == nil {
			r.up = map[string][]string{}
		}
		r.up[s.Name] = r.Up(s)
	}
	return r.up[s.Name]
}

// learned reports whether a version is known that was not.
func learned(was, is []v1alpha1.ModelVersion) bool {
	return slices.ContainsFunc(is, func(v v1alpha1.ModelVersion) bool {
		return v.Known() && !versionOf(was, v.Ref).Known()
	})
}
