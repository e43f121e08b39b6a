package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// input returns a file and its header.
func input(t testing.TB, metadata map[string]string, tensors ...converttest.SafeTensor) ([]byte, *Header) {
	t.Helper()
	p := converttest.Safetensors(tensors, metadata)
	h, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	return p, h
}

// random returns a tensor of n elements of random bytes.
func random(r *rand.Rand, name, dtype string, n uint64) converttest.SafeTensor {
	data := make([]byte, n*dtypes[dtype]/8)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return converttest.SafeTensor{Name: name, DType: dtype, Shape: []uint64{n}, Data: data}
}

// assemble returns the file that Merge describes.
func assemble(files [][]byte, start []byte, parts []Part) []byte {
	p := slices.Clone(start)
	for _, part := range parts {
		p = append(p, files[part.Input][part.Offset:part.Offset+part.Size]...)
	}
	return p
}

func TestMergedFileHasAllTensors(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	names := []string{"BF16", "F32", "U8", "F64", "BOOL"}
	var files [][]byte
	var inputs []*Header
	want := map[string]converttest.SafeTensor{}
	for i := range 1209 {
		var tensors []converttest.SafeTensor
		for j := range 1 + i%3 {
			x := random(r, fmt.Sprintf("model.layers.%d.<%d>", i, j), names[i%5], r.Uint64N(9))
			tensors = append(tensors, x)
			want[x.Name] = x
		}
		p, in := input(t, nil, tensors...)
		files, inputs = append(files, p), append(inputs, in)
	}
	start, parts, err := Merge(inputs)
	if err != nil {
		t.Fatal(err)
	}
	p := assemble(files, start, parts)
	spans, ok := oracle(p)
	if !ok {
		t.Fatal("the oracle does not read the merged file")
	}
	if got, want := len(spans), len(want); got != want {
		t.Fatalf("got %d tensors, want %d", got, want)
	}
	h, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range h.Tensors {
		w := want[x.Name]
		at := spans[x.Name]
		if !bytes.Equal(p[h.DataOffset:][at[0]:at[1]], w.Data) || x.DType != w.DType || !slices.Equal(x.Shape, w.Shape) {
			t.Errorf("%s: another tensor", x.Name)
		}
		if width := int64(dtypes[x.DType] / 8); (h.DataOffset+x.Offset)%width != 0 && x.Size > 0 {
			t.Errorf("%s: %s at %d", x.Name, x.DType, h.DataOffset+x.Offset)
		}
	}
	if len(start)%8 != 0 || h.DataOffset != int64(len(start)) {
		t.Errorf("data at %d, the header has %d bytes", h.DataOffset, len(start))
	}
	again, _, err := Merge(inputs)
	if err != nil || !bytes.Equal(start, again) {
		t.Errorf("another header the second time, %v", err)
	}
}

func TestMergePartsAreOrderedByAlignment(t *testing.T) {
	t.Parallel()
	byteTensor := func(name string, b byte) converttest.SafeTensor {
		return converttest.SafeTensor{Name: name, DType: "U8", Shape: []uint64{1}, Data: []byte{b}}
	}
	f0, h0 := input(t, map[string]string{"a.weight.quant_type": "int4"}, byteTensor("a.weight", 7))
	f1, h1 := input(t, map[string]string{"b.weight.quant_type": "int4"}, byteTensor("b.weight", 8))
	// The blob has only the bytes of a tensor.
	raw := &Header{Tensors: []Tensor{{Name: "c", DType: "I8", Shape: []uint64{2}, Size: 2}}, DataSize: 2}
	start, parts, err := Merge([]*Header{h0, h1, raw})
	if err != nil {
		t.Fatal(err)
	}
	wantParts := []Part{{2, 0, 2}, {0, h0.DataOffset, 1}, {1, h1.DataOffset, 1}}
	if diff := cmp.Diff(wantParts, parts); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
	got, err := read(assemble([][]byte{f0, f1, []byte("xy")}, start, parts))
	if err != nil {
		t.Fatal(err)
	}
	want := &Header{
		Tensors:    []Tensor{{"c", "I8", []uint64{2}, 0, 2}, {"a.weight", "U8", []uint64{1}, 2, 1}, {"b.weight", "U8", []uint64{1}, 3, 1}},
		Metadata:   map[string]string{"a.weight.quant_type": "int4", "b.weight.quant_type": "int4"},
		DataOffset: int64(len(start)), DataSize: 4,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMergeMetadata(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 6))
	_, quantised := input(t, map[string]string{"format": "mlx", "quant_type": "nvfp4", "group_size": "16"},
		random(r, "a", "U32", 4), random(r, "a.scale", "U8", 2), random(r, "a.bias", "BF16", 1))
	_, packed := input(t, map[string]string{"format": "mlx", "b.1.quant_type": "int8"}, random(r, "b.1", "U32", 1), random(r, "b.2", "U32", 1))
	_, plain := input(t, map[string]string{"format": "mlx"}, random(r, "norm", "F32", 1))
	_, silent := input(t, nil, random(r, "other", "F32", 1))
	for _, tt := range []struct {
		name   string
		inputs []*Header
		want   map[string]string
	}{
		{"one", []*Header{quantised}, map[string]string{"format": "mlx", "quant_type": "nvfp4", "group_size": "16"}},
		{"what all say", []*Header{packed, plain}, map[string]string{"format": "mlx", "b.1.quant_type": "int8"}},
		{"what some say", []*Header{quantised, packed, plain},
			map[string]string{"format": "mlx", "a.quant_type": "nvfp4", "a.group_size": "16", "b.1.quant_type": "int8"}},
		{"what one does not say", []*Header{plain, silent}, map[string]string{"norm.format": "mlx"}},
		{"nothing", []*Header{silent}, nil},
		{"no inputs", nil, nil},
	} {
		start, _, err := Merge(tt.inputs)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		h, err := Read(start, Options{})
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, h.Metadata); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestMergeKeyOfDots has the longest key of metadata, all dots: looking up each of its prefixes takes many minutes.
func TestMergeKeyOfDots(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(13, 14))
	var tensors []converttest.SafeTensor
	for i := range 100 {
		tensors = append(tensors, random(r, fmt.Sprint(i), "F32", 1))
	}
	_, a := input(t, map[string]string{strings.Repeat(".", maxMetadata-2): "v"}, tensors...)
	_, b := input(t, nil, random(r, "b", "F32", 1))
	for _, inputs := range [][]*Header{{a}, {a, b}} { // shared by all, and not
		_, _, err := Merge(inputs)
		if want := len(inputs) > 1; want != errdefs.IsInvalidArgument(err) || !want && err != nil {
			t.Errorf("%d inputs: got %.500v", len(inputs), err)
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	_, a := input(t, map[string]string{"b.quant_type": "int4"}, random(r, "a", "F32", 1))
	_, ab := input(t, map[string]string{"quant_type": "int8"}, random(r, "a.b", "F32", 1))
	_, two := input(t, nil, random(r, "x", "F32", 1), random(r, "y", "F32", 1))
	tensor := func(x Tensor) *Header { return &Header{Tensors: []Tensor{x}, DataSize: x.Size} }
	named := func(name string) *Header {
		return tensor(Tensor{Name: name, DType: "U8", Shape: []uint64{1}, Size: 1})
	}
	for _, tt := range []struct {
		name   string
		inputs []*Header
		want   string
	}{
		{"the same input twice", []*Header{a, a}, `tensor "a" twice`},
		{"two tensors with the same name", []*Header{two, named("x")}, `tensor "x" twice`},
		{"contradictory metadata of a tensor", []*Header{a, ab}, `two things of "a.b.quant_type"`},
		{"a tensor with the name of the metadata", []*Header{named(metadataKey)}, "called __metadata__"},
		{"a name that is not UTF-8", []*Header{named("\xff")}, "not UTF-8"},
		{"a shape that is not the size", []*Header{tensor(Tensor{Name: "x", DType: "F32", Shape: []uint64{2}, Size: 4})}, "2 elements of F32 in 4 bytes"},
		{"a shape that overflows", []*Header{tensor(Tensor{Name: "x", DType: "F32", Shape: []uint64{1 << 63, 2}, Size: 4})}, "more than 2^64 bits"},
		{"2^63 bytes", []*Header{
			tensor(Tensor{Name: "x", DType: "Q", Size: math.MaxInt64}), tensor(Tensor{Name: "y", DType: "Q", Size: 1}),
		}, "2^63 bytes"},
		{"a header of more than 100,000,000 bytes", []*Header{tensor(Tensor{Name: strings.Repeat("x", MaxHeader), DType: "U8", Shape: []uint64{1}, Size: 1})}, "more than 100000000"},
		{"a dtype that is not known", []*Header{tensor(Tensor{Name: "x", DType: "Q4_K", Size: 144})}, "not one of safetensors"},
		{"metadata of more than 4 MiB", []*Header{{Metadata: map[string]string{"x": strings.Repeat("x", maxMetadata)}}}, "__metadata__ of more"},
	} {
		_, _, err := Merge(tt.inputs)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %.500v, want %q", tt.name, err, tt.want)
		}
	}
}

// TestEncode compares the bytes: files of equal inputs are equal on every node.
func TestEncode(t *testing.T) {
	t.Parallel()
	got, err := Encode(&Header{
		Tensors: []Tensor{
			{Name: "b", DType: "U8", Shape: []uint64{1, 3}, Offset: 2, Size: 3},
			{Name: "a<", DType: "BF16", Offset: 0, Size: 2},
		},
		Metadata: map[string]string{"y": "2", "x": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	text := `{"__metadata__":{"x":"1","y":"2"},"a\u003c":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1,3],"data_offsets":[2,5]}}`
	for len(text)%8 != 0 {
		text += " "
	}
	want := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzMerge(f *testing.F) {
	r := rand.New(rand.NewPCG(9, 10))
	a, _ := input(f, map[string]string{"quant_type": "int4"}, random(r, "a", "U32", 3), random(r, "a.scale", "U8", 3))
	b, _ := input(f, map[string]string{"b.quant_type": "int8", "format": "pt"}, random(r, "b", "BF16", 3))
	f.Add(a, b)
	f.Add(b, a)
	f.Add(a, converttest.Safetensors(converttest.SmallSafetensors(), nil))
	f.Fuzz(func(t *testing.T, x, y []byte) {
		files := [][]byte{x, y}
		var inputs []*Header
		for _, p := range files {
			h, err := read(p)
			if err != nil {
				return
			}
			inputs = append(inputs, h)
		}
		start, parts, err := Merge(inputs)
		if err != nil {
			return
		}
		p := assemble(files, start, parts)
		spans, ok := oracle(p)
		if !ok {
			t.Fatalf("the oracle does not read the merged file %q", start)
		}
		for i, in := range inputs {
			for _, x := range in.Tensors {
				at, ok := spans[x.Name]
				want := files[i][in.DataOffset+x.Offset:][:x.Size]
				if !ok || !bytes.Equal(p[len(start):][at[0]:at[1]], want) {
					t.Fatalf("tensor %q of input %d: another one", x.Name, i)
				}
			}
		}
	})
}

func BenchmarkMerge(b *testing.B) {
	r := rand.New(rand.NewPCG(11, 12))
	var inputs []*Header
	for i := range 1209 {
		_, in := input(b, map[string]string{"quant_type": "nvfp4"}, random(r, fmt.Sprintf("model.layers.%d.mlp.weight", i), "U32", 2))
		inputs = append(inputs, in)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Merge(inputs); err != nil {
			b.Fatal(err)
		}
	}
}
