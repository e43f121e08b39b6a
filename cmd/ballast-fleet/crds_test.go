package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGenerated compares the definitions of the chart and the generated code with the types.
func TestGenerated(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command("go", "tool", "controller-gen", "object", "crd", "paths=./v1alpha1", "output:dir="+dir).CombinedOutput()
	if err != nil {
		t.Fatalf("controller-gen: %v\n%s", err, out)
	}
	for name, in := range map[string]string{
		"ballast.dev_modelsets.yaml": "../../contrib/helm/ballast/files", "ballast.dev_modelnodes.yaml": "../../contrib/helm/ballast/files",
		"zz_generated.deepcopy.go": "v1alpha1",
	} {
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(in, name))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(got)); d != "" {
			t.Errorf("%s is not what controller-gen writes, run `make crds` (-want +file):\n%s", name, d)
		}
	}
}

// TestNumbersAreBounded: an agent can only change its own ModelNode, but the numbers of all are added up.
func TestNumbersAreBounded(t *testing.T) {
	p, err := os.ReadFile("../../contrib/helm/ballast/files/ballast.dev_modelnodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	bounded := regexp.MustCompile(`format: int(?:64\n +maximum: 1125899906842624|32)\n +minimum: 0\n`)
	if all, ok := strings.Count(string(p), "format: int"), len(bounded.FindAll(p, -1)); all < 10 || ok != all {
		t.Errorf("%d of %d numbers of a ModelNode have limits", ok, all)
	}
}
