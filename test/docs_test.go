package test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/test/mutants/table"
	"go.yaml.in/yaml/v3"
)

var (
	testName = regexp.MustCompile(`\b(?:([a-z0-9]+)\.)?((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)\b`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)\(`)
)

// testFolders returns the folders, from the root of the repository, that have a test, by its name.
func testFolders(t *testing.T) map[string][]string {
	t.Helper()
	there := map[string][]string{}
	err := filepath.WalkDir("..", func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") && e.Name() != ".." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, "_test.go") {
			return nil
		}
		folder := filepath.ToSlash(strings.TrimPrefix(filepath.Dir(file), "../"))
		p, err := os.ReadFile(file)
		for _, m := range testFunc.FindAllSubmatch(p, -1) {
			if name := string(m[1]); !slices.Contains(there[name], folder) {
				there[name] = append(there[name], folder)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return there
}

// namedTests returns the tests that a text names, as folder and name: as TestX, or as package.TestX if several packages
// have one.
func namedTests(text string, there map[string][]string) (tests []string, err error) {
	for _, m := range testName.FindAllStringSubmatch(text, -1) {
		in := slices.DeleteFunc(slices.Clone(there[m[2]]), func(folder string) bool { return m[1] != "" && path.Base(folder) != m[1] })
		switch {
		case len(in) == 1:
			tests = append(tests, in[0]+" "+m[2])
		case m[2] == "TestX" || m[2] == "FuzzX":
		case len(in) == 0:
			err = errors.Join(err, fmt.Errorf("%s: there is no such test", m[0]))
		default:
			err = errors.Join(err, fmt.Errorf("%s is a test of %s: write package.%s", m[0], strings.Join(in, " and "), m[2]))
		}
	}
	return tests, err
}

// TestNamedTests looks for the tests that pages name.
func TestNamedTests(t *testing.T) {
	there := testFolders(t)
	for _, page := range pages(t) {
		if _, err := namedTests(read(t, page), there); err != nil {
			t.Errorf("%s: %v", page, err)
		}
	}
	if !testName.MatchString(read(t, "../contrib/docs/tested.md")) {
		t.Error("the page about tests names none")
	}
	planted := map[string][]string{"TestA": {"store"}, "TestB": {"store", "test/e2e"}}
	for text, want := range map[string]int{"`TestA` `e2e.TestB` TestX": 2, "TestB": -1, "TestC": -1, "e2e.TestA": -1, "lazy.TestB": -1} {
		if got, err := namedTests(text, planted); err == nil != (want >= 0) || err == nil && len(got) != want {
			t.Errorf("planted: %s: %q, %v", text, got, err)
		}
	}
}

// TestPromises compares the tests that the security model names with those that there are, and wants one
// for each promise, and a mutant that it fails for.
func TestPromises(t *testing.T) {
	there := testFolders(t)
	_, rest, _ := strings.Cut(read(t, "../contrib/docs/security.md"), "## Promises\n")
	promises, _, ok := strings.Cut(rest, "\n## ")
	if !ok {
		t.Fatal("the page has no section of promises")
	}
	mutants := map[int][]string{} // the tests that fail for them, as namedTests returns them, by promise
	for _, m := range table.Mutants {
		mutants[m.Promise] = append(mutants[m.Promise], m.Pkg+" "+m.Test)
	}
	rows := 0
	for line := range strings.Lines(promises) {
		var number int
		if _, err := fmt.Sscanf(line, "| %d |", &number); err != nil {
			continue
		}
		rows++
		names, err := namedTests(line, there)
		if err != nil {
			t.Error(err)
		}
		for _, n := range mutants[number] {
			if !slices.Contains(names, n) {
				t.Errorf("%s fails for a mutant of promise %d, which does not name it", n, number)
			}
		}
		if len(mutants[number]) == 0 {
			t.Errorf("promise %d has no mutant in test/mutants", number)
		}
		delete(mutants, number)
		if len(names) == 0 {
			t.Errorf("no test holds this promise: %s", line)
		}
	}
	if rows == 0 || len(mutants) > 0 {
		t.Errorf("the page has %d promises, and not those of the mutants %v", rows, mutants)
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
	return append(pages, "../README.md", "../SECURITY.md", "../CONTRIBUTING.md", "../CHANGELOG.md", "../contrib/README.md", "../contrib/STYLE.md", "../test/bench/README.md")
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
	spanName    = regexp.MustCompile(`= "(ballast\.[a-z]+)"`)
	doctorCheck = regexp.MustCompile(`(?:\b[cC]heck[A-Z]?[A-Za-z]* *= |[dk]\.(?:OK|Warn|Fail)\()"([a-z_. -]+)"`)
)

// TestNamesInPages wants the pages to have all metrics, spans and checks of the doctor.
func TestNamesInPages(t *testing.T) {
	for _, tt := range []struct {
		code, page string
		name       *regexp.Regexp
	}{
		{"../cmd/internal/daemon/metrics/*.go", "../contrib/docs/monitoring.md", metricName},
		{"../store/span/*.go", "../contrib/docs/traces.md", spanName},
		{"../cmd/internal/doctor/*.go", "../contrib/docs/troubleshooting.md", doctorCheck},
		{"../cmd/internal/installer/node/*.go", "../contrib/docs/troubleshooting.md", doctorCheck},
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

// TestSpeedInReadme wants the README to have ratios and a difference of the page about performance, to say which of their
// targets are missed, and how many of all.
func TestSpeedInReadme(t *testing.T) {
	_, speed, _ := strings.Cut(read(t, "../README.md"), "\n## Speed\n")
	speed, _, _ = strings.Cut(speed, "\n## ")
	page := read(t, "../contrib/docs/performance.md")
	rows := []string{"the same, beside stock containerd", "sequential read, cold", "mmap read, cold"} // ratios
	for _, row := range append(rows, "lazy: pull to first byte, 2 GiB") {
		m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` +\|[^|]*\|[^|]*\| \+?([0-9.]+) [^|]*\| ([^|]*)\|$`).FindStringSubmatch(page)
		if m == nil {
			t.Errorf("the page has no figure of %q", row)
			continue
		}
		missed := strings.Contains(m[2], "missed")
		if !slices.ContainsFunc(strings.Split(speed, "\n"), func(line string) bool {
			return strings.Contains(line, m[1]) && strings.Contains(line, "missed") == missed
		}) {
			t.Errorf("the README does not have %s for %q, missed: %v", m[1], row, missed)
		}
	}
	if got := strings.Count(speed, " of its "); got != len(rows) {
		t.Errorf("the README has %d ratios, of which %d are compared", got, len(rows))
	}
	top, _, _ := strings.Cut(read(t, "../README.md"), "\n## ")
	for ours, row := range map[string]string{"**ballast**, a model with chunk digests": "ballast, converted", "containerd, the model packed as an image": "containerd, overlayfs, tar",
		"Ollama's server": "Ollama's server, its own format", "stargz snapshotter": "stargz snapshotter, estargz"} {
		m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` +\|[^|]*\| ([0-9.]+) ms [^|]*\|`).FindStringSubmatch(page)
		if m == nil {
			t.Errorf("the page has no figure of %q", row)
			continue
		}
		ms, err := strconv.ParseFloat(m[1], 64)
		if want := fmt.Sprintf("\n| %s | %.1f s |\n", ours, ms/1000); err != nil || !strings.Contains(top, want) {
			t.Errorf("the README does not have %q", want)
		}
	}
	met, missed := len(regexp.MustCompile(`(?m)^\|.*: met +\|$`).FindAllString(page, -1)), len(missedRow.FindAllString(page, -1))
	if want := fmt.Sprintf("%d targets are met, %d are missed", met, missed); !strings.Contains(strings.Join(strings.Fields(speed), " "), want) {
		t.Errorf("the README does not have %q", want)
	}
}

var (
	settingSpan  = regexp.MustCompile("`([a-z]+(?:\\.[a-z_]+)+)`")
	settingRow   = regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\|")
	chartFlag    = regexp.MustCompile(`--set ([a-zA-Z.]+)=`)
	metricInText = regexp.MustCompile(`\bballast_[a-z_]+\b`)
	checkRow     = regexp.MustCompile("(?m)^\\| (`[a-z_. -]+`(?:, `[a-z_. -]+`)*) \\|")
	makeCommand  = regexp.MustCompile("(?m)(?:`|^)make ([a-z0-9-]+(?: [a-z0-9-]+)*)")
	makeTarget   = regexp.MustCompile(`(?m)^([a-z0-9%-]+(?: [a-z0-9%-]+)*):`)
	repoPath     = regexp.MustCompile(`(?:^|\s)(contrib/[A-Za-z0-9/._-]+|test/[A-Za-z0-9/._-]+)`)
	codeBlock    = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
)

// TestPagesNameWhatExists looks up the settings, values of the chart, metrics, checks of the doctor, targets of make
// and files of the repository that pages name.
func TestPagesNameWhatExists(t *testing.T) {
	configuration := read(t, "../contrib/docs/configuration.md")
	settings, sections := map[string]bool{}, map[string]bool{}
	for _, m := range settingRow.FindAllStringSubmatch(configuration, -1) {
		settings[m[1]] = true
		section, _, nested := strings.Cut(m[1], ".")
		sections[section] = nested
	}
	var values map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "../contrib/helm/ballast/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	metrics, checks := "", ""
	for _, dir := range []string{"internal/daemon/metrics", "internal/door/facadeport", "ballast-fleet", "ballast-fleet/agent"} {
		for _, f := range glob(t, "../cmd/"+dir+"/*.go") {
			metrics += read(t, f)
		}
	}
	for _, f := range append(glob(t, "../cmd/internal/doctor/*.go"), glob(t, "../cmd/internal/installer/node/*.go")...) {
		checks += read(t, f)
	}
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(read(t, "../Makefile"), -1) {
		targets = append(targets, strings.Fields(m[1])...)
	}
	found := map[string]int{}
	for _, page := range pages(t) {
		text := read(t, page)
		for _, m := range settingSpan.FindAllStringSubmatch(text, -1) {
			section, _, _ := strings.Cut(m[1], ".")
			if !sections[section] || m[1] == "containerd.io" || strings.HasSuffix(m[1], ".toml") {
				continue
			}
			if found["setting"]++; !settings[m[1]] && !hasValue(values, m[1]) {
				t.Errorf("%s: there is no setting %s", page, m[1])
			}
		}
		for _, m := range chartFlag.FindAllStringSubmatch(text, -1) {
			if found["value"]++; !hasValue(values, m[1]) {
				t.Errorf("%s: the chart has no value %s", page, m[1])
			}
		}
		for _, m := range metricInText.FindAllString(text, -1) {
			if found["metric"]++; !strings.Contains(metrics, `"`+m+`"`) {
				t.Errorf("%s: there is no metric %s", page, m)
			}
		}
		for _, m := range makeCommand.FindAllStringSubmatch(text, -1) {
			for target := range strings.FieldsSeq(m[1]) {
				bench, isBench := strings.CutPrefix(target, "bench-")
				if found["target"]++; !slices.Contains(targets, target) && (!isBench || bench == "") {
					t.Errorf("%s: make has no target %s", page, target)
				}
			}
		}
		for _, block := range codeBlock.FindAllStringSubmatch(text, -1) {
			for _, m := range repoPath.FindAllStringSubmatch(block[1], -1) {
				found["file"]++
				if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	}
	_, table, _ := strings.Cut(read(t, "../contrib/docs/troubleshooting.md"), "\n## What doctor checks\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range checkRow.FindAllStringSubmatch(table, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			if found["check"]++; !strings.Contains(checks, `"`+strings.Trim(name, "`")+`"`) {
				t.Errorf("the doctor has no check %s", name)
			}
		}
	}
	for _, kind := range []string{"setting", "value", "metric", "target", "file", "check"} {
		if found[kind] < 3 {
			t.Errorf("the pages name %d of kind %s", found[kind], kind)
		}
	}
}

// TestContribListed wants the list of what is beside the programs to have all of it.
func TestContribListed(t *testing.T) {
	list := read(t, "../contrib/README.md")
	for _, pattern := range []string{"../contrib/*", "../contrib/systemd/*"} {
		for _, f := range glob(t, pattern) {
			name, err := filepath.Rel("../contrib", f)
			if err != nil {
				t.Fatal(err)
			}
			if name != "README.md" && filepath.Ext(name) != ".go" && !strings.Contains(list, "`"+name+"`") && !strings.Contains(list, "`"+name+"/") {
				t.Errorf("contrib/README.md does not list %s", name)
			}
		}
	}
}

// glob returns the files of the product that match a pattern.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
}

// hasValue reports whether the values of the chart have a key with a path.
func hasValue(values map[string]any, path string) bool {
	first, rest, more := strings.Cut(path, ".")
	v, ok := values[first]
	if !more || !ok {
		return ok
	}
	below, _ := v.(map[string]any)
	return hasValue(below, rest)
}

var missedRow = regexp.MustCompile(`(?m)^\| (.*?) +\|.*\*\*missed\*\* +\|$`)

// TestMissedTargets wants the page about performance to name each target that is missed: why, or that it is not
// known.
func TestMissedTargets(t *testing.T) {
	page := read(t, "../contrib/docs/performance.md")
	_, why, _ := strings.Cut(page, "\n### Targets that two processors or the machine miss\n")
	why, _, _ = strings.Cut(why, "\n## ")
	names := []struct{ row, text string }{
		{"^pull of 1209 tensors", "1,209 tensors ≤ 1.8"}, {"^pull of 1209 raw files", "1,209 small files ≤ 1 s"},
		{"^loaded: .*200 MiB/s", "time to loaded ≤ 0.9 over 200 MiB/s"}, {"^loaded: .*loopback$", "time to loaded on loopback"},
		{"4 KiB of what is there", "4 KiB of what is there"}, {"^the same tag again", "the second answer for a tag"},
		{"with states$", "a pull of 4 GiB with states"}, {"^lazy: pull to first byte", "the first byte ≤ 15 ms"},
		{"^lazy: sequential read, cold, 200 MiB/s", "lazy reads over the slow link"},
		{"completed file, ", "files that were completed under a mount"}, {"^(sequential|mmap) read, ", "read by mmap and with a warm cache"},
		{"^loaded in an order|recorded by another node", "a loader with a recorded order"}, {"4 unpacked at a time$", "four layers unpacked at a time"},
		{"the first 10 % of its reads$", "the first 10 % of the reads"},
		{"^daemon memory, peak", "the daemon's memory in a pull"},
	}
	rows := missedRow.FindAllStringSubmatch(page, -1)
	if len(rows) == 0 {
		t.Fatal("the page has no missed targets")
	}
	for _, m := range rows {
		named := false
		for _, n := range names {
			named = named || regexp.MustCompile(n.row).MatchString(m[1]) && strings.Contains(strings.Join(strings.Fields(why), " "), n.text)
		}
		if !named {
			t.Errorf("nothing says why %q is missed", m[1])
		}
	}
}

// TestNothingTwice looks for lines that a page has twice, as merges leave them, and for entries of the changes that
// begin with the same words.
func TestNothingTwice(t *testing.T) {
	for _, page := range pages(t) {
		if strings.HasSuffix(page, "performance.md") { // has the figures of several runs
			continue
		}
		for _, line := range twice(mdFence.ReplaceAllString(read(t, page), "")) {
			t.Errorf("%s: twice: %s", page, line)
		}
	}
	if got := twice("* a line that is long enough to be prose, here\n\n* short\n* short\n* a line that is long enough to be prose, here\n"); len(got) != 1 {
		t.Errorf("planted: %q", got)
	}
}

// twice returns the lines that a page has again, except short ones and the heads of tables.
func twice(page string) (lines []string) {
	seen := map[string]bool{}
	all := strings.Split(page, "\n")
	for i, line := range all {
		head := i+1 < len(all) && strings.HasPrefix(all[i+1], "|-") || strings.HasPrefix(line, "|-")
		if len(line) > 40 && !head && seen[line] {
			lines = append(lines, line)
		}
		seen[line] = true
	}
	return lines
}

// TestEmptySections looks for headings without text, in pages and in the documentation of packages.
func TestEmptySections(t *testing.T) {
	docs, err := filepath.Glob("../*/doc.go")
	for _, pattern := range []string{"../*/*/doc.go", "../*/*/*/doc.go"} {
		more, e := filepath.Glob(pattern)
		docs, err = append(docs, more...), errors.Join(err, e)
	}
	if err != nil || len(docs) < 50 {
		t.Fatalf("%d packages, %v", len(docs), err)
	}
	for _, p := range docs {
		for _, h := range emptySections(strings.ReplaceAll(read(t, p), "\n// ", "\n")) {
			t.Errorf("%s: nothing below %q", p, h)
		}
	}
	for _, p := range pages(t) {
		for _, h := range emptySections(mdFence.ReplaceAllString(read(t, p), "code")) {
			t.Errorf("%s: nothing below %q", p, h)
		}
	}
	if got := emptySections("# a\n\n## b\ntext\n## c\n\n## d\n//\npackage x\n"); len(got) != 2 {
		t.Errorf("planted: %q", got)
	}
}

// emptySections returns the headings before another one of the same or a higher level, and before the end.
func emptySections(text string) (empty []string) {
	level := func(line string) int { return len(line) - len(strings.TrimLeft(line, "#")) }
	last := ""
	for line := range strings.Lines(text + "\n# end") {
		line = strings.TrimSpace(line)
		switch {
		case line == "", line == "//", strings.HasPrefix(line, "package "), strings.HasPrefix(line, "<!--"):
		case level(line) > 0:
			if last != "" && level(line) <= level(last) {
				empty = append(empty, last)
			}
			last = line
		default:
			last = ""
		}
	}
	return empty
}

// TestFormatsInPicture wants the picture of the README to name the formats of its table.
func TestFormatsInPicture(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../README.md"), "\n## Formats\n")
	table, _, _ = strings.Cut(table, "\n## ")
	picture, n := read(t, "../contrib/docs/overview.svg"), 0
	for line := range strings.Lines(table) {
		cell, ok := strings.CutPrefix(line, "| ")
		if !ok || strings.HasPrefix(cell, "format") {
			continue
		}
		name := regexp.MustCompile(`^(?:artifacts of files|Hugging Face|Docker AI|[A-Za-z]+)`).FindString(cell)
		if n++; !strings.Contains(picture, name) {
			t.Errorf("the picture does not name %q", name)
		}
	}
	if n < 8 {
		t.Errorf("the table has %d formats", n)
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
