// Package contentrange parses Content-Range, by which a server says which part of a file it sends.
package contentrange

import (
	"strconv"
	"strings"
)

// A Range is a part of a file.
type Range struct {
	First, Last int64 // the first and the last byte, from 0
	Size        int64 // of the whole file in bytes, -1 if the server does not tell
}

// Parse parses a header such as "bytes 0-9/100" or "bytes 0-9/*". ok is false for anything else:
// another unit, a range that is not satisfied, one that ends before it starts or after the file.
// https://www.rfc-editor.org/rfc/rfc9110#name-content-range
func Parse(header string) (r Range, ok bool) {
	rest, isBytes := strings.CutPrefix(header, "bytes ")
	span, all, hasSize := strings.Cut(rest, "/")
	from, to, hasSpan := strings.Cut(span, "-")
	if !isBytes || !hasSize || !hasSpan {
		return Range{}, false
	}
	var okFirst, okLast, okSize bool
	r.First, okFirst = number(from)
	r.Last, okLast = number(to)
	r.Size, okSize = -1, true
	if all != "*" {
		r.Size, okSize = number(all)
	}
	if !okFirst || !okLast || !okSize || r.First > r.Last || r.Size >= 0 && r.Last >= r.Size {
		return Range{}, false
	}
	return r, true
}

// number parses digits only.
func number(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}
