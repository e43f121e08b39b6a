package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// A Part is a range of an input, in bytes from its start.
type Part struct {
	Input  int // index
	Offset int64
	Size   int64
}

// Merge returns the start of a file with all tensors of the inputs, given by their headers, up to
// its data, and the parts of the inputs that make up its data, in order. The caller leaves out
// duplicate inputs.
//
// Inputs whose data is a multiple of eight bytes come first, then those of four, two and one,
// otherwise in the given order: so tensors stay aligned to their elements, which some readers need.
//
// Metadata that all inputs have in common is unchanged. Metadata of only some inputs, such as the
// kind of quantisation, is recorded for each of their tensors, with its name and a dot before the
// key. Merge returns errdefs.ErrInvalidArgument if two tensors have the same name, or the file
// cannot be written.
func Merge(inputs []*Header) (start []byte, parts []Part, err error) {
	m := merger{metadata: map[string]string{}}
	for _, i := range order(inputs) {
		if err := m.add(i, inputs[i]); err != nil {
			return nil, nil, invalid(fmt.Errorf("input %d: %w", i, err))
		}
	}
	shared := common(inputs)
	for i, in := range inputs {
		if err := m.addMetadata(in, shared); err != nil {
			return nil, nil, invalid(fmt.Errorf("input %d: %w", i, err))
		}
	}
	for k, v := range shared {
		if err := m.set(k, v); err != nil {
			return nil, nil, invalid(err)
		}
	}
	start, err = Encode(&Header{Tensors: m.tensors, Metadata: m.metadata})
	return start, m.parts, err
}

// order returns the indexes of inputs in the order of their data.
func order(inputs []*Header) []int {
	list := make([]int, len(inputs))
	for i := range list {
		list[i] = i
	}
	alignment := func(i int) int { return min(bits.TrailingZeros64(uint64(inputs[i].DataSize)), 3) }
	slices.SortStableFunc(list, func(x, y int) int { return alignment(y) - alignment(x) })
	return list
}

type merger struct {
	tensors  []Tensor
	metadata map[string]string
	parts    []Part
	end      int64
	size     int // of all metadata
}

func (m *merger) add(i int, h *Header) error {
	if h.DataSize > math.MaxInt64-m.end {
		return errors.New("more than 2^63 bytes of tensors")
	}
	if len(m.tensors)+len(h.Tensors) > maxTensors {
		return fmt.Errorf("more than %d tensors", maxTensors)
	}
	for _, t := range h.Tensors {
		t.Offset += m.end
		m.tensors = append(m.tensors, t)
	}
	if h.DataSize > 0 {
		m.parts = append(m.parts, Part{Input: i, Offset: h.DataOffset, Size: h.DataSize})
	}
	m.end += h.DataSize
	return nil
}

// common returns the metadata that all inputs have.
func common(inputs []*Header) map[string]string {
	shared := map[string]string{}
	if len(inputs) == 0 {
		return shared
	}
	names := tensorNames(inputs[0])
	limit := longest(names)
	for k, v := range inputs[0].Metadata {
		if owner(k, names, limit) != "" {
			continue
		}
		if !slices.ContainsFunc(inputs, func(h *Header) bool {
			have, ok := h.Metadata[k]
			return !ok || have != v
		}) {
			shared[k] = v
		}
	}
	return shared
}

// addMetadata adds the metadata of an input that is not shared.
func (m *merger) addMetadata(h *Header, shared map[string]string) error {
	if len(h.Metadata) == 0 {
		return nil
	}
	names := tensorNames(h)
	limit := longest(names)
	var main []string // tensors except companions, such as the scale of a tensor
	for name := range names {
		if owner(name, names, limit) == "" {
			main = append(main, name)
		}
	}
	for k, v := range h.Metadata {
		if _, ok := shared[k]; ok {
			continue
		}
		if owner(k, names, limit) != "" {
			if err := m.set(k, v); err != nil {
				return err
			}
			continue
		}
		for _, name := range main {
			if err := m.set(name+"."+k, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func tensorNames(h *Header) map[string]bool {
	names := make(map[string]bool, len(h.Tensors))
	for _, t := range h.Tensors {
		names[t.Name] = true
	}
	return names
}

// longest returns the length of the longest name.
func longest(names map[string]bool) (n int) {
	for name := range names {
		n = max(n, len(name))
	}
	return n
}

// owner returns the tensor whose name, followed by a dot, is a prefix of s. Names have at most limit
// bytes: looking up a longer prefix at each dot of s would take a time quadratic in its length.
func owner(s string, names map[string]bool, limit int) string {
	for i := min(len(s)-1, limit); i > 0; i-- {
		if s[i] == '.' && names[s[:i]] {
			return s[:i]
		}
	}
	return ""
}

func (m *merger) set(k, v string) error {
	if have, ok := m.metadata[k]; ok && have != v {
		return fmt.Errorf("%s says two things of %.100q", metadataKey, k)
	}
	if m.size += len(k) + len(v); m.size > maxMetadata {
		return fmt.Errorf("%s of more than %d bytes", metadataKey, maxMetadata)
	}
	m.metadata[k] = v
	return nil
}

// An entry is the entry of a tensor in the JSON of a header.
type entry struct {
	DType   string    `json:"dtype"`
	Shape   []uint64  `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// Encode returns the start of a file, its length and header, up to its data. The header is sorted
// by name and padded with spaces to a multiple of eight bytes. It returns
// errdefs.ErrInvalidArgument if no reader would read it: the tensors must cover the data. Encode
// sorts h.Tensors by offset.
func Encode(h *Header) ([]byte, error) {
	if err := h.check(); err != nil {
		return nil, invalid(err)
	}
	entries := make(map[string]any, len(h.Tensors)+1)
	for _, t := range h.Tensors {
		if t.Name == metadataKey {
			return nil, invalid(fmt.Errorf("a tensor that is called %s", metadataKey))
		}
		if !utf8.ValidString(t.Name) {
			return nil, invalid(fmt.Errorf("tensor %.100q: not UTF-8", t.Name))
		}
		if _, ok := dtypes[t.DType]; !ok {
			return nil, invalid(fmt.Errorf("tensor %.100q: dtype %.50q is not one of safetensors", t.Name, t.DType))
		}
		entries[t.Name] = entry{t.DType, append([]uint64{}, t.Shape...), [2]uint64{uint64(t.Offset), uint64(t.Offset + t.Size)}}
	}
	if len(h.Metadata) > 0 {
		entries[metadataKey] = h.Metadata
	}
	p, err := json.Marshal(entries)
	if err != nil {
		return nil, invalid(err)
	}
	n := (len(p) + 7) / 8 * 8
	if n > MaxHeader {
		return nil, invalid(fmt.Errorf("%d bytes, more than %d", n, MaxHeader))
	}
	start := make([]byte, 0, lengthSize+n)
	start = binary.LittleEndian.AppendUint64(start, uint64(n))
	start = append(start, p...)
	for len(start) < lengthSize+n {
		start = append(start, ' ')
	}
	return start, nil
}
