package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/manualtest"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

var (
	update = flag.Bool("update", false, "write the command reference in contrib/docs")
	manDir = flag.String("man", "", "write the man page to this directory")
)

// TestManual compares the command reference with the texts of --help; -update writes it.
func TestManual(t *testing.T) {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	sections, err := manualtest.Sections("../../contrib/docs", true, "ballastd(8)")
	if err != nil {
		t.Fatal(err)
	}
	if err := manualtest.Check("../../contrib/docs/commands.md", root, *update, *manDir, wire.ThisVersion().Version, sections...); err != nil {
		t.Error(err)
	}
}

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	codeSpan   = regexp.MustCompile("`((?:bin/)?ballastd? [^`]*)`")
	comment    = regexp.MustCompile(`(^|\s)#.*`)
	separator  = regexp.MustCompile(`&&|\|\||[;|]`)
	inner      = regexp.MustCompile(`\$\(([^()]*)\)`) // a command whose output is an argument of another one
)

// commandLines returns the command lines of our programs that a page has, in blocks and in sentences.
func commandLines(page string) []string {
	var lines []string
	for _, m := range shellBlock.FindAllStringSubmatch(page, -1) {
		block := strings.ReplaceAll(m[1], "\\\n", " ")
		for _, m := range inner.FindAllStringSubmatch(block, -1) {
			lines = append(lines, m[1])
		}
		for line := range strings.Lines(inner.ReplaceAllString(block, "X")) {
			lines = append(lines, separator.Split(comment.ReplaceAllString(strings.TrimSpace(line), ""), -1)...)
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(page, -1) {
		lines = append(lines, strings.ReplaceAll(m[1], "\n", " "))
	}
	return lines
}

// TestDocumentedCommands looks for the commands and flags that the documentation uses.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../contrib/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md", "../../CHANGELOG.md", "../../contrib/README.md") {
		p, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandLines(string(p)) {
			words := strings.Fields(line)
			i := slices.IndexFunc(words, func(w string) bool { return filepath.Base(w) == "ballast" })
			if i < 0 || i > 0 && (i > 1 || words[0] != "sudo") && (words[0] != "docker" || words[1] != "exec") {
				continue
			}
			n++
			if err := checkCommandLine(words[i+1:]); err != nil {
				t.Errorf("%s: %q: %v", page, line, err)
			}
		}
	}
	if n < 50 {
		t.Errorf("the documentation has %d command lines", n)
	}
}

func checkCommandLine(words []string) error {
	root := (&app{stdout: io.Discard, stderr: io.Discard}).root()
	root.InitDefaultCompletionCmd(words...)
	c, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if strings.HasSuffix(c.Use, "COMMAND") && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		return fmt.Errorf("there is no command %q", rest[0])
	}
	c.InitDefaultHelpFlag()
	for _, w := range rest {
		name, _, _ := strings.Cut(w, "=")
		switch long, isLong := strings.CutPrefix(name, "--"); {
		case isLong && c.Flag(long) == nil:
			return fmt.Errorf("there is no flag %s", name)
		case !isLong && len(name) == 2 && name[0] == '-' && c.Flags().ShorthandLookup(name[1:]) == nil && c.InheritedFlags().ShorthandLookup(name[1:]) == nil:
			return fmt.Errorf("there is no flag %s", name)
		}
	}
	return nil
}
