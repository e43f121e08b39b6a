package gguf

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/google/go-cmp/cmp"
)

// small returns the header of SmallGGUF.
func small() *Header {
	return &Header{
		Version: 3, Alignment: 32,
		Type: "model", Architecture: "llama", Name: "Small", Revision: "v0.1", License: "apache-2.0",
		Organization: "Example", RepoURL: "https://models.example/small", Languages: []string{"en", "de"},
		FileType: "Q8_0", ContextLength: 2048,
		Tensors: 3, Parameters: 2*64*64 + 128,
		Types:    map[string]uint64{"Q8_0": 2 * 4352, "F32": 512},
		DataSize: 2*4352 + 512,
	}
}

func read(p []byte) (*Header, error) {
	return sniff(bytes.NewReader(p), Options{Size: int64(len(p))})
}

// sniff writes r to a Sniffer until its header is complete.
func sniff(r io.Reader, o Options) (*Header, error) {
	s := NewSniffer(o)
	p := make([]byte, 256<<10)
	for !s.Done() {
		n, err := r.Read(p)
		s.Write(p[:n])
		if err != nil {
			break
		}
	}
	return s.Header()
}

func TestVersionsAndByteOrders(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		version uint32
		big     bool
	}{{"v1", 1, false}, {"v2", 2, false}, {"v3", 3, false}, {"v3 big endian", 3, true}} {
		f := converttest.SmallGGUF()
		f.Version, f.BigEndian = tt.version, tt.big
		p := converttest.GGUF(f)
		got, err := read(p)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		want := small()
		want.Version = int(tt.version)
		want.DataOffset = int64(len(p)) - want.DataSize
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestAlignment(t *testing.T) {
	t.Parallel()
	for _, align := range []int{8, 24, 64, 1 << 16} {
		f := converttest.SmallGGUF()
		f.Align = align
		p := converttest.GGUF(f)
		h, err := read(p)
		if err != nil {
			t.Fatalf("alignment %d: %v", align, err)
		}
		if got, want := h.Alignment, int64(align); got != want {
			t.Errorf("got alignment %d, want %d", got, want)
		}
		if h.DataOffset%h.Alignment != 0 || h.DataOffset+h.DataSize > int64(len(p)) {
			t.Errorf("alignment %d: data at %d, %d bytes, in %d", align, h.DataOffset, h.DataSize, len(p))
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	p := converttest.GGUF(converttest.GGUFFile{Keys: []converttest.GGUFKey{
		{Name: "other.context_length", Value: uint32(7)},
		{Name: "qwen3.context_length", Value: []int32{1, 2}},       // of another type
		{Name: "qwen3.context_length", Value: float32(12)},         // of another type
		{Name: "qwen3.context_length", Value: uint64(40960)},       // before the architecture
		{Name: "general.architecture", Value: uint32(1)},           // of another type
		{Name: "general.architecture", Value: "qwen3"},             // the first valid one
		{Name: "general.architecture", Value: "llama"},             // a second one
		{Name: "general.name", Value: "a\x00b"},                    // no text
		{Name: "general.name", Value: "\xff"},                      // no text
		{Name: "general.author", Value: " Base\n"},                 // with space around it
		{Name: "general.languages", Value: [][]string{{"nested"}}}, // not a list of texts
		{Name: "general.datasets", Value: []string{"x", "\xff", "y"}},
		{Name: "general.languages", Value: "en"}, // of another type
		{Name: "general.size_label", Value: "8x7B"},
		{Name: "general.file_type", Value: int32(-1)}, // not a type
		{Name: "general.file_type", Value: uint16(15)},
		{Name: "split.no", Value: uint16(65534)},
		{Name: "split.count", Value: int32(-5)}, // not a count
		{Name: "split.count", Value: int64(65535)},
		{Name: "tokenizer.chat_template", Value: ""},
		{Name: "some.bools", Value: []bool{true, false}},
		{Name: "some.f64", Value: float64(1)},
		{Name: "some.i8", Value: int8(-1)},
		{Name: "some.i16", Value: int16(-1)},
		{Name: "", Value: true},
	}})
	got, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	want := &Header{
		Version: 3, Alignment: 32, Architecture: "qwen3", Author: "Base", Datasets: []string{"x", "y"},
		SizeLabel: "8x7B", FileType: "Q4_K_M", ContextLength: 40960,
		SplitNo: 65534, SplitCount: 65535, Types: map[string]uint64{}, DataOffset: int64(len(p)),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTextLimit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxText)
	f := converttest.GGUFFile{Keys: []converttest.GGUFKey{
		{Name: "general.description", Value: long + "x"},
		{Name: "general.name", Value: "name"},
		{Name: "general.author", Value: long},
		{Name: "general.description", Value: "a second one, that fits"},
		{Name: "general.languages", Value: slices.Repeat([]string{"en"}, 10_000)},
	}}
	h, err := read(converttest.GGUF(f))
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != "name" || h.Author != "" || h.Description != "a second one, that fits" {
		t.Errorf("got name %q, author of %d bytes, description %.30q", h.Name, len(h.Author), h.Description)
	}
	if got, want := len(h.Languages), maxList; got != want {
		t.Errorf("got %d languages, want %d", got, want)
	}
}

func TestTruncatedHeaderIsIncomplete(t *testing.T) {
	t.Parallel()
	p := converttest.GGUF(converttest.SmallGGUF())
	full, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	// The last field ends before the padding to the alignment.
	for n := range p[:full.DataOffset-full.Alignment] {
		if h, err := sniff(bytes.NewReader(p[:n]), Options{}); !errors.Is(err, io.ErrUnexpectedEOF) || h != nil {
			t.Fatalf("%d bytes: got %v, %v, want %v", n, h, err, io.ErrUnexpectedEOF)
		}
	}
	h, err := sniff(bytes.NewReader(p[:full.DataOffset]), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, h); diff != "" {
		t.Errorf("header alone (-want +got):\n%s", diff)
	}
}

func TestSnifferPieceSizes(t *testing.T) {
	t.Parallel()
	p := converttest.GGUF(converttest.SmallGGUF())
	want, err := read(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 2, 3, 5, 7, 64, 1000, len(p)} {
		s := NewSniffer(Options{Size: int64(len(p))})
		for at := 0; at < len(p); at += size {
			piece := p[at:min(at+size, len(p))]
			if n, err := s.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("got %d, %v, want %d", n, err, len(piece))
			}
			if end := int64(at + len(piece)); s.Done() && end <= want.DataOffset-want.Alignment || !s.Done() && end >= want.DataOffset {
				t.Fatalf("pieces of %d: after %d bytes: done %v, the data is at %d", size, end, s.Done(), want.DataOffset)
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
	s := NewSniffer(Options{})
	body := strings.Repeat("not a model", 1000)
	n, err := io.Copy(s, strings.NewReader(body))
	if n != int64(len(body)) || err != nil {
		t.Fatalf("got %d, %v", n, err)
	}
	if h, err := s.Header(); h != nil || err == nil || !s.Done() {
		t.Errorf("got %v, %v, done %v", h, err, s.Done())
	}
}

func TestSnifferDoesNotAllocateWhenDone(t *testing.T) {
	p := converttest.GGUF(converttest.SmallGGUF())
	s := NewSniffer(Options{})
	s.Write(p)
	if !s.Done() {
		t.Fatal("not done")
	}
	if n := testing.AllocsPerRun(100, func() { s.Write(p) }); n != 0 {
		t.Errorf("got %v allocations for each write, want 0", n)
	}
}
