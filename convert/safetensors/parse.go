package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// parse parses the JSON of a header.
func parse(p []byte) (*Header, error) {
	if !utf8.Valid(p) {
		return nil, errors.New("not UTF-8")
	}
	if !json.Valid(p) {
		return nil, errors.New("not JSON")
	}
	c := &cursor{p: p}
	h := &Header{}
	if n := bytes.Count(p, []byte(`"data_offsets"`)); n > 0 {
		h.Tensors = make([]Tensor, 0, min(n, maxTensors))
	}
	metadata := false
	err := c.object("the header", func(key string) error {
		if key == metadataKey {
			if metadata {
				return fmt.Errorf("%s twice", metadataKey)
			}
			metadata = true
			var err error
			h.Metadata, err = parseMetadata(c)
			return err
		}
		if len(h.Tensors) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		t, err := parseTensor(c, key)
		if err != nil {
			return fmt.Errorf("tensor %.100q: %w", key, err)
		}
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	return h, nil
}

func parseMetadata(c *cursor) (map[string]string, error) {
	if c.peek() == 'n' { // null
		c.skip()
		return nil, nil
	}
	m := map[string]string{}
	size := 0
	err := c.object(metadataKey, func(key string) error {
		if _, ok := m[key]; ok {
			return fmt.Errorf("%s: %.100q twice", metadataKey, key)
		}
		v, err := c.text(metadataKey)
		if err != nil {
			return err
		}
		if size += len(key) + len(v); size > maxMetadata {
			return fmt.Errorf("%s of more than %d bytes", metadataKey, maxMetadata)
		}
		m[key] = v
		return nil
	})
	return m, err
}

func parseTensor(c *cursor, name string) (Tensor, error) {
	t := Tensor{Name: name}
	if len(name) > maxName {
		return t, fmt.Errorf("name of %d bytes", len(name))
	}
	var dtype, shape, offsets bool
	err := c.object("its entry", func(key string) (err error) {
		seen := new(bool)
		switch key {
		case "dtype":
			seen = &dtype
			if t.DType, err = c.text(key); len(t.DType) > maxDType {
				return fmt.Errorf("dtype of %d bytes", len(t.DType))
			}
		case "shape":
			seen = &shape
			t.Shape, err = c.numbers([]uint64{}, key, maxRank)
		case "data_offsets":
			seen = &offsets
			t.Offset, t.Size, err = parseOffsets(c, key)
		default:
			c.skip()
		}
		if *seen {
			return fmt.Errorf("%s twice", key)
		}
		*seen = true
		return err
	})
	if err == nil && (!dtype || !shape || !offsets) {
		err = errors.New("dtype, shape or data_offsets missing")
	}
	return t, err
}

func parseOffsets(c *cursor, key string) (off, size int64, err error) {
	var both [2]uint64
	n, err := c.numbers(both[:0], key, 2)
	if err != nil {
		return 0, 0, err
	}
	if len(n) != 2 || n[0] > n[1] || n[1] > math.MaxInt64 {
		return 0, 0, fmt.Errorf("data_offsets %d", n)
	}
	return int64(n[0]), int64(n[1] - n[0]), nil
}

// A cursor walks through valid JSON. Unlike encoding/json, it takes no memory for values that are
// not requested, and detects duplicate keys.
type cursor struct {
	p  []byte
	at int
}

// peek returns the first byte of the next token.
func (c *cursor) peek() byte {
	for {
		switch b := c.p[c.at]; b {
		case ' ', '\t', '\n', '\r':
			c.at++
		default:
			return b
		}
	}
}

// next reports whether the next byte is b, and skips it if so.
func (c *cursor) next(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.at++
	return true
}

// object calls each for the keys of an object. each must read the value.
func (c *cursor) object(what string, each func(key string) error) error {
	if !c.next('{') {
		return fmt.Errorf("%s is not an object", what)
	}
	for !c.next('}') {
		c.next(',')
		key, err := c.text("key")
		if err != nil {
			return err
		}
		c.next(':')
		if err := each(key); err != nil {
			return err
		}
	}
	return nil
}

// text reads a string.
func (c *cursor) text(what string) (string, error) {
	if c.peek() != '"' {
		return "", fmt.Errorf("%s is not a string", what)
	}
	start := c.at
	escaped := c.skipText()
	raw := c.p[start:c.at]
	if !escaped {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return s, nil
}

// skipText skips a string and reports whether it has an escaped character.
func (c *cursor) skipText() (escaped bool) {
	for c.at++; c.p[c.at] != '"'; c.at++ {
		if c.p[c.at] == '\\' {
			escaped = true
			c.at++
		}
	}
	c.at++
	return escaped
}

// numbers reads a list of at most limit non-negative whole numbers, and appends it.
func (c *cursor) numbers(list []uint64, what string, limit int) ([]uint64, error) {
	if !c.next('[') {
		return nil, fmt.Errorf("%s is not a list", what)
	}
	for !c.next(']') {
		c.next(',')
		c.peek()
		start := c.at
		c.skip()
		n, err := strconv.ParseUint(string(c.p[start:c.at]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %.30q is not a whole number below 2^64", what, c.p[start:c.at])
		}
		if len(list) == limit {
			return nil, fmt.Errorf("%s with more than %d numbers", what, limit)
		}
		list = append(list, n)
	}
	return list, nil
}

// skip skips a value.
func (c *cursor) skip() {
	depth := 0
	for {
		switch c.peek() {
		case '"':
			c.skipText()
		case '{', '[':
			depth++
			c.at++
		case '}', ']':
			depth--
			c.at++
		case ',', ':':
			c.at++
		default:
			c.skipWord()
		}
		if depth == 0 {
			return
		}
	}
}

// skipWord skips a number or a literal.
func (c *cursor) skipWord() {
	for c.at < len(c.p) {
		switch c.p[c.at] {
		case ',', ':', '}', ']', ' ', '\t', '\n', '\r':
			return
		}
		c.at++
	}
}
