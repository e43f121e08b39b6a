package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// series are times, or ratios.
type series []time.Duration

func (s *series) add(d time.Duration) { *s = append(*s, d) }

// percentile returns the value at a percentile.
func (s series) percentile(n int) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[(len(sorted)-1)*n/100]
}

// median returns the mean of the two middle values if their number is even.
func (s series) median() time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// spread prints the median with minimum and maximum.
func (s series) spread(print func(time.Duration) string) string {
	if len(s) == 1 {
		return print(s[0])
	}
	least, _, _ := strings.Cut(print(slices.Min(s)), " ") // without the unit
	most, _, _ := strings.Cut(print(slices.Max(s)), " ")
	a, _ := strconv.ParseFloat(least, 64)
	z, _ := strconv.ParseFloat(most, 64)
	if a > z { // a rate
		least, most = most, least
	}
	return fmt.Sprintf("%s (%s–%s)", print(s.median()), least, most)
}

// ratio compares pairs of the same round: the median of their ratios, with minimum and maximum. A
// single value is paired with all others.
func ratio(a, b series) (median float64, text string) {
	var rs []float64
	for i := range max(len(a), len(b)) {
		rs = append(rs, a[i%len(a)].Seconds()/max(b[i%len(b)].Seconds(), 1e-9))
	}
	slices.Sort(rs)
	median = (rs[(len(rs)-1)/2] + rs[len(rs)/2]) / 2
	if len(rs) == 1 {
		return median, fmt.Sprintf("%.2f", median)
	}
	return median, fmt.Sprintf("%.2f (%.2f–%.2f)", median, rs[0], rs[len(rs)-1])
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

func micros(d time.Duration) string { return fmt.Sprintf("%.0f µs", d.Seconds()*1e6) }

// rateOf prints times for n bytes as a rate.
func rateOf(n int64) func(time.Duration) string {
	return func(d time.Duration) string { return fmt.Sprintf("%.2f GB/s", float64(n)/d.Seconds()/1e9) }
}

// perGiB prints times for n bytes as times for each GiB.
func perGiB(n int64) func(time.Duration) string {
	return func(d time.Duration) string { return fmt.Sprintf("%.2f s/GiB", d.Seconds()*(1<<30)/float64(n)) }
}

func sizeOf(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.3g GiB", float64(n)/(1<<30))
	}
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// A target is the required figure of a row. The zero value is none.
type target struct {
	limit float64
	sign  string // "≤" or "≥"
	unit  string // with a space before it, as printed
}

func atMost(limit float64, unit string) target  { return target{limit, "≤", unit} }
func atLeast(limit float64, unit string) target { return target{limit, "≥", unit} }

// met reports whether a figure meets the target.
func (t target) met(figure float64) bool {
	if t.sign == "≥" {
		return figure >= t.limit
	}
	return figure <= t.limit
}

// A row is a line of the table.
type row struct {
	what    string
	value   string // of ballast
	control string // the value compared with
	ratio   string
	figure  float64 // compared with the target: the ratio, or the value in the unit of the target
	target  target
}

// result returns the text about the target.
func (r row) result() string {
	switch {
	case r.target == target{}:
		return ""
	case r.target.met(r.figure):
		return fmt.Sprintf("%s %g%s: met", r.target.sign, r.target.limit, r.target.unit)
	}
	return fmt.Sprintf("%s %g%s: **missed**", r.target.sign, r.target.limit, r.target.unit)
}

// compare adds a row with a value and its control, printed with a function, and the ratio of the times.
func (b *bench) compare(what string, ours series, control string, c series, print func(time.Duration) string, t target) {
	figure, text := ratio(ours, c)
	b.add(row{what, ours.spread(print), control + " " + c.spread(print), text, figure, t})
}

// times is compare with seconds.
func (b *bench) times(what string, ours series, control string, c series, t target) {
	b.compare(what, ours, control, c, seconds, t)
}

// rates is compare with rates in bytes a second: more is better.
func (b *bench) rates(what string, n int64, ours series, control string, c series, t target) {
	figure, text := ratio(c, ours)
	print := rateOf(n)
	b.add(row{what, ours.spread(print), control + " " + c.spread(print), text, figure, t})
}

// figure adds a row with a value in the unit of the target, and a remark.
func (b *bench) figure(what string, figure float64, format, beside string, t target) {
	b.add(row{what, fmt.Sprintf(format, figure), beside, "", figure, t})
}

// scopes describes how much the measurements of the run measure.
func (b *bench) scopes() string {
	of := func(name string) string {
		s := b.scopeOf(name)
		return fmt.Sprintf("a model of %s, %d rounds", sizeOf(s.size), s.rounds)
	}
	var head []string
	for _, name := range b.names {
		if of(name) == of(headline[0]) {
			head = append(head, name)
		}
	}
	switch len(head) {
	case 0:
		return of("")
	case len(b.names):
		return of(headline[0])
	}
	return fmt.Sprintf("%s: %s; the rest: %s", strings.Join(head, ", "), of(headline[0]), of(""))
}

// printTable writes rows in columns; the first row is the heading.
func printTable(w io.Writer, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 0, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(tw, "| "+strings.Join(cells, "\t | ")+"\t |") }
	line(rows[0])
	rule := make([]string, len(rows[0]))
	for i := range rule {
		width := 0
		for _, r := range rows {
			width = max(width, utf8.RuneCountInString(r[i]))
		}
		rule[i] = strings.Repeat("-", max(3, width))
	}
	line(rule)
	for _, r := range rows[1:] {
		line(r)
	}
	tw.Flush()
}
