package test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/ballast-dev/ballast/test/mutants/table"
)

// TestMutants compares the table of mutants with the code: each can be made, and its test exists. "make mutants"
// runs them.
func TestMutants(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range table.Mutants {
		p, err := m.Apply([]byte(read(t, filepath.Join("..", m.File))))
		if err == nil {
			_, err = parser.ParseFile(token.NewFileSet(), m.File, p, parser.SkipObjectResolution)
		}
		if err != nil {
			t.Errorf("%s: %v", m, err)
		}
		if seen[m.String()] {
			t.Errorf("%s: twice", m)
		}
		seen[m.String()] = true
		files, err := filepath.Glob(filepath.Join("..", m.Pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		test, found := regexp.MustCompile(`(?m)^func `+m.Test+`\(`), false
		for _, name := range files {
			p, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			found = found || test.Match(p)
		}
		if !found {
			t.Errorf("%s: %s has no such test", m, m.Pkg)
		}
	}
}

// TestMutantsPlanted shows that changes that cannot be made are found.
func TestMutantsPlanted(t *testing.T) {
	for _, m := range []table.Mutant{{Old: "x", New: "y"}, {Old: "a", New: "y"}, {Old: "b", New: "b"}, {}} {
		if p, err := m.Apply([]byte("aab")); err == nil {
			t.Errorf("%q: made %q", m.Old, p)
		}
	}
	if p, err := (table.Mutant{Old: "b", New: "c"}).Apply([]byte("aab")); err != nil || string(p) != "aac" {
		t.Errorf("made %q, %v", p, err)
	}
}
