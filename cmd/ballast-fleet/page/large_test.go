package page

import (
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/ballast-fleet/v1alpha1"
)

// Large returns a cluster with n nodes and two sets, in the middle of a rollout.
func Large(n int) Cluster {
	models := []string{"ghcr.io/team/embedder:v3", "ghcr.io/team/ranker:v1", "registry.ollama.ai/library/llama3.2:1b"}
	chat, search := setNamed("chat", models[2]), setNamed("search", models[:2]...)
	c := Cluster{Sets: []v1alpha1.ModelSet{chat, search}}
	for i := range n {
		name := fmt.Sprintf("node-%04d", i)
		c.Nodes = append(c.Nodes, plan.Node{Name: name})
		var list []v1alpha1.ModelState
		for k, ref := range models {
			m := v1alpha1.ModelState{Ref: ref, Phase: v1alpha1.PhaseReady, Total: 8e9, Completed: 8e9, Since: ago(time.Hour)}
			switch x := (i*7 + k*5) % 31; {
			case x < 4+k:
				m.Phase, m.Completed, m.Rate = v1alpha1.PhaseDownloading, int64(x+1)*1e9, 90e6
			case x == 30 && k < 2:
				m.Phase, m.Completed, m.Error = v1alpha1.PhaseFailed, 0, fmt.Sprintf("dial tcp 192.0.2.%d:443: connection refused", i%200)
			case x == 29:
				m.Phase, m.Completed = v1alpha1.PhasePending, 0
			}
			list = append(list, m)
		}
		s := stateOf(name, list...)
		s.Status.Disk = &v1alpha1.DiskState{Models: 24e9, Saved: 6e9, Free: 400e9}
		s.Status.Received = &v1alpha1.ReceivedState{Registries: 3e9, Mirrors: []v1alpha1.MirrorState{{Address: "http://127.0.0.1:4001", Bytes: 21e9}}}
		c.States = append(c.States, s)
	}
	return c
}

// Huge returns a cluster with 5,000 nodes and 50 models in ten sets. No two nodes side by side have a model in the same
// phase, which makes the largest pages.
func Huge() Cluster {
	var c Cluster
	for i := range 10 {
		var models []string
		for k := range 5 {
			models = append(models, fmt.Sprintf("ghcr.io/team/model-%d-%d:v1", i, k))
		}
		c.Sets = append(c.Sets, setNamed(fmt.Sprintf("set-%d", i), models...))
	}
	for i := range 5000 {
		name := fmt.Sprintf("node-%04d", i)
		c.Nodes = append(c.Nodes, plan.Node{Name: name})
		var list []v1alpha1.ModelState
		for k := range 50 {
			m := v1alpha1.ModelState{Ref: fmt.Sprintf("ghcr.io/team/model-%d-%d:v1", k/5, k%5), Phase: v1alpha1.Phases[(i+k)%2], Total: 100, Completed: 50, Rate: 1e6, Since: ago(time.Hour)}
			if i%7 == 0 {
				m.Phase, m.Error = v1alpha1.PhaseFailed, fmt.Sprintf("dial tcp 192.0.2.%d:443: connection refused", i%200)
			}
			list = append(list, m)
		}
		s := stateOf(name, list...)
		s.Status.Received = &v1alpha1.ReceivedState{Mirrors: []v1alpha1.MirrorState{{Address: "http://" + name + ":4001", Bytes: 21e9}}}
		c.States = append(c.States, s)
	}
	return c
}
