package main

import (
	"encoding/xml"
	"os"
	"strings"
	"testing"
)

// TestPlot checks that the plot of the page has all headlines, and is that of its tables.
func TestPlot(t *testing.T) {
	page, err := os.ReadFile("../../contrib/docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(marks(string(page))); n != len(headlines) {
		t.Errorf("the tables have %d of %d headlines", n, len(headlines))
	}
	svg, err := os.ReadFile("../../contrib/docs/performance.svg")
	if err != nil || string(svg) != plot(string(page)) {
		t.Errorf("performance.svg is not the plot of performance.md (%v): go run ./bench -page ../contrib/docs/performance.md -plot", err)
	}
	const table = "| what | ours | beside | ratio | target |\n| mmap read, cold | 1 | 2 | 0.71 (0.26–0.86) | ≥ 0.97: **missed** |\n"
	if got := marks(table); len(got) != 1 || got[0].median != 0.71 || got[0].low != 0.26 || got[0].top != 0.86 || !got[0].missed {
		t.Errorf("got %+v", got)
	}
	if svg := plot(table); !strings.Contains(svg, "0.71</text>") {
		t.Errorf("the plot lacks the ratio:\n%s", svg)
	}
	if err := xml.Unmarshal([]byte(plot(table)), new(struct{})); err != nil {
		t.Error(err)
	}
}
