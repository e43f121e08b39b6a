package converttest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// safetensorsEntry is a tensor in a header.
type safetensorsEntry struct {
	DType   string   `json:"dtype"`
	Shape   []uint64 `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// SafetensorsWith makes a safetensors file with the given header and data.
func SafetensorsWith(header, data []byte) []byte {
	header = append(bytes.Clone(header), bytes.Repeat([]byte(" "), -len(header)&7)...)
	p := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(p, header...), data...)
}

// ReadSafetensors reads a safetensors file, and is as strict as the reference. It shares
// nothing with the code that it tests.
func ReadSafetensors(p []byte) (map[string]SafeTensor, map[string]string, error) {
	if len(p) < 8 {
		return nil, nil, errors.New("too short")
	}
	n := binary.LittleEndian.Uint64(p)
	if n > 100_000_000 || n > uint64(len(p)-8) {
		return nil, nil, fmt.Errorf("header of %d bytes", n)
	}
	if n%8 != 0 || p[8] != '{' {
		return nil, nil, errors.New("header is not aligned")
	}
	data := p[8+n:]
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(p[8:8+n], &fields); err != nil {
		return nil, nil, err
	}
	var metadata map[string]string
	if raw, ok := fields["__metadata__"]; ok {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return nil, nil, err
		}
		delete(fields, "__metadata__")
	}
	tensors := map[string]SafeTensor{}
	var ranges [][2]int64
	for name, raw := range fields {
		var e safetensorsEntry
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return nil, nil, fmt.Errorf("%q: %w", name, err)
		}
		begin, end := e.Offsets[0], e.Offsets[1]
		if begin < 0 || end < begin || end > int64(len(data)) || e.Shape == nil {
			return nil, nil, fmt.Errorf("%q: bytes %d to %d of %d", name, begin, end, len(data))
		}
		ranges = append(ranges, e.Offsets)
		tensors[name] = SafeTensor{name, e.DType, e.Shape, data[begin:end]}
	}
	slices.SortFunc(ranges, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	var at int64
	for _, r := range ranges {
		if r[0] != at {
			return nil, nil, fmt.Errorf("bytes %d to %d do not follow %d", r[0], r[1], at)
		}
		at = r[1]
	}
	if at != int64(len(data)) {
		return nil, nil, fmt.Errorf("tensors have %d bytes of %d", at, len(data))
	}
	return tensors, metadata, nil
}
