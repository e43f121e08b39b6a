package main

import (
	"os"
	"os/exec"
	"path/filepath"
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
