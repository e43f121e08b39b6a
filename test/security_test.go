package test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile(`\b(Test|Fuzz)[A-Z][A-Za-z0-9]*\b`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)\(`)
)

// TestPromises compares the tests that the security model names with those that there are, and wants one
// for each promise.
func TestPromises(t *testing.T) {
	there := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") && e.Name() != ".." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		p, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(p, -1) {
			there[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../contrib/docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## Promises\n")
	promises, _, ok := strings.Cut(rest, "\n## ")
	if !ok {
		t.Fatal("the page has no section of promises")
	}
	rows := 0
	for line := range strings.Lines(promises) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| # ") {
			continue
		}
		rows++
		names := testName.FindAllString(line, -1)
		if len(names) == 0 {
			t.Errorf("no test holds this promise: %s", line)
		}
		for _, n := range names {
			if !there[n] {
				t.Errorf("%s: there is no such test", n)
			}
		}
	}
	if rows == 0 {
		t.Error("the page has no promises")
	}
}
