package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// headlines are the rows of the tables that the plot shows: the beginning of a row, after a row that begins with after.
var headlines = []struct{ after, row, label string }{
	{"lazy: pull to first byte, 512 MiB, the rest", "the same, 512 MiB", "first byte / stock containerd, which pulls all before it"},
	{"pull to resident and verified", "the same, beside stock containerd", "pull / stock containerd: pull, unpack, sync"},
	{"", "pull of 1 GiB with states", "pull with hash states / fetch, hash, write, fsync"},
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
			if after && strings.HasPrefix(what, h.row) && ratio != nil {
				m := mark{label: h.label, median: number(ratio[1]), missed: strings.Contains(cells[5], "missed")}
				m.low, m.top = m.median, m.median
				if ratio[2] != "" {
					m.low, m.top = number(ratio[2]), number(ratio[3])
				}
				all = append(all, m)
				break
			}
			after = after || h.after != "" && strings.HasPrefix(what, h.after)
		}
	}
	return all
}

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

// plot returns an SVG of the headlines of a page. It is the same for the same page.
func plot(page string) string {
	all := marks(page)
	bottom := 44 + lineHeight*float64(len(all))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="880" height="%.0f" font-family="sans-serif" font-size="13">`+"\n", bottom+44)
	b.WriteString("<title>What ballast needs beside what does the same without it</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n")
	for _, v := range []float64{0.05, 0.1, 0.2, 0.5, 1, 2} {
		color := "#ddd"
		if v == 1 {
			color = "#333"
		}
		fmt.Fprintf(&b, `<line x1="%.1f" y1="24" x2="%.1f" y2="%.1f" stroke="%s"/>`, at(v), at(v), bottom, color)
		text(&b, at(v), bottom+16, "middle", "#555", fmt.Sprint(v))
	}
	text(&b, at(1), 16, "middle", "#555", "the same without ballast = 1")
	for i, m := range all {
		y, color := 44+lineHeight*float64(i), "#1a7f37"
		if m.missed {
			color = "#cf222e"
		}
		text(&b, left-14, y+4, "end", "#111", m.label)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="3" opacity="0.45"/>`, at(m.low), y, at(m.top), y, color)
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="5" fill="%s"/>`, at(m.median), y, color)
		text(&b, right+10, y+4, "start", color, fmt.Sprintf("%.2f", m.median))
	}
	text(&b, right, bottom+34, "end", "#555", "median of the ratios of pairs, smallest to largest; red: a target is missed")
	b.WriteString("</svg>\n")
	return b.String()
}

// text writes a line of text.
func text(b *strings.Builder, x, y float64, anchor, color, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, color, s)
}
