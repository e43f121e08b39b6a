package gguf

import (
	"math"
	"math/bits"
	"slices"
)

// sums are the sums of the tensors read so far.
type sums struct {
	types    map[string]*TypeUse
	elements uint64
	overflow bool   // elements is unknown
	bytes    uint64 // of all tensors of known size
	end      uint64 // of the tensor that ends last
}

// add adds a tensor that starts at off. The zero type is an unknown one.
func (s *sums) add(shape []uint64, t tensorType, off uint64) error {
	use := s.types[t.name]
	if use == nil {
		use = &TypeUse{Type: t.name}
		s.types[t.name] = use
	}
	s.end = max(s.end, off)
	elements, ok := product(shape)
	if !ok {
		s.overflow = true
		return nil
	}
	if t.name == "" {
		s.count(use, elements, 0)
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
	s.count(use, elements, size)
	if s.bytes += size; s.bytes > math.MaxInt64 {
		return invalid("tensors of more than %d bytes", int64(math.MaxInt64))
	}
	return nil
}

func (s *sums) count(use *TypeUse, elements, size uint64) {
	sum, carry := bits.Add64(s.elements, elements, 0)
	if carry != 0 {
		s.overflow = true
		return
	}
	s.elements = sum
	use.Elements += elements // not more than s.elements
	use.Bytes += size        // not more than s.bytes
}

// into sets the sums in a header.
func (s *sums) into(h *Header) {
	for _, use := range s.types {
		h.Types = append(h.Types, *use)
	}
	slices.SortFunc(h.Types, compareUse)
	h.DataSize = int64(s.end)
	if !s.overflow {
		h.Parameters = s.elements
	}
}

// product returns the number of elements of a tensor, and whether it is valid.
func product(shape []uint64) (uint64, bool) {
	n := uint64(1)
	for _, dim := range shape {
		over, low := bits.Mul64(n, dim)
		if over != 0 {
			return 0, false
		}
		n = low
	}
	return n, true
}
