package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// headlines are the rows of the tables that the plot shows: a pattern of the beginning of a row, after a row that
// begins with after.
var headlines = []struct{ after, row, label string }{
	{`lazy: pull to a page in the middle, \d+ \w+, the rest`, `the same, \d+ \w+$`, "first byte / stock containerd, which pulls all before it"},
	{"pull to resident and verified", "the same, beside stock containerd", "pull / stock containerd: pull, unpack, sync"},
	{"", `pull of \d+ \w+ with states`, "pull with hash states / fetch, hash, write, fsync"},
	{"", "pull to resident and verified", "pull / fetch, hash, write, fsync"},
	{"", "ordinary: one gzip layer", "ordinary image / overlayfs"},
	{"", "lazy: sequential read, cold, loopback", "rate of a lazy read / the same without containerd"},
	{"", "sequential read, cold", "rate of a complete file, read / native"},
	{"", "mmap read, cold", "rate of a complete file, mmap / native"},
}

// A mark is a row of the plot: a ratio with its extremes, and whether its target is met.
type mark struct {
	label            string
	median, low, top float64
	missed           bool
}

// ratioCell is a cell with a ratio, such as "0.54 (0.35–0.93)".
var ratioCell = regexp.MustCompile(`^(\d+\.\d+)(?: \((\d+\.\d+)–(\d+\.\d+)\))?$`)

// marks returns what the tables of a page have of the headlines, in their order.
func marks(page string) (all []mark) {
	for _, h := range headlines {
		after := h.after == ""
		for line := range strings.Lines(page) {
			cells := strings.Split(line, "|")
			if len(cells) < 6 {
				continue
			}
			what := strings.TrimSpace(cells[1])
			ratio := ratioCell.FindStringSubmatch(strings.TrimSpace(cells[4]))
			if after && begins(what, h.row) && ratio != nil {
				m := mark{label: h.label, median: number(ratio[1]), missed: strings.Contains(cells[5], "missed")}
				m.low, m.top = m.median, m.median
				if ratio[2] != "" {
					m.low, m.top = number(ratio[2]), number(ratio[3])
				}
				all = append(all, m)
				break
			}
			after = after || begins(what, h.after)
		}
	}
	return all
}

// begins reports whether a text begins with a pattern.
func begins(text, pattern string) bool { return regexp.MustCompile("^" + pattern).MatchString(text) }

// number returns the value of digits that ratioCell matches.
func number(s string) float64 {
	v, _ := strconv.ParseFloat(s, 64)
	return v
}

// The plot has a logarithmic axis from least to most, in pixels from left on.
const (
	least, most = 0.05, 2.0
	left, right = 360.0, 820.0
	lineHeight  = 30.0
)

// at returns where a ratio is on the axis.
func at(ratio float64) float64 {
	return left + (right-left)*math.Log(min(max(ratio, least), most)/least)/math.Log(most/least)
}

// style has the colors of the plot, for a light and for a dark page.
const style = `<style>
.ground{fill:#fff} .text{fill:#111} .axis{fill:#555} .met{fill:#1a7f37;stroke:#1a7f37} .missed{fill:#cf222e;stroke:#cf222e}
.grid{stroke:#ddd} .one{stroke:#333} text{stroke:none!important}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117} .text{fill:#e6edf3} .axis{fill:#9198a1} .met{fill:#3fb950;stroke:#3fb950} .missed{fill:#f85149;stroke:#f85149}
.grid{stroke:#30363d} .one{stroke:#d1d7e0}
}
</style>
`

// plot returns an SVG of the headlines of a page. It is the same for the same page.
func plot(page string) string {
	all := marks(page)
	bottom := 44 + lineHeight*float64(len(all))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="880" height="%.0f" font-family="sans-serif" font-size="13">`+"\n", bottom+44)
	b.WriteString("<title>What ballast needs beside what does the same without it</title>\n" + style + "<rect width=\"100%\" height=\"100%\" class=\"ground\"/>\n")
	for _, v := range []float64{0.05, 0.1, 0.2, 0.5, 1, 2} {
		class := "grid"
		if v == 1 {
			class = "one"
		}
		fmt.Fprintf(&b, `<line x1="%.1f" y1="24" x2="%.1f" y2="%.1f" class="%s"/>`, at(v), at(v), bottom, class)
		text(&b, at(v), bottom+16, "middle", "axis", fmt.Sprint(v))
	}
	text(&b, at(1), 16, "middle", "axis", "the same without ballast = 1")
	for i, m := range all {
		y, class := 44+lineHeight*float64(i), "met"
		if m.missed {
			class = "missed"
		}
		text(&b, left-14, y+4, "end", "text", m.label)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s" stroke-width="3" opacity="0.45"/>`, at(m.low), y, at(m.top), y, class)
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="5" class="%s"/>`, at(m.median), y, class)
		text(&b, right+10, y+4, "start", class, fmt.Sprintf("%.2f", m.median))
	}
	text(&b, right, bottom+34, "end", "axis", "median of the ratios of pairs, smallest to largest; red: a target is missed")
	b.WriteString("</svg>\n")
	return b.String()
}

// text writes a line of text.
func text(b *strings.Builder, x, y float64, anchor, class, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, s)
}
