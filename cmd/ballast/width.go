package main

import (
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// cells returns the width of a text in terminal columns.
func cells(s string) (n int) {
	for _, r := range s {
		n += cellsOf(r)
	}
	return n
}

// cellsOf returns the width of a character in columns: 0 if it combines with the character before.
func cellsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// head returns the longest beginning of s of at most n columns.
func head(s string, n int) string {
	for i, r := range s {
		if n -= cellsOf(r); n < 0 {
			return s[:i]
		}
	}
	return s
}

// tail returns the longest end of s of at most n columns.
func tail(s string, n int) string {
	left := cells(s)
	for i, r := range s {
		if left <= n {
			return s[i:]
		}
		left -= cellsOf(r)
	}
	return ""
}

// pad appends spaces to s up to a width of n columns.
func pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-cells(s))) }

// shard matches the number in the name of one of several files of a model.
var shard = regexp.MustCompile(`(\d+)-of-\d+`)

// shorten cuts the middle of a name wider than n columns, but keeps the number by which files of
// one model differ: model-00001…safetensors.
func shorten(name string, n int) string {
	if cells(name) <= n {
		return name
	}
	first := (n - 1) * 2 / 3
	last := n - 1 - first
	number := ""
	if m := shard.FindStringSubmatchIndex(name); m != nil {
		rest := n - 2 - (m[3] - m[2])
		if cells(name[:m[3]]) > first && rest >= 0 {
			first, last = rest/2, rest-rest/2
			number = name[m[2]:m[3]] + "…"
		}
	}
	return head(name, first) + "…" + number + tail(name, last)
}
