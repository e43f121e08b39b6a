package node

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Blocks returns the number of blocks of commands of a page.
func Blocks(t TB, page string) int {
	t.Helper()
	return len(fence("sh").FindAllString(read(t, page), -1))
}

// Block returns the first block in a language after a heading of a page.
func Block(t TB, page, heading, language string) string {
	t.Helper()
	_, text, ok := strings.Cut(read(t, page), heading)
	block := fence(language).FindStringSubmatch(text)
	if !ok || block == nil {
		t.Fatalf("%s has no %s after %q", page, language, heading)
	}
	return block[1]
}

// Typed returns the commands in the first block after a heading of a page, without comments.
func Typed(t TB, page, heading string) []string {
	t.Helper()
	var all []string
	for _, l := range Lines(strings.ReplaceAll(Block(t, page, heading, "sh"), "\\\n", "")) {
		command, _, _ := strings.Cut(l, " # ")
		all = append(all, strings.TrimSpace(command))
	}
	return all
}

// OfAlerts returns the commands of a program in the descriptions of alerts, where they have quotation marks, each once.
func OfAlerts(t TB, program string) []string {
	t.Helper()
	const rules = "contrib/monitoring/rules.yaml"
	var all []string
	for _, l := range Lines(read(t, rules)) {
		if strings.HasPrefix(strings.TrimSpace(l), "#") {
			continue
		}
		for _, m := range regexp.MustCompile(`"(`+program+` [^"]+)"`).FindAllStringSubmatch(l, -1) {
			all = append(all, m[1])
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no commands of %s", rules, program)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func fence(language string) *regexp.Regexp {
	return regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$")
}

func read(t TB, page string) string {
	t.Helper()
	p, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(p)
}

// Lines returns the lines of a text, without empty ones.
func Lines(text string) []string {
	var all []string
	for l := range bytes.Lines([]byte(text)) {
		if l = bytes.TrimSpace(l); len(l) > 0 {
			all = append(all, string(l))
		}
	}
	return all
}
