package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// columns returns the width of the terminal that stdout is; 0 if it is none, or unknown.
func (a *app) columns() int {
	if a.width > 0 {
		return a.width
	}
	n, _, _ := terminalSize(a.stdout)
	return n
}

// table writes rows in aligned columns, the first of which is a header if it is in upper case. On a terminal that is
// too narrow for them, digests have twelve digits, commands and names get lines of their own, where they are whole, and
// texts are broken between words.
func (a *app) table(rows [][]string) error {
	for _, r := range rows {
		for i, cell := range r {
			r[i] = printable(cell)
		}
	}
	if n := a.columns(); n > 0 && !fits(rows, n) {
		_, err := io.WriteString(a.stdout, narrow(rows, n))
		return err
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		if _, err := io.WriteString(w, strings.Join(r, "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// prose writes a line, broken between words on a terminal that is too narrow for it. Lines after the first begin with
// indent.
func (a *app) prose(indent, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if n := a.columns(); n > 0 && cells(text) > n {
		text = strings.Join(wrap(text, n, indent), "\n")
	}
	fmt.Fprintln(a.stdout, text)
}

// between is what separates columns.
const between = "  "

// narrowest is the least width of a column of text that is broken, and ownLine that of names that get a line.
const (
	narrowest = 12
	ownLine   = 20
)

var (
	wholeDigest = regexp.MustCompile(`(^|\s)[a-z0-9]+:([0-9a-f]{12})[0-9a-f]{52}\b`)
	isHeader    = regexp.MustCompile(`^[A-Z][A-Z ]*$`)
)

// commandColumn is the header of columns of commands, which are to be copied.
const commandColumn = "ENDS WITH"

func fits(rows [][]string, columns int) bool { return total(widths(rows)) <= columns }

// widths returns the width of each column.
func widths(rows [][]string) (all []int) {
	for _, r := range rows {
		for i, cell := range r {
			if i == len(all) {
				all = append(all, 0)
			}
			all[i] = max(all[i], cells(cell))
		}
	}
	return all
}

// total returns the width of a table.
func total(widths []int) (n int) {
	for i, w := range widths {
		if n += w; i > 0 {
			n += len(between)
		}
	}
	return n
}

// narrow returns a table for a number of columns.
func narrow(rows [][]string, columns int) string {
	rows = slices.Clone(rows)
	for i, r := range rows {
		rows[i] = slices.Clone(r)
		for k, cell := range r {
			rows[i][k] = wholeDigest.ReplaceAllString(cell, "$1$2")
		}
	}
	before, after := make([][]string, len(rows)), make([][]string, len(rows))
	if len(rows) > 0 && len(rows[0]) > 0 && isHeader.MatchString(rows[0][0]) {
		if i := slices.Index(rows[0], commandColumn); i >= 0 && !fits(rows, columns) {
			after = take(rows, i)
			for n := range after {
				if after[n] = slices.DeleteFunc(after[n], func(s string) bool { return s == "" || n == 0 }); len(after[n]) > 0 {
					after[n][0] = strings.ToLower(commandColumn) + ": " + after[n][0]
				}
			}
		}
		for !fits(rows, columns-len(between)) {
			i := nameColumn(rows)
			if i < 0 {
				break
			}
			for n, names := range take(rows, i) {
				before[n] = append(before[n], names...)
			}
		}
	}
	indent := ""
	if len(before) > 0 && len(before[0]) > 0 {
		indent = between
	}
	lines, w := broken(rows, columns-len(indent))
	var b strings.Builder
	for n := range rows {
		for _, name := range before[n] {
			if name != "" {
				b.WriteString(name + "\n")
			}
		}
		for _, l := range lines[n] {
			text := indent
			for i, cell := range l {
				text += pad(cell, w[i]) + between
			}
			b.WriteString(strings.TrimRight(text, " ") + "\n")
		}
		for _, command := range after[n] {
			b.WriteString(indent + between + command + "\n")
		}
	}
	return b.String()
}

// take removes a column from rows, and returns its cells.
func take(rows [][]string, i int) [][]string {
	taken := make([][]string, len(rows))
	for n, r := range rows {
		if i < len(r) {
			taken[n] = []string{r[i]}
			rows[n] = slices.Delete(r, i, i+1)
		}
	}
	return taken
}

// nameColumn returns the widest column of words that is wide enough for a line of its own, or -1.
func nameColumn(rows [][]string) int {
	found, w := -1, widths(rows)
	for i := range w {
		spaces := slices.ContainsFunc(rows[1:], func(r []string) bool { return i < len(r) && strings.Contains(r[i], " ") && cells(r[i]) > ownLine })
		if !spaces && w[i] >= ownLine && (found < 0 || w[i] > w[found]) {
			found = i
		}
	}
	return found
}

// broken breaks the widest texts of rows between words until they fit. It returns the lines of each row, and the
// widths of the columns.
func broken(rows [][]string, columns int) (lines [][][]string, w []int) {
	w = widths(rows)
	tried := map[int]bool{}
	for total(w) > columns && len(tried) < len(w) {
		widest := -1
		for i := range w {
			if !tried[i] && (widest < 0 || w[i] > w[widest]) {
				widest = i
			}
		}
		tried[widest] = true
		limit, most := max(narrowest, w[widest]-(total(w)-columns)), 0
		for _, r := range rows {
			if widest < len(r) {
				for _, l := range wrap(r[widest], limit, "") {
					most = max(most, cells(l))
				}
			}
		}
		w[widest] = most
	}
	for _, r := range rows {
		var row [][]string
		for i, cell := range r {
			for n, l := range wrap(cell, w[i], "") {
				if n == len(row) {
					row = append(row, make([]string, len(r)))
				}
				row[n][i] = l
			}
		}
		lines = append(lines, row)
	}
	return lines, w
}

// wrap breaks a text between words into lines of at most n columns, unless a word is longer. Lines after the first
// begin with indent; spaces at the beginning stay.
func wrap(text string, n int, indent string) (lines []string) {
	if cells(text) <= n {
		return []string{text}
	}
	words := strings.Fields(text)
	line := text[:len(text)-len(strings.TrimLeft(text, " "))]
	empty := true
	for _, word := range words {
		if !empty && cells(line)+1+cells(word) > n {
			lines, line, empty = append(lines, line), indent, true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	return append(lines, line)
}
