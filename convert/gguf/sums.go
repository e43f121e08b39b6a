package gguf

import (
	"math"
	"math/bits"

	"github.com/ballast-dev/ballast/convert"
)

// sums are the sums of the tensors read so far.
type sums struct {
	types    map[string]uint64 // bytes
	elements uint64
	overflow bool   // elements is unknown
	bytes    uint64 // of all tensors of known size
	end      uint64 // of the tensor that ends last
}

// add adds a tensor that starts at off. The zero type is an unknown one.
func (s *sums) add(shape []uint64, t tensorType, off uint64) error {
	s.types[t.name] += 0 // a type without bytes is listed too
	s.end = max(s.end, off)
	elements, ok := convert.Elements(shape)
	if !ok {
		s.overflow = true
		return nil
	}
	if t.name == "" {
		s.count(t.name, elements, 0)
		return nil
	}
	row := uint64(1)
	if len(shape) > 0 {
		row = shape[0]
	}
	if row%t.block != 0 {
		return invalid("tensor with rows of %d elements, %s has blocks of %d", row, t.name, t.block)
	}
	over, size := bits.Mul64(elements/t.block, t.size)
	if over != 0 || size > math.MaxInt64-off {
		return invalid("tensor of %d elements at offset %d", elements, off)
	}
	s.end = max(s.end, off+size)
	s.count(t.name, elements, size)
	if s.bytes += size; s.bytes > math.MaxInt64 {
		return invalid("tensors of more than %d bytes", int64(math.MaxInt64))
	}
	return nil
}

func (s *sums) count(name string, elements, size uint64) {
	sum, carry := bits.Add64(s.elements, elements, 0)
	if carry != 0 {
		s.overflow = true
		return
	}
	s.elements = sum
	s.types[name] += size // not more than s.bytes
}

// into sets the sums in a header.
func (s *sums) into(h *Header) {
	h.Types = s.types
	h.DataSize = int64(s.end)
	if !s.overflow {
		h.Parameters = s.elements
	}
}
