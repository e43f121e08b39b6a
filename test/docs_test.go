package test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
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

// TestNamedTests looks for the tests that pages name.
func TestNamedTests(t *testing.T) {
	there := testNames(t)
	for _, page := range pages(t) {
		for _, n := range testName.FindAllString(read(t, page), -1) {
			if !there[n] && n != "TestX" && n != "FuzzX" {
				t.Errorf("%s: %s: there is no such test", page, n)
			}
		}
	}
	if !testName.MatchString(read(t, "../contrib/docs/tested.md")) {
		t.Error("the page about tests names none")
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
	mdLink    = regexp.MustCompile(`(?:\]\(|\b(?:src|srcset|href)=")([^)"\s]+)[)"]`)
	mdHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	mdCode    = regexp.MustCompile("(?ms)^```.*?^```$|`[^`\n]*`")
	mdFence   = regexp.MustCompile("(?ms)^```.*?^```$")
	notAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// pages returns the pages for users and developers.
func pages(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../contrib/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(pages, "../README.md", "../SECURITY.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../contrib/README.md", "../contrib/STYLE.md")
}

// links returns where a page links to.
func links(page string) []string {
	var to []string
	for _, m := range mdLink.FindAllStringSubmatch(mdCode.ReplaceAllString(page, ""), -1) {
		to = append(to, m[1])
	}
	return to
}

// TestLinks follows the links between pages of the repository, to headings too. Of links elsewhere it
// only checks the form.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, link := range links(read(t, page)) {
			if err := checkLink(page, link); err != nil {
				t.Errorf("%s: link %s: %v", page, link, err)
			}
		}
	}
}

func checkLink(page, link string) error {
	u, err := url.Parse(link)
	switch {
	case err != nil:
		return err
	case u.Scheme == "https" && u.Host != "" && u.User == nil:
		return nil
	case u.Scheme != "" || u.Host != "" || strings.HasPrefix(u.Path, "/"):
		return errors.New("neither https nor a relative path")
	}
	to := page
	if u.Path != "" {
		to = filepath.Join(filepath.Dir(page), u.Path)
	}
	p, err := os.ReadFile(to)
	if errors.Is(err, syscall.EISDIR) && u.Fragment == "" {
		return nil
	}
	if err != nil {
		return err
	}
	if u.Fragment != "" && !slices.Contains(anchors(string(p)), u.Fragment) {
		return errors.New("there is no such heading")
	}
	return nil
}

// anchors returns the names that a page's headings have in links.
func anchors(page string) []string {
	var ids []string
	seen := map[string]int{}
	for _, m := range mdHeading.FindAllStringSubmatch(mdFence.ReplaceAllString(page, ""), -1) {
		id := strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		if n := seen[id]; n > 0 {
			ids = append(ids, fmt.Sprintf("%s-%d", id, n))
		} else {
			ids = append(ids, id)
		}
		seen[id]++
	}
	return ids
}

// TestLinksPlanted shows that TestLinks finds what it is for.
func TestLinksPlanted(t *testing.T) {
	dir := plant(t, map[string]string{"a.md": "# A b\n## `x` *y*\n## A b\n```sh\n# no heading\n```\n", "d/c.md": ""})
	page := filepath.Join(dir, "a.md")
	for link, ok := range map[string]bool{
		"a.md": true, "#a-b": true, "#x-y": true, "#a-b-1": true, "d/c.md": true, "d": true, "https://example.org/x#y": true,
		"b.md": false, "#no-heading": false, "#a-b-2": false, "d/c.md#x": false, "http://example.org": false, "https://": false, "/etc": false,
	} {
		if err := checkLink(page, link); (err == nil) != ok {
			t.Errorf("%s: %v", link, err)
		}
	}
	got := links("[a](b.md#c) `[d](e)` <img src=\"f.svg\" alt=\"g\">\n```md\n[h](i)\n```\n[j]\n(k) [l](m)")
	if want := []string{"b.md#c", "f.svg", "m"}; !slices.Equal(got, want) {
		t.Errorf("links %q, want %q", got, want)
	}
}

// TestPagesAreLinked wants every page to be in the list of the README.
func TestPagesAreLinked(t *testing.T) {
	there := links(read(t, "../README.md"))
	for _, page := range pages(t) {
		rel, err := filepath.Rel("..", page)
		if err != nil {
			t.Fatal(err)
		}
		if rel != "README.md" && rel != "contrib/README.md" && !slices.Contains(there, rel) {
			t.Errorf("the README does not link to %s", rel)
		}
	}
}

var (
	metricName  = regexp.MustCompile(`"(ballast_[a-z_]+)"`)
	doctorCheck = regexp.MustCompile(`(?:const check = |d\.(?:ok|warn|fail)\()"([a-z_. -]+)"`)
)

// TestNamesInPages wants the pages to have all metrics, and all checks of the doctor.
func TestNamesInPages(t *testing.T) {
	for _, tt := range []struct {
		code, page string
		name       *regexp.Regexp
	}{
		{"../cmd/internal/metrics/*.go", "../contrib/docs/monitoring.md", metricName},
		{"../cmd/internal/doctor/*.go", "../contrib/docs/troubleshooting.md", doctorCheck},
	} {
		files, err := filepath.Glob(tt.code)
		if err != nil {
			t.Fatal(err)
		}
		page, found := read(t, tt.page), false
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			for _, m := range tt.name.FindAllStringSubmatch(read(t, f), -1) {
				found = true
				if !strings.Contains(page, "`"+m[1]+"`") {
					t.Errorf("%s does not explain %q of %s", tt.page, m[1], f)
				}
			}
		}
		if !found {
			t.Errorf("%s has no names", tt.code)
		}
	}
}

// TestSpeedInReadme wants the README to have the ratios of the page about performance, and to say which of
// their targets are missed.
func TestSpeedInReadme(t *testing.T) {
	_, speed, _ := strings.Cut(read(t, "../README.md"), "\n## Speed\n")
	speed, _, _ = strings.Cut(speed, "\n## ")
	page := read(t, "../contrib/docs/performance.md")
	for _, row := range []string{
		"pull to resident and verified", "the same, beside stock containerd", "pull of 1 GiB with states", "the same, 512 MiB",
		"lazy: sequential read, cold, loopback", "lazy: sequential read, cold, 200 MiB/s, 20 ms", "sequential read, cold", "mmap read, cold",
	} {
		m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` +\|[^|]*\|[^|]*\| ([0-9.]+) \([^|]*\| ([^|]*)\|$`).FindStringSubmatch(page)
		if m == nil {
			t.Errorf("the page has no ratio of %q", row)
			continue
		}
		missed := strings.Contains(m[2], "missed")
		if !slices.ContainsFunc(strings.Split(speed, "\n"), func(line string) bool {
			return strings.Contains(line, m[1]) && strings.Contains(line, "missed") == missed
		}) {
			t.Errorf("the README does not have %s for %q, missed: %v", m[1], row, missed)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}
