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

// testNames returns the tests that there are.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
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
	return there
}

// TestNamedTests looks for the tests that the page about pods names.
func TestNamedTests(t *testing.T) {
	there := testNames(t)
	names := testName.FindAllString(read(t, "../contrib/docs/kubernetes.md"), -1)
	if len(names) == 0 {
		t.Error("the page names no tests")
	}
	for _, n := range names {
		if !there[n] {
			t.Errorf("%s: there is no such test", n)
		}
	}
}

// TestPromises compares the tests that the security model names with those that there are, and wants one
// for each promise.
func TestPromises(t *testing.T) {
	there := testNames(t)
	_, rest, _ := strings.Cut(read(t, "../contrib/docs/security.md"), "## Promises\n")
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

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// TestLinks follows the links between pages of the repository, to headings too.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../contrib/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages = append(pages, "../README.md", "../SECURITY.md", "../contrib/README.md", "../contrib/STYLE.md")
	for _, page := range pages {
		for _, m := range mdLink.FindAllStringSubmatch(read(t, page), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(path, "://") {
				continue
			}
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: link %s: %v", page, m[1], err)
			} else if anchor != "" && !hasHeading(read(t, to), anchor) {
				t.Errorf("%s: link %s: there is no such heading", page, m[1])
			}
		}
	}
}

func hasHeading(page, anchor string) bool {
	for _, m := range mdHeading.FindAllStringSubmatch(page, -1) {
		id := notAnchor.ReplaceAllString(strings.ToLower(m[1]), "")
		if strings.ReplaceAll(id, " ", "-") == anchor {
			return true
		}
	}
	return false
}

func read(t *testing.T, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}
