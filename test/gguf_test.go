package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/google/go-cmp/cmp"
	oracle "github.com/gpustack/gguf-parser-go"
)

// facts are the fields that both readers of a GGUF file return.
type facts struct {
	Version, Alignment                    int64
	Type, Architecture, Name, Author, URL string
	Description, License, FileType        string
	Tensors                               int64
	Parameters, ContextLength             uint64
	DataOffset, DataSize                  int64
	Types                                 map[string]uint64 // bytes
}

// TestGGUFReadersAgree compares our reader with one of others, which is not for hostile files.
func TestGGUFReadersAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	for n := range 200 {
		p := converttest.GGUF(randomGGUF(r))
		path := filepath.Join(dir, fmt.Sprintf("%d.gguf", n))
		if err := os.WriteFile(path, p, 0o600); err != nil {
			t.Fatal(err)
		}
		want := readOracle(t, path)
		got := readOurs(t, p)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("file %d (-oracle +ours):\n%s", n, diff)
		}
	}
}

func readOurs(t *testing.T, p []byte) facts {
	t.Helper()
	sniffer := gguf.NewSniffer(gguf.Options{Size: int64(len(p))})
	sniffer.Write(p)
	h, err := sniffer.Header()
	if err != nil {
		t.Fatal(err)
	}
	f := facts{
		Version: int64(h.Version), Alignment: h.Alignment,
		Type: h.Type, Architecture: h.Architecture, Name: h.Name, Author: h.Author, URL: h.URL,
		Description: h.Description, License: h.License, FileType: h.FileType,
		Tensors: h.Tensors, Parameters: h.Parameters,
		ContextLength: h.ContextLength,
		DataOffset:    h.DataOffset, DataSize: h.DataSize, Types: h.Types,
	}
	return f
}

func readOracle(t *testing.T, path string) facts {
	t.Helper()
	g, err := oracle.ParseGGUFFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, a := g.Metadata(), g.Architecture()
	f := facts{
		Version: int64(g.Header.Version), Alignment: int64(m.Alignment),
		Type: m.Type, Architecture: m.Architecture, Name: m.Name, Author: m.Author, URL: m.URL,
		Description: m.Description, License: m.License,
		FileType: strings.TrimPrefix(m.FileType.String(), "MOSTLY_"),
		Tensors:  int64(g.Header.TensorCount), Parameters: uint64(m.Parameters),
		ContextLength: a.MaximumContextLength,
		DataOffset:    g.TensorDataStartOffset, Types: map[string]uint64{},
	}
	for _, x := range g.TensorInfos {
		f.Types[x.Type.String()] += x.Bytes()
		f.DataSize = max(f.DataSize, int64(x.Offset+x.Bytes()))
	}
	return f
}

// randomGGUF is a small model with tensors of all types.
func randomGGUF(r *rand.Rand) converttest.GGUFFile {
	text := func() string { return strings.Repeat("a text ", r.IntN(20)) + "." }
	number := func() uint32 { return 1 + r.Uint32N(1<<20) }
	fileTypes := []uint32{0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}
	f := converttest.GGUFFile{
		Version: 2 + r.Uint32N(2),
		Align:   []int{0, 8, 64, 4096}[r.IntN(4)],
		Keys: []converttest.GGUFKey{
			{Name: "general.type", Value: "model"},
			{Name: "general.architecture", Value: "llama"},
			{Name: "general.name", Value: text()},
			{Name: "general.author", Value: text()},
			{Name: "general.url", Value: text()},
			{Name: "general.description", Value: text()},
			{Name: "general.license", Value: text()},
			{Name: "general.file_type", Value: fileTypes[r.IntN(len(fileTypes))]},
			{Name: "llama.context_length", Value: number()},
			{Name: "llama.embedding_length", Value: number()},
			{Name: "llama.block_count", Value: number()},
			{Name: "llama.expert_count", Value: number()},
			{Name: "llama.attention.head_count", Value: uint32(8)},
			{Name: "tokenizer.ggml.tokens", Value: strings.Fields(text())},
			{Name: "tokenizer.ggml.scores", Value: make([]float32, r.IntN(100))},
			{Name: "some.nested", Value: [][]string{{"a", "b"}, {}}},
		},
	}
	types := []struct {
		kind        uint32
		block, size uint64
	}{
		{0, 1, 4}, {1, 1, 2}, {2, 32, 18}, {3, 32, 20}, {6, 32, 22}, {7, 32, 24}, {8, 32, 34}, {9, 32, 36}, {10, 256, 84},
		{11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210}, {15, 256, 292}, {16, 256, 66}, {17, 256, 74}, {18, 256, 98},
		{19, 256, 50}, {20, 32, 18}, {21, 256, 110}, {22, 256, 82}, {23, 256, 136}, {24, 1, 1}, {25, 1, 2}, {26, 1, 4}, {27, 1, 8},
		{28, 1, 8}, {29, 256, 56}, {30, 1, 2}, {34, 256, 54}, {35, 256, 66}, {39, 32, 17},
	}
	for i := range 1 + r.IntN(40) {
		kind := types[r.IntN(len(types))]
		shape := []uint64{kind.block * (1 + r.Uint64N(4))}
		elements := shape[0]
		for range r.IntN(4) {
			dim := 1 + r.Uint64N(5)
			shape, elements = append(shape, dim), elements*dim
		}
		f.Tensors = append(f.Tensors, converttest.GGUFTensor{
			Name: fmt.Sprintf("blk.%d.attn_q.weight", i), Shape: shape, Type: kind.kind,
			Data: make([]byte, elements/kind.block*kind.size),
		})
	}
	return f
}
