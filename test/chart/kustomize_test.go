package chart

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the bases of Kustomize")

// TestKustomizeBases compares the bases with the objects that the chart renders; with -update it writes
// them.
func TestKustomizeBases(t *testing.T) {
	files, err := Generated(Dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		p := filepath.Join(KustomizeDir, name)
		if *update {
			if err := os.WriteFile(p, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s is not what the chart renders, run `make chart` (-chart +file):\n%s", name, d)
		}
	}
}

// TestKustomize builds every directory and compares it with the chart rendered with the same values.
func TestKustomize(t *testing.T) {
	for dir, values := range map[string]map[string]any{
		"base":             {},
		"base-pod":         {"distro": "talos", "daemon": "pod"},
		"overlays/plain":   {"distro": "plain"},
		"overlays/kubeadm": {"distro": "kubeadm"},
		"overlays/k3s":     {"distro": "k3s"},
		"overlays/rke2":    {"distro": "rke2"},
		"overlays/kind":    {"distro": "kind"},
		"overlays/eks":     {"distro": "eks"},
		"overlays/talos":   {"distro": "talos", "daemon": "pod"},
		"remove":           {},
		"remove-pod":       {"distro": "talos", "daemon": "pod"},
	} {
		built, err := Build(filepath.Join(KustomizeDir, dir))
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		removing := strings.HasPrefix(dir, "remove")
		want := map[string]string{}
		for _, o := range mustRender(t, values) {
			if o.Hook() == removing && !strings.HasSuffix(o.Name, "-gone") {
				p, err := withoutHelm(o)
				if err != nil {
					t.Fatal(err)
				}
				want[o.ID()] = string(p)
			}
		}
		got := map[string]string{}
		for _, o := range built {
			if o.Kind == "Namespace" && !removing { // Helm's users create it themselves
				continue
			}
			p, err := withoutHelm(o)
			if err != nil {
				t.Fatal(err)
			}
			got[o.ID()] = string(p)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s is not what the chart renders (-chart +kustomize):\n%s", dir, d)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(KustomizeDir, "overlays", "*"))
	if err != nil || len(dirs) != 7 {
		t.Errorf("overlays: %q, %v", dirs, err)
	}
}
