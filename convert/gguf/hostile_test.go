package gguf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// le writes values of fixed size, little endian, and strings without a length.
func le(values ...any) []byte {
	var p []byte
	for _, v := range values {
		switch v := v.(type) {
		case string:
			p = append(p, v...)
		case []byte:
			p = append(p, v...)
		default:
			var err error
			if p, err = binary.Append(p, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
	return p
}

const u64max = ^uint64(0)

// file returns the start of a file of version 3 with numbers of tensors and keys.
func file(tensors, keys uint64, rest ...any) []byte {
	return append(le("GGUF", uint32(3), tensors, keys), le(rest...)...)
}

// name returns a text with its length.
func name(s string) []byte { return le(uint64(len(s)), s) }

// tensor returns a tensor with its shape.
func tensor(kind uint32, off uint64, shape ...uint64) []byte {
	return le(name("t"), uint32(len(shape)), shape, kind, off)
}

// nested returns a key with arrays in arrays.
func nested(depth int) []byte {
	p := le(name("k"), uint32(valueArray))
	for range depth - 1 {
		p = append(p, le(uint32(valueArray), uint64(1))...)
	}
	return append(p, le(uint32(valueU8), uint64(1), uint8(7))...)
}

func aligned(p []byte) []byte { return append(p, make([]byte, (32-len(p)%32)%32)...) }

// zeros returns n bytes of zeros.
func zeros(n int) []byte { return make([]byte, n) }

var hostile = []struct {
	name string
	file []byte
	want string // in the error
}{
	{"empty", nil, "unexpected EOF"},
	{"another magic", le("GGML", uint32(1)), `starts with "GGML"`},
	{"magic of big endian files written the other way round", le("FUGG", uint32(3)), `starts with "FUGG"`},
	{"version 0", le("GGUF", uint32(0), zeros(64)), "version 0"},
	{"version 4", le("GGUF", uint32(4), zeros(64)), "version 4"},
	{"version 2 byte-swapped", le("GGUF", uint32(2<<24), zeros(64)), "version 33554432"},
	{"version 1 byte-swapped", le("GGUF", uint32(1<<24), zeros(64)), "version 16777216"},
	{"2^64-1 keys", file(0, u64max, zeros(64)), "18446744073709551615 keys"},
	{"2^64-1 tensors", file(u64max, 0, zeros(64)), "18446744073709551615 tensors"},
	{"65,537 keys", file(0, maxKeys+1, zeros(4<<20)), "65537 keys"},
	{"1,000,001 tensors", file(maxTensors+1, 0, zeros(32<<20)), "1000001 tensors"},
	{"more keys than the file can have", file(0, 5, zeros(5*13-1)), "5 keys"},
	{"more tensors than the file can have", file(5, 0, zeros(5*24-1)), "5 tensors"},
	{"key of 2^63 bytes", file(0, 1, uint64(1<<63), zeros(64)), "key of 9223372036854775808 bytes"},
	{"key of 65,536 bytes", file(0, 1, uint64(maxKey+1), zeros(1<<20)), "key of 65536 bytes"},
	{"text of 2^63 bytes", file(0, 1, name("k"), uint32(valueString), uint64(1<<63), zeros(64)), "goes on after"},
	{"text of 2^64-1 bytes", file(0, 1, name("k"), uint32(valueString), u64max, zeros(64)), "goes on after"},
	{"text that is kept of 2^64-1 bytes", file(0, 1, name("general.name"), uint32(valueString), u64max, zeros(64)), "goes on after"},
	{"text beyond the end", file(0, 1, name("general.name"), uint32(valueString), uint64(65), zeros(64)), "goes on after"},
	{"value of type 13", file(0, 1, name("k"), uint32(13), zeros(64)), "value of type 13"},
	{"value of type 2^32-1", file(0, 1, name("k"), ^uint32(0), zeros(64)), "value of type 4294967295"},
	{"array of type 13", file(0, 1, name("k"), uint32(valueArray), uint32(13), uint64(0), zeros(64)), "values of type 13"},
	{"array of 2^61 values of 8 bytes", file(0, 1, name("k"), uint32(valueArray), uint32(valueU64), uint64(1<<61), zeros(64)), "array of 2305843009213693952 values"},
	{"array of 2^64-1 bytes", file(0, 1, name("k"), uint32(valueArray), uint32(valueU8), u64max, zeros(64)), "array of 18446744073709551615 values"},
	{"array of 2^64-1 texts", file(0, 1, name("k"), uint32(valueArray), uint32(valueString), u64max, zeros(64)), "array of 18446744073709551615 values"},
	{"array of 2^64-1 arrays", file(0, 1, name("k"), uint32(valueArray), uint32(valueArray), u64max, zeros(64)), "array of 18446744073709551615 values"},
	{"arrays nested 5 deep", file(0, 1, nested(5), zeros(64)), "nested deeper than 4"},
	{"arrays nested 10,000 deep", file(0, 1, nested(10_000), zeros(64)), "nested deeper than 4"},
	{"alignment 0", file(0, 1, name("general.alignment"), uint32(valueU32), uint32(0), zeros(64)), "alignment 0"},
	{"alignment 1", file(0, 1, name("general.alignment"), uint32(valueU32), uint32(1), zeros(64)), "alignment 1"},
	{"alignment 3", file(0, 1, name("general.alignment"), uint32(valueU32), uint32(3), zeros(64)), "alignment 3"},
	{"alignment 2^32-1", file(0, 1, name("general.alignment"), uint32(valueU32), ^uint32(0), zeros(64)), "alignment 4294967295"},
	{"alignment 128 KiB", file(0, 1, name("general.alignment"), uint32(valueU32), uint32(2*maxAlignment), zeros(64)), "alignment 131072"},
	{"tensor name of 2^64-1 bytes", file(1, 0, u64max, zeros(64)), "tensor name of"},
	{"5 dimensions", file(1, 0, tensor(0, 0, 1, 1, 1, 1, 1), zeros(64)), "5 dimensions"},
	{"2^32-1 dimensions", file(1, 0, name("t"), ^uint32(0), zeros(64)), "4294967295 dimensions"},
	{"offset that is not aligned", aligned(file(1, 0, tensor(0, 16, 1), zeros(64))), "offset 16, the alignment is 32"},
	{"offset of 2^64-32", file(1, 0, tensor(0, u64max-31, 1), zeros(64)), "offset 18446744073709551584"},
	{"offset of 2^63-32", file(1, 0, tensor(0, 1<<63-32, 8), zeros(64)), "at offset 9223372036854775776"},
	{"offset of 2^63-64 beyond the end", file(1, 0, tensor(0, 1<<63-64, 1), zeros(64)), "tensors"},
	{"data beyond the end", append(aligned(file(1, 0, tensor(0, 0, 9))), zeros(35)...), "tensors end at 100, the file at 99"},
	{"offset of a type that is not known beyond the end", append(aligned(file(1, 0, tensor(99, 64, 9))), zeros(32)...), "tensors end at 128, the file at 96"},
	{"two tensors in one place", append(aligned(file(2, 0, tensor(0, 0, 8), tensor(0, 0, 8))), zeros(32)...), "tensors of 64 bytes in 32"},
	{"size of 2^64 bytes", file(1, 0, tensor(28, 0, 1<<61), zeros(64)), "tensor of 2305843009213693952 elements"},
	{"rows that are no blocks", append(aligned(file(1, 0, tensor(12, 0, 255, 256))), zeros(1<<20)...), "rows of 255 elements, Q4_K has blocks of 256"},
	{"rows that are no blocks, none of them", append(aligned(file(1, 0, tensor(12, 0))), zeros(1<<20)...), "rows of 1 elements, Q4_K has blocks of 256"},
}

func TestHostileHeaderIsInvalid(t *testing.T) {
	t.Parallel()
	for _, tt := range hostile {
		h, err := read(tt.file)
		if err == nil || h != nil {
			t.Errorf("%s: got %+v, %v", tt.name, h, err)
			continue
		}
		if !errdefs.IsInvalidArgument(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %v, want %v", tt.name, err, errdefs.ErrInvalidArgument)
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %q, want %q in it", tt.name, err, tt.want)
		}
	}
}

func TestHeaderSizeLimit(t *testing.T) {
	t.Parallel()
	p := converttest.GGUF(converttest.SmallGGUF())
	if _, err := sniff(bytes.NewReader(p), Options{Size: 200}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v, want %v", err, errdefs.ErrInvalidArgument)
	}
	// Arrays that together need more than MaxHeader, but none of them alone.
	rest := le(name("a"), uint32(valueArray), uint32(valueU8), uint64(MaxHeader-1000))
	r := io.MultiReader(bytes.NewReader(file(0, 2, rest)), io.LimitReader(zeroReader{}, MaxHeader-1000), bytes.NewReader(rest))
	if _, err := sniff(r, Options{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("array of %d values", MaxHeader-1000)) {
		t.Errorf("got %v", err)
	}
}

// zeroReader reads zeros without end.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestUnusualHeaderIsValid(t *testing.T) {
	t.Parallel()
	data := zeros(1 << 20)
	for _, tt := range []struct {
		name string
		file []byte
		want Header
	}{
		{"nothing in it", file(0, 0), Header{}},
		{"arrays nested 4 deep", file(0, 1, nested(4)), Header{}},
		{"empty arrays", file(0, 1, name("k"), uint32(valueArray), uint32(valueArray), uint64(2),
			uint32(valueString), uint64(0), uint32(valueF64), uint64(0)), Header{}},
		{"tensor without dimensions is one number", append(aligned(file(1, 0, tensor(0, 0))), data...),
			Header{Tensors: 1, Parameters: 1, DataSize: 4, Types: map[string]uint64{"F32": 4}}},
		{"tensor of no elements", append(aligned(file(1, 0, tensor(12, 0, 0, 5))), data...),
			Header{Tensors: 1, Types: map[string]uint64{"Q4_K": 0}}},
		{"type that was removed", append(aligned(file(2, 0, tensor(4, 0, 7), tensor(1<<31, 0, 3))), data...),
			Header{Tensors: 2, Parameters: 10, Types: map[string]uint64{"": 0}}},
		{"shape that overflows", append(aligned(file(2, 0, tensor(0, 0, 1<<32, 1<<32), tensor(0, 0, 4))), data...),
			Header{Tensors: 2, DataSize: 16, Types: map[string]uint64{"F32": 16}}},
		{"sum that overflows", append(aligned(file(2, 0, tensor(99, 0, 1<<63), tensor(99, 0, 1<<63))), data...),
			Header{Tensors: 2, Types: map[string]uint64{"": 0}}},
		{"alignment of another type", file(0, 1, name("general.alignment"), uint32(valueF32), float32(1)), Header{}},
	} {
		got, err := read(tt.file)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if tt.want.Types == nil {
			tt.want.Types = map[string]uint64{}
		}
		tt.want.Version, tt.want.Alignment, tt.want.DataOffset = 3, 32, got.DataOffset
		if diff := cmp.Diff(&tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// vocabulary returns a header of the maximal size, nearly all of it empty texts: the maximal work
// and the most bytes to drop.
func vocabulary() []byte {
	n := uint64(MaxHeader-200) / 8
	return slices.Concat(file(0, 2, name("general.languages"), uint32(valueArray), uint32(valueString), n),
		zeros(int(n)*8), le(name("general.name"), uint32(valueString), name("end")))
}

// keys is a header with as many keys as it can have, as long as they can be, in values that are kept.
func manyKeys() []byte {
	p := file(0, maxKeys)
	for i := range maxKeys {
		p = append(p, le(name(fmt.Sprintf("%0230d.context_length", i)), uint32(valueU64), u64max)...)
	}
	return p
}

func TestHostileHeaderMemory(t *testing.T) {
	manyTensors := file(maxTensors, 0)
	for i := range uint32(maxTensors) {
		manyTensors = append(manyTensors, tensor(1000+i, 0, 1)...)
	}
	for _, tt := range []struct {
		name string
		file []byte
	}{
		{"64 MiB of empty texts", vocabulary()},
		{"64 MiB of text that is not kept", slices.Concat(file(0, 1, name("k"), uint32(valueString), uint64(MaxHeader-64)), zeros(MaxHeader-64))},
		{"65,536 keys of architectures", manyKeys()},
		{"1,000,000 tensors", manyTensors},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := sniff(bytes.NewReader(tt.file), Options{})
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("%s: %d bytes of memory for a header of %d", tt.name, got, h.DataOffset)
		}
	}
}

func BenchmarkReadHostile(b *testing.B) {
	p := vocabulary()
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sniff(bytes.NewReader(p), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, tt := range hostile {
		if len(tt.file) < 1<<16 {
			f.Add(tt.file, uint16(7))
		}
	}
	for _, version := range []uint32{1, 2, 3} {
		small := converttest.SmallGGUF()
		small.Version = version
		f.Add(converttest.GGUF(small)[:1500], uint16(1000))
		small.BigEndian = version == 3
		f.Add(converttest.GGUF(small), uint16(13))
	}
	f.Fuzz(func(t *testing.T, p []byte, cut uint16) {
		whole, wholeErr := sniff(bytes.NewReader(p), Options{})
		s := NewSniffer(Options{})
		n := min(int(cut), len(p))
		for i := range n {
			s.Write(p[i : i+1])
		}
		s.Write(p[n:])
		pieces, err := s.Header()
		if fmt.Sprint(err) != fmt.Sprint(wholeErr) {
			t.Fatalf("got %v in pieces, %v at once", err, wholeErr)
		}
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Fatalf("in pieces, and at once:\n%s", diff)
		}
		sized, err := read(p)
		if wholeErr != nil && err == nil {
			t.Fatalf("valid with a size, but %v without one", wholeErr)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(whole, sized); diff != "" {
			t.Fatalf("with a size, and without:\n%s", diff)
		}
		if end := sized.DataOffset + sized.DataSize; sized.Tensors > 0 && end > int64(len(p)) || sized.DataOffset-sized.Alignment >= int64(len(p)) {
			t.Fatalf("data up to %d in %d bytes", end, len(p))
		}
		Describe(sized)
	})
}
