package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"runtime"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// file returns a file with the given header and number of bytes of data.
func file(header string, data int) []byte {
	p := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(p, header...), make([]byte, data)...)
}

func read(p []byte) (*Header, error) {
	return Read(p, Options{Size: int64(len(p))})
}

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		header string
		data   int
		want   Header
	}{
		{"no tensors", `{}`, 0, Header{}},
		{"no tensors, but metadata", `{"__metadata__":{"framework":"pt"}}`, 0, Header{Metadata: map[string]string{"framework": "pt"}}},
		{"metadata that is null", `{"__metadata__":null}`, 0, Header{}},
		{"one tensor", `{"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}`, 16,
			Header{Tensors: []Tensor{{"test", "I32", []uint64{2, 2}, 0, 16}}}},
		{"spaces around it", " \n\t{\"test\" : { \"dtype\":\"I32\" ,\"shape\":[ 1 , 1 ], \"data_offsets\" :[0, 4]} }   ", 4,
			Header{Tensors: []Tensor{{"test", "I32", []uint64{1, 1}, 0, 4}}}},
		{"a number", `{"x":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}`, 8, Header{Tensors: []Tensor{{"x", "F64", []uint64{}, 0, 8}}}},
		{"an empty tensor", `{"x":{"dtype":"F64","shape":[2,0],"data_offsets":[0,0]}}`, 0, Header{Tensors: []Tensor{{"x", "F64", []uint64{2, 0}, 0, 0}}}},
		{"in another order than the data", `{"b":{"shape":[1],"dtype":"U8","data_offsets":[2,3]},"a":{"dtype":"BF16","data_offsets":[0,2],"shape":[1]},"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}`, 3,
			Header{Tensors: []Tensor{{"a", "BF16", []uint64{1}, 0, 2}, {"e", "U8", []uint64{0}, 2, 0}, {"b", "U8", []uint64{1}, 2, 1}}}},
		{"elements of four and six bits", `{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[1,4]}}`, 4,
			Header{Tensors: []Tensor{{"a", "F4", []uint64{2}, 0, 1}, {"b", "F6_E2M3", []uint64{4}, 1, 3}}}},
		{"a dtype that is not known", `{"x":{"dtype":"Q3","shape":[5],"data_offsets":[0,9]}}`, 9, Header{Tensors: []Tensor{{"x", "Q3", []uint64{5}, 0, 9}}}},
		{"names with escapes", `{"a\"b\\":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u00e4":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2,
			Header{Tensors: []Tensor{{`a"b\`, "U8", []uint64{1}, 0, 1}, {"ä", "U8", []uint64{1}, 1, 1}}}},
		{"no name", `{"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, Header{Tensors: []Tensor{{"", "U8", []uint64{1}, 0, 1}}}},
		{"members that are not known", `{"x":{"a":[{"b":["]",{}]},1e5,-1,true],"dtype":"U8","shape":[1],"data_offsets":[0,1],"z":null}}`, 1,
			Header{Tensors: []Tensor{{"x", "U8", []uint64{1}, 0, 1}}}},
	} {
		p := file(tt.header, tt.data)
		got, err := read(p)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		tt.want.DataOffset, tt.want.DataSize = int64(len(p)-tt.data), int64(tt.data)
		if diff := cmp.Diff(&tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// one returns a header of one tensor.
func one(name, dtype, shape, offsets string) string {
	return fmt.Sprintf(`{%s:{"dtype":%s,"shape":%s,"data_offsets":%s}}`, name, dtype, shape, offsets)
}

var hostile = []struct {
	name string
	file []byte
	want string // in the error
}{
	{"no header", nil, "unexpected EOF"},
	{"seven bytes", make([]byte, 7), "unexpected EOF"},
	{"header of no bytes", file("", 8), "no bytes"},
	{"header of 100,000,001 bytes", append(binary.LittleEndian.AppendUint64(nil, MaxHeader+1), make([]byte, 100)...), "100000001 bytes, more than 100000000"},
	{"header of 2^64-1 bytes", append(binary.LittleEndian.AppendUint64(nil, ^uint64(0)), "{}"...), "18446744073709551615 bytes"},
	{"header beyond the end", append(binary.LittleEndian.AppendUint64(nil, 3), "{}"...), "3 bytes, in a file of 10"},
	{"not UTF-8", file("{\"\xff\":{}}", 0), "not UTF-8"},
	{"not JSON", file(`{"a"}`, 0), "not JSON"},
	{"data after it", file(`{}{}`, 0), "not JSON"},
	{"zeros after it", file("{}\x00\x00", 0), "not JSON"},
	{"a list", file(`[]`, 0), "the header is not an object"},
	{"a tensor that is a number", file(`{"x":1}`, 0), "its entry is not an object"},
	{"10,000 lists in lists", file(`{"x":`+strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000)+`}`, 0), "JSON"},
	{"a key twice", file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), `tensor "x" twice`},
	{"a key twice, once with an escape", file(`{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0078":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), `tensor "x" twice`},
	{"a member twice", file(`{"x":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}`, 1), "dtype twice"},
	{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), "__metadata__ twice"},
	{"a key of the metadata twice", file(`{"__metadata__":{"a":"1","a":"2"}}`, 0), `"a" twice`},
	{"metadata that is a list", file(`{"__metadata__":[]}`, 0), "__metadata__ is not an object"},
	{"metadata that is no text", file(`{"__metadata__":{"a":1}}`, 0), "__metadata__ is not a string"},
	{"a member missing", file(`{"x":{"dtype":"U8","shape":[1]}}`, 1), "missing"},
	{"a member in capitals", file(`{"x":{"DTYPE":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), "missing"},
	{"dtype that is a number", file(one(`"x"`, `8`, `[1]`, `[0,1]`), 1), "dtype is not a string"},
	{"shape that is a number", file(one(`"x"`, `"U8"`, `1`, `[0,1]`), 1), "shape is not a list"},
	{"shape of -1", file(one(`"x"`, `"U8"`, `[-1]`, `[0,1]`), 1), `"-1" is not a whole number`},
	{"shape of 1.0", file(one(`"x"`, `"U8"`, `[1.0]`, `[0,1]`), 1), `"1.0" is not a whole number`},
	{"shape of 2^64", file(one(`"x"`, `"U8"`, `[18446744073709551616]`, `[0,1]`), 1), "is not a whole number"},
	{"shape of a list", file(one(`"x"`, `"U8"`, `[[1]]`, `[0,1]`), 1), "is not a whole number"},
	{"rank 65", file(one(`"x"`, `"U8"`, `[1`+strings.Repeat(",1", 64)+`]`, `[0,1]`), 1), "more than 64 numbers"},
	{"offsets that are texts", file(one(`"x"`, `"U8"`, `[1]`, `["0","1"]`), 1), "is not a whole number"},
	{"offsets that are fractions", file(one(`"x"`, `"U8"`, `[1]`, `[0,1.5]`), 1), "is not a whole number"},
	{"offsets with an exponent", file(one(`"x"`, `"U8"`, `[1]`, `[0,1e0]`), 1), "is not a whole number"},
	{"offset of -1", file(one(`"x"`, `"U8"`, `[1]`, `[-1,0]`), 1), "is not a whole number"},
	{"offset of -0", file(one(`"x"`, `"U8"`, `[1]`, `[-0,1]`), 1), "is not a whole number"},
	{"one offset", file(one(`"x"`, `"U8"`, `[1]`, `[1]`), 1), "data_offsets [1]"},
	{"three offsets", file(one(`"x"`, `"U8"`, `[1]`, `[0,1,2]`), 1), "more than 2 numbers"},
	{"end before the start", file(one(`"x"`, `"U8"`, `[1]`, `[1,0]`), 1), "data_offsets [1 0]"},
	{"end at 2^63", file(one(`"x"`, `"U8"`, `[9223372036854775808]`, `[0,9223372036854775808]`), 1), "data_offsets [0 9223372036854775808]"},
	{"a gap at the start", file(one(`"x"`, `"U8"`, `[1]`, `[1,2]`), 2), "starts at 1, the one before it ends at 0"},
	{"a gap", file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3), "starts at 2, the one before it ends at 1"},
	{"an overlap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "starts at 1, the one before it ends at 2"},
	{"one place for two", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2), "starts at 0, the one before it ends at 2"},
	{"data after the last", file(one(`"x"`, `"U8"`, `[1]`, `[0,1]`), 2), "tensors end at"},
	{"data missing", file(one(`"x"`, `"U8"`, `[2]`, `[0,2]`), 1), "tensors end at"},
	{"data without tensors", file(`{}`, 1), "tensors end at"},
	{"another size than the shape", file(one(`"x"`, `"I32"`, `[2,2]`, `[0,15]`), 15), "4 elements of I32 in 15 bytes"},
	{"half a byte", file(one(`"x"`, `"F4"`, `[3]`, `[0,1]`), 1), "3 elements of F4 in 1 bytes"},
	{"shape that overflows", file(one(`"x"`, `"U8"`, `[4294967296,4294967296]`, `[0,0]`), 0), "more than 2^64 bits"},
	{"size that overflows", file(one(`"x"`, `"F64"`, `[2305843009213693952]`, `[0,0]`), 0), "more than 2^64 bits"},
	{"a name of a MiB", file(one(`"`+strings.Repeat("x", 1<<20)+`"`, `"U8"`, `[1]`, `[0,1]`), 1), "name of 1048576 bytes"},
	{"a dtype of a MiB", file(one(`"x"`, `"`+strings.Repeat("x", 1<<20)+`"`, `[1]`, `[0,1]`), 1), "dtype of 1048576 bytes"},
	{"metadata of 5 MiB", file(`{"__metadata__":{"a":"`+strings.Repeat("x", 5<<20)+`"}}`, 0), "__metadata__ of more than"},
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
		if !strings.Contains(err.Error(), tt.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: got %.1000q, want %q in it", tt.name, err, tt.want)
		}
	}
}

func TestSnifferPieceSizes(t *testing.T) {
	t.Parallel()
	p := converttest.Safetensors(converttest.SmallSafetensors(), map[string]string{"format": "pt"})
	want, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(want.Tensors), 2; got != want {
		t.Fatalf("got %d tensors, want %d", got, want)
	}
	for _, size := range []int{1, 3, 7, 8, 9, 100, len(p)} {
		s := NewSniffer(Options{Size: int64(len(p))})
		for at := 0; at < len(p); at += size {
			piece := p[at:min(at+size, len(p))]
			if n, err := s.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("got %d, %v, want %d", n, err, len(piece))
			}
			if got, want := s.Done(), int64(at+len(piece)) >= want.DataOffset; got != want {
				t.Fatalf("after %d bytes: got done %v, want %v", at+len(piece), got, want)
			}
		}
		got, err := s.Header()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pieces of %d (-want +got):\n%s", size, diff)
		}
	}
}

func TestSnifferIgnoresOtherFiles(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"short", strings.Repeat("not a model", 10_000), string(file(strings.Repeat("x", 1000), 1000))} {
		s := NewSniffer(Options{})
		n, err := io.Copy(s, strings.NewReader(body))
		if n != int64(len(body)) || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
		if h, err := s.Header(); h != nil || err == nil {
			t.Errorf("%.20q: got %v, %v", body, h, err)
		}
	}
}

func TestSnifferHeaderLimit(t *testing.T) {
	p := file(`{}`+strings.Repeat(" ", SniffLimit), 0)
	s := NewSniffer(Options{})
	if n := testing.AllocsPerRun(1, func() { s.Write(p) }); n > 20 || !s.Done() || s.buf != nil {
		t.Errorf("got %v allocations, done %v, %d bytes held", n, s.Done(), len(s.buf))
	}
	if _, err := s.Header(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v, want %v", err, errdefs.ErrInvalidArgument)
	}
	if n := testing.AllocsPerRun(100, func() { s.Write(p) }); n != 0 {
		t.Errorf("got %v allocations for each write once done, want 0", n)
	}
	if _, err := read(p); err != nil {
		t.Errorf("Read: %v", err)
	}
}

func TestTruncatedHeaderIsIncomplete(t *testing.T) {
	t.Parallel()
	p := converttest.Safetensors(converttest.SmallSafetensors(), nil)
	h, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	for n := range h.DataOffset {
		if _, err := Read(p[:n], Options{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes: got %v, want %v", n, err, io.ErrUnexpectedEOF)
		}
	}
}

// dense returns a header of nearly size bytes with as many tensors as fit.
func dense(size int) []byte {
	var b strings.Builder
	b.WriteString("{")
	for i := 0; b.Len() < size-100 && i < maxTensors; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"%x":{"dtype":"","shape":[],"data_offsets":[0,0]}`, i)
	}
	b.WriteString("}")
	return file(b.String(), 0)
}

// TestMemory limits the memory of the readers to a multiple of the bytes received.
func TestMemory(t *testing.T) {
	nested := file(`{"x":{"y":`+strings.Repeat("[", 5000)+strings.Repeat("0,", 8<<20)+"0"+strings.Repeat("]", 5000)+`}}`, 0)
	for _, tt := range []struct {
		name  string
		file  []byte
		times uint64 // bytes allocated for each byte of the file, garbage included
	}{
		{"8 MiB of tensors", dense(SniffLimit), 12},
		{"16 MiB that is not asked for", nested, 6},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Read(tt.file, Options{})
		runtime.ReadMemStats(&after)
		got := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d bytes for %d", tt.name, got, len(tt.file))
		if want := tt.times * uint64(len(tt.file)); got > want {
			t.Errorf("%s: %d bytes of memory, want at most %d", tt.name, got, want)
		}
	}
}

func BenchmarkReadHostile(b *testing.B) {
	p := dense(64 << 20)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Read(p, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// oracle is a second reader, based on encoding/json and big numbers: it returns whether a file is
// valid, and the ranges of its tensors.
func oracle(p []byte) (map[string][2]int64, bool) {
	if len(p) < 8 {
		return nil, false
	}
	n := new(big.Int).SetUint64(binary.LittleEndian.Uint64(p))
	if n.Cmp(big.NewInt(int64(len(p)-8))) > 0 || n.Cmp(big.NewInt(MaxHeader)) > 0 {
		return nil, false
	}
	text := p[8 : 8+n.Int64()]
	root, ok := decode(text)
	if !ok {
		return nil, false
	}
	type span struct{ from, to int64 }
	var spans []span
	all := map[string][2]int64{}
	for name, v := range root {
		if name == "__metadata__" {
			if v == nil {
				continue
			}
			m, ok := v.(map[string]any)
			if !ok {
				return nil, false
			}
			for _, v := range m {
				if _, ok := v.(string); !ok {
					return nil, false
				}
			}
			continue
		}
		m, _ := v.(map[string]any)
		dtype, ok1 := m["dtype"].(string)
		shape, ok2 := m["shape"].([]any)
		off, ok3 := m["data_offsets"].([]any)
		if !ok1 || !ok2 || !ok3 || len(off) != 2 || len(shape) > 64 || len(name) > 64<<10 || len(dtype) > 32 {
			return nil, false
		}
		from, ok1 := whole(off[0])
		to, ok2 := whole(off[1])
		if !ok1 || !ok2 || !to.IsInt64() || from.Cmp(to) > 0 {
			return nil, false
		}
		bits, known := map[string]int64{"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
			"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}[dtype]
		size := big.NewInt(1)
		overflow := false
		for _, dim := range shape {
			d, ok := whole(dim)
			if !ok {
				return nil, false
			}
			size.Mul(size, d)
			overflow = overflow || !size.IsUint64()
		}
		if known {
			size.Mul(size, big.NewInt(bits))
			want := new(big.Int).Sub(to, from)
			if overflow || !size.IsUint64() || size.Cmp(want.Mul(want, big.NewInt(8))) != 0 {
				return nil, false
			}
		}
		spans = append(spans, span{from.Int64(), to.Int64()})
		all[name] = [2]int64{from.Int64(), to.Int64()}
	}
	sort.Slice(spans, func(i, j int) bool {
		return spans[i].from < spans[j].from || spans[i].from == spans[j].from && spans[i].to < spans[j].to
	})
	end := int64(0)
	for _, s := range spans {
		if s.from != end {
			return nil, false
		}
		end = s.to
	}
	return all, end == int64(len(p))-8-n.Int64()
}

func whole(v any) (*big.Int, bool) {
	n, ok := v.(json.Number)
	if !ok || strings.ContainsAny(n.String(), ".eE-") {
		return nil, false
	}
	i, ok := new(big.Int).SetString(n.String(), 10)
	return i, ok && i.IsUint64()
}

// decode decodes an object in which keys are unique, except in nested values that are not read.
func decode(p []byte) (map[string]any, bool) {
	if !utf8.Valid(p) || !json.Valid(p) {
		return nil, false
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber()
	v, err := decodeValue(dec, nil)
	m, ok := v.(map[string]any)
	return m, ok && err == nil
}

func decodeValue(dec *json.Decoder, path []string) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		m := map[string]any{}
		for dec.More() {
			key, _ := dec.Token()
			k := key.(string)
			v, err := decodeValue(dec, append(path, k))
			if err != nil {
				return nil, err
			}
			read := len(path) == 0 || len(path) == 1 && (path[0] == metadataKey || k == "dtype" || k == "shape" || k == "data_offsets")
			if _, ok := m[k]; ok && read {
				return nil, errors.New("twice")
			}
			m[k] = v
		}
		_, err = dec.Token()
		return m, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := decodeValue(dec, append(path, ""))
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, err
	}
	return tok, nil
}

func FuzzRead(f *testing.F) {
	for _, tt := range hostile {
		if len(tt.file) < 1<<14 {
			f.Add(tt.file)
		}
	}
	f.Add(converttest.Safetensors(converttest.SmallSafetensors(), map[string]string{"format": "pt"}))
	f.Add(file(`{"a":{"dtype":"Q","shape":[0,18446744073709551615],"data_offsets":[0,3]},"__metadata__":{"\u0061":"\ud83d\ude00"}}`, 3))
	f.Fuzz(func(t *testing.T, p []byte) {
		h, err := read(p)
		s := newSniffer(Options{Size: int64(len(p))}, MaxHeader)
		for at := 0; at < len(p); at += 5 {
			s.Write(p[at:min(at+5, len(p))])
		}
		if pieces, pErr := s.Header(); fmt.Sprint(pErr) != fmt.Sprint(err) || !cmp.Equal(pieces, h) {
			t.Fatalf("got %v, %v in pieces, %v, %v at once", pieces, pErr, h, err)
		}
		spans, ok := oracle(p)
		if ok != (err == nil) {
			t.Fatalf("got %v, the oracle says %v", err, ok)
		}
		if err != nil {
			return
		}
		got := map[string][2]int64{}
		for _, x := range h.Tensors {
			got[x.Name] = [2]int64{x.Offset, x.Offset + x.Size}
		}
		if diff := cmp.Diff(spans, got); diff != "" {
			t.Fatalf("(-oracle +got):\n%s", diff)
		}
		Describe([]Summary{h.Summary()}, ModelConfig{Bits: 4})
		again(t, h)
	})
}

// again checks that a header that is written is read as the same.
func again(t *testing.T, h *Header) {
	t.Helper()
	start, err := Encode(h)
	if err != nil {
		for _, x := range h.Tensors {
			if _, known := dtypes[x.DType]; !known || x.Name == metadataKey {
				return
			}
		}
		t.Fatalf("written again: %v", err)
	}
	back, err := Read(start, Options{Size: int64(len(start)) + h.DataSize})
	if err != nil {
		t.Fatalf("read again: %v\n%s", err, start)
	}
	want := *h
	want.DataOffset = int64(len(start))
	if len(want.Metadata) == 0 {
		want.Metadata = nil
	}
	if diff := cmp.Diff(&want, back); diff != "" {
		t.Fatalf("read again (-want +got):\n%s", diff)
	}
}
