package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/yaml"
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
		"ballast.dev_modelplans.yaml": "../../contrib/helm/ballast/files",
		"zz_generated.deepcopy.go":    "v1alpha1",
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

// TestExplained: kubectl explain describes all fields. The API server describes metadata itself.
func TestExplained(t *testing.T) {
	type schema struct {
		Description string
		Properties  map[string]schema
		Items       *schema
	}
	var walk func(string, schema)
	fields := 0
	walk = func(path string, s schema) {
		for name, p := range s.Properties {
			fields++
			if p.Description == "" && path+name != "/metadata" {
				t.Errorf("%s%s has no description", path, name)
			}
			walk(path+name+"/", p)
		}
		if s.Items != nil {
			walk(path, *s.Items)
		}
	}
	for _, name := range []string{"modelsets", "modelplans", "modelnodes"} {
		p, err := os.ReadFile("../../contrib/helm/ballast/files/ballast.dev_" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct{ OpenAPIV3Schema schema }
				}
			}
		}
		if err := yaml.Unmarshal(p, &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			walk("/", v.Schema.OpenAPIV3Schema)
		}
	}
	if fields < 60 {
		t.Errorf("%d fields", fields)
	}
}

// TestTextsAreBounded: the controller keeps the ModelNodes of all nodes in memory.
func TestTextsAreBounded(t *testing.T) {
	p, err := os.ReadFile("../../contrib/helm/ballast/files/ballast.dev_modelnodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, status, _ := strings.Cut(string(p), "\n          status:\n") // what is before is not of this schema
	bounded := regexp.MustCompile(`(?:enum:\n(?: +- \w+\n)+|format: date-time\n|maxLength: \d+\n|pattern: .+\n) +type: string\n`)
	if all, ok := strings.Count(status, "type: string"), len(bounded.FindAllString(status, -1)); all < 10 || ok != all {
		t.Errorf("%d of %d texts of a ModelNode have limits", ok, all)
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
