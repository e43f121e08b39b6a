package main

import (
	"encoding/binary"
	"fmt"
)

// A model is what the head of a GGUF file of version 3 says. https://github.com/ggml-org/ggml/blob/v0.9.4/docs/gguf.md
type model struct {
	texts   map[string]string // metadata that is text
	tensors []tensor
	data    uint64 // offset of the tensors
}

type tensor struct{ offset, size uint64 }

// blocks are the types of tensors that are read: values in a block, and its size in bytes.
var blocks = map[uint32]struct{ values, size uint64 }{0: {1, 4}, 1: {1, 2}, 8: {32, 34}} // F32, F16, Q8_0

// sizes of the types of metadata in bytes; text and lists have none.
var sizes = map[uint32]uint64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

const (
	typeUint32 = 4
	typeText   = 8
	typeList   = 9
)

// A reader reads little-endian values, and keeps the first error.
type reader struct {
	p   []byte
	at  uint64
	err error
}

func (r *reader) bytes(n uint64) []byte {
	if r.err == nil && n > uint64(len(r.p))-r.at {
		r.err = errShort
	}
	if r.err != nil {
		return nil
	}
	p := r.p[r.at:][:n]
	r.at += n
	return p
}

func (r *reader) uint32() uint32 {
	if p := r.bytes(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if p := r.bytes(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (r *reader) text() string { return string(r.bytes(r.uint64())) }

// value skips a value, and returns it if it is text or a number of 32 bits.
func (r *reader) value(kind uint32) (text string, number uint32) {
	switch kind {
	case typeText:
		return r.text(), 0
	case typeUint32:
		return "", r.uint32()
	case typeList:
		kind := r.uint32()
		for n := r.uint64(); n > 0 && r.err == nil; n-- {
			r.value(kind)
		}
		return "", 0
	}
	size, ok := sizes[kind]
	if !ok && r.err == nil {
		r.err = fmt.Errorf("metadata of type %d", kind)
	}
	r.bytes(size)
	return "", 0
}

// parse reads the head of a file, and checks that all tensors are in it.
func parse(p []byte) (*model, error) {
	r := &reader{p: p}
	if magic := r.bytes(4); string(magic) != "GGUF" || r.uint32() != 3 {
		return nil, fmt.Errorf("no GGUF file of version 3")
	}
	m := &model{texts: map[string]string{}}
	tensors, keys, align := r.uint64(), r.uint64(), uint64(32)
	for ; keys > 0 && r.err == nil; keys-- {
		key := r.text()
		text, number := r.value(r.uint32())
		if text != "" {
			m.texts[key] = text
		}
		if key == "general.alignment" {
			align = max(1, uint64(number))
		}
	}
	for ; tensors > 0 && r.err == nil; tensors-- {
		r.text()
		values := uint64(1)
		for n := r.uint32(); n > 0 && r.err == nil; n-- {
			values *= r.uint64()
		}
		kind := r.uint32()
		block, ok := blocks[kind]
		if !ok && r.err == nil {
			return nil, fmt.Errorf("a tensor of type %d", kind)
		}
		m.tensors = append(m.tensors, tensor{offset: r.uint64(), size: values / max(1, block.values) * block.size})
	}
	if r.err != nil {
		return nil, r.err
	}
	m.data = (r.at + align - 1) / align * align
	for _, t := range m.tensors {
		if t.offset+t.size > uint64(len(p))-m.data {
			return nil, errShort
		}
	}
	return m, nil
}
