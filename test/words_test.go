package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// natives are kinds of phrases that native speakers do not write, and what they write.
var natives = []struct{ kind, write string }{
	{`\b[Ss]omebody\b`, "a noun: another user, a process, the operator"},
	{`\b(who|that|which) says to have\b`, "claims to have"},
	{`\blooks? (whether|if)\b`, "checks that"},
	{`\b(be had|cannot have a model)\b`, "be downloaded, be found"},
	{`\bmends?\b`, "fixes"},
	{`\b[Hh]eals?\b (a|the|such|this)\b`, "repairs"},
	{`\b(the|its) begin\b`, "the beginning, the start"},
	{`\b(mirror|disk|node|containerd|registry|it) (that )?is (well|dead)\b`, "healthy, down"},
	{`\bas well as before\b`, "as healthy as before"},
	{`\b([Pp]ods|[Cc]ontainers( that run)?|programs?|loaders?|nobody has) reads? on\b|\breads?\s+on in front\b`, "keep reading, read ahead of"},
	{`\bgoes on (where|when|with)\b`, "continues"},
	{`\b(go|goes|going) back (to the|and)\b|\b[Tt]o go back\b`, "roll back"},
	{`\b([Rr]eferences?|tags?|names?) (stands?|stood|still stands) for\b`, "points to"},
	{`\bimage of one page\b`, "a 4 KiB image: a page is of paper"},
	{`\bOf nine in ten\b`, "90th percentile of"},
	{`\bTrouble with\b`, "failures of"},
	{`\bstrangers? can\b`, "an untrusted user can"},
	{`\bwants? (credentials|an authentication)\b`, "requires"},
	{`\ba time limit\b`, "a timeout"},
	{`\b(leaves?|left) (yours|it|them) alone\b`, "does not touch"},
	{`\bor stays\b`, "or left behind"},
	{`\bWho can [a-z ]+ decides\b`, "the thing that decides as subject"},
	{`\bthat is so for\b`, "the thing itself as subject"},
	{`\bleads? past\b`, "bypass"},
	{`\ball is well\b`, "healthy; or what is checked"},
}

// TestNativeWords looks for these kinds in what users read: pages, messages, help, alerts and the files of contrib.
func TestNativeWords(t *testing.T) {
	var kinds []*regexp.Regexp
	for _, n := range natives {
		kinds = append(kinds, regexp.MustCompile(n.kind))
	}
	read := 0
	check := func(where, text string) {
		read++
		text = strings.Join(strings.Fields(text), " ")
		for i, k := range kinds {
			if m := k.FindStringIndex(text); m != nil {
				t.Errorf("%s: %q; write: %s", where, text[max(0, m[0]-30):min(len(text), m[1]+30)], natives[i].write)
			}
		}
	}
	for _, page := range pages(t) {
		if page != "../contrib/STYLE.md" { // it quotes some
			for paragraph := range strings.SplitSeq(readFile(t, page), "\n\n") {
				check(page, paragraph)
			}
		}
	}
	for _, root := range []string{"cmd", "convert", "store", "snapshotter", "contrib"} {
		err := filepath.WalkDir("../"+root, func(file string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			switch filepath.Ext(file) {
			case ".go":
				if !strings.HasSuffix(file, "_test.go") {
					literals(t, file, func(line int, text string) { check(file+":"+strconv.Itoa(line), text) })
				}
			case ".yaml", ".json", ".toml", ".service", ".txt":
				check(file, readFile(t, file))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if read < 5000 {
		t.Errorf("%d texts were read", read)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	p, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// literals calls do with the text of each string in a Go file.
func literals(t *testing.T, file string, do func(line int, text string)) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				do(set.Position(lit.Pos()).Line, text)
			}
		}
		return true
	})
}
