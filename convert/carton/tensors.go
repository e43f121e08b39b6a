package carton

import (
	"fmt"
	"math"

	"github.com/ballast-dev/ballast/store/filetable"
)

// Limits of what is read of the tensors.
const (
	// MaxIndexSize is the largest tensor_data/index.toml read, in bytes.
	MaxIndexSize = 2 << 20 // 2 MiB

	// maxText is the largest string tensor whose content is checked, and maxTexts how much is
	// read of all of them, in bytes.
	maxText  = 1 << 20
	maxTexts = 8 << 20
)

// A tensor is an entry of the index.
type tensor struct {
	name   string
	dtype  string // as Spec.DType, or "nested"
	values int64  // the product of the shape
	file   string // path in the carton
	inner  []string
}

const nested = "nested"

// parseIndex parses tensor_data/index.toml. files are those of MANIFEST.
func parseIndex(p []byte, files map[string]int) (map[string]*tensor, error) {
	t, err := parseTable(nameIndex, p, MaxIndexSize)
	if err != nil {
		return nil, err
	}
	all := map[string]*tensor{}
	for _, t := range t.tables("tensor") {
		x := &tensor{name: t.text("name", true), dtype: t.text("dtype", true)}
		if all[x.name] != nil {
			t.fail("name", "%.100q is there twice", x.name)
		}
		all[x.name] = x
		if _, ok := widths[x.dtype]; !ok && x.dtype != nested {
			t.fail("dtype", "unknown type %.100q", x.dtype)
		}
		if x.dtype == nested {
			x.inner = t.texts("inner", true)
			continue
		}
		if len(t.texts("inner", false)) > 0 {
			t.fail("inner", "is for nested tensors only")
		}
		x.values = product(t)
		name := t.text("file", true)
		clean, err := filetable.CleanPath(name)
		if err != nil || clean != name {
			t.fail("file", "%.200q is no clean path", name)
		}
		x.file = dirTensors + name
		if _, ok := files[x.file]; !ok {
			t.fail("file", "no such file %.200q", x.file)
		}
	}
	for _, x := range all {
		for _, name := range x.inner {
			switch in := all[name]; {
			case in == nil:
				t.fail("tensor", "%.100q has an inner tensor %.100q that is not there", x.name, name)
			case in.dtype == nested:
				t.fail("tensor", "%.100q has an inner tensor %.100q that is nested itself", x.name, name)
			}
		}
	}
	return all, *t.err
}

// product returns the number of values of a shape.
func product(t table) int64 {
	n := int64(1)
	zero := false
	for i, v := range get[[]any](t, "shape", true) {
		d, ok := v.(int64)
		if !ok || d < 0 {
			t.fail("shape", "dimension %d is no size", i)
			return 0
		}
		if d == 0 {
			zero = true
			continue
		}
		if n > math.MaxInt64/8/d {
			t.fail("shape", "has more than 2^60 values")
			return 0
		}
		n *= d
	}
	if zero {
		return 0
	}
	return n
}

// checkSize checks the size in bytes of the file of a tensor.
func (x *tensor) checkSize(size int64) error {
	if w := widths[x.dtype]; w > 0 && size != x.values*w {
		return invalid("tensor %.100q: %q has %d bytes, its shape has %d", x.name, x.file, size, x.values*w)
	}
	return nil
}

// checkText checks the content of the file of a string tensor.
func (x *tensor) checkText(p []byte) error {
	t, err := parseTable(x.file, p, maxText)
	if err != nil {
		return err
	}
	n := len(t.texts("data", true))
	if *t.err == nil && int64(n) != x.values {
		return invalid("tensor %.100q: %q has %d values, its shape has %d", x.name, x.file, n, x.values)
	}
	if *t.err != nil {
		return fmt.Errorf("tensor %.100q: %w", x.name, *t.err)
	}
	return nil
}
