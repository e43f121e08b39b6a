package headers_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/google/go-cmp/cmp"
)

// tensors is a safetensors file of n elements of F16.
func tensors(n int) []byte {
	head := fmt.Sprintf(`{"a":{"dtype":"F16","shape":[%d],"data_offsets":[0,%d]}}`, n, 2*n)
	return append(append([]byte{byte(len(head)), 0, 0, 0, 0, 0, 0, 0}, head...), make([]byte, 2*n)...)
}

// file is a file that counts what is read of it.
func file(path string, p []byte, read *int) headers.File {
	return headers.File{Path: path, Size: int64(len(p)), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(counter{bytes.NewReader(p), read}), nil
	}}
}

// same gives a file the digest of all that are the same.
func same(f headers.File) headers.File {
	f.Digest = "sha256:same"
	return f
}

type counter struct {
	r io.Reader
	n *int
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.n != nil {
		*c.n += n
	}
	return n, err
}

// TestRead reads models, and says what is known of them.
func TestRead(t *testing.T) {
	t.Parallel()
	small := converttest.GGUF(converttest.SmallGGUF())
	config := []byte(`{"architectures":["LlamaForCausalLM"],"model_type":"llama","max_position_embeddings":4096}`)
	for _, tt := range []struct {
		name     string
		files    []headers.File
		want     convert.ModelConfig
		context  int64
		problems string
	}{
		{"GGUF", []headers.File{file("model.gguf", small, nil), file("README.md", []byte("GGUF"), nil)},
			convert.ModelConfig{Architecture: "llama", Format: "gguf", ParamSize: "8.3K", Quantization: "Q8_0"}, 2048, ""},
		{"safetensors with a config", []headers.File{file("config.json", config, nil), file("model-1.safetensors", tensors(3000), nil), file("model-2.safetensors", tensors(2000), nil)},
			convert.ModelConfig{Architecture: "LlamaForCausalLM", Format: "safetensors", ParamSize: "5K", Precision: "float16"}, 4096, ""},
		{"weights in two forms, and another component", []headers.File{
			file("consolidated.safetensors", tensors(3000), nil), file("draft/model.safetensors", tensors(1000), nil), file("model.safetensors", tensors(3000), nil)},
			convert.ModelConfig{Format: "safetensors", ParamSize: "3K", Precision: "float16"}, 0, ""},
		{"weights in one form", []headers.File{file("consolidated.safetensors", tensors(3000), nil)},
			convert.ModelConfig{Format: "safetensors", ParamSize: "3K", Precision: "float16"}, 0, ""},
		{"components only", []headers.File{file("a/model.safetensors", tensors(3000), nil), file("b/model.safetensors", tensors(1000), nil)},
			convert.ModelConfig{Format: "safetensors", ParamSize: "4K", Precision: "float16"}, 0, ""},
		{"a bad one beside a good one", []headers.File{file("a.gguf", []byte("nothing of that sort"), nil), file("b.gguf", small, nil)},
			convert.ModelConfig{Architecture: "llama", Format: "gguf", ParamSize: "8.3K", Quantization: "Q8_0"}, 2048, "a.gguf"},
		{"one that ends too early", []headers.File{file("a.safetensors", tensors(3000)[:30], nil)}, convert.ModelConfig{}, 0, "a.safetensors"},
		{"a config that is none", []headers.File{file("config.json", []byte("["), nil)}, convert.ModelConfig{}, 0, ""},
		{"the same file twice", []headers.File{same(file("a/model-1.safetensors", tensors(3000), nil)), same(file("model-1.safetensors", tensors(3000), nil)), file("model-2.safetensors", tensors(2000), nil)},
			convert.ModelConfig{Format: "safetensors", ParamSize: "5K", Precision: "float16"}, 0, ""},
		{"the same component twice", []headers.File{same(file("a/model.safetensors", tensors(3000), nil)), same(file("b/model.safetensors", tensors(3000), nil))},
			convert.ModelConfig{Format: "safetensors", ParamSize: "3K", Precision: "float16"}, 0, ""},
		{"empty", []headers.File{file("model.gguf", nil, nil)}, convert.ModelConfig{}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := headers.Read(t.Context(), tt.files)
			got := r.Config.Config
			got.Capabilities = nil
			if diff := cmp.Diff(tt.want, got); diff != "" || r.ContextLength != tt.context {
				t.Errorf("context length %d; config (-want +got):\n%s", r.ContextLength, diff)
			}
			var paths []string
			for _, p := range r.Problems {
				paths = append(paths, p.Path)
			}
			if strings.Join(paths, " ") != tt.problems {
				t.Errorf("problems: %v", r.Problems)
			}
		})
	}
}

// TestMissing finds the sets of files that are not complete.
func TestMissing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ paths, want string }{
		{"model-00001-of-00002.safetensors model-00002-of-00002.safetensors README.md", ""},
		{"a/model-00001-of-00002.gguf model-00002-of-00002.gguf", `"a/model-00002-of-00002.gguf": missing, with 1 of 2 files of its set; "model-00001-of-00002.gguf": missing, with 1 of 2 files of its set`},
		{"model-00000-of-00002.bin model-00001-of-00002.bin", ""}, // from zero
		{"model-00002-of-00004.bin model-00002-of-00004.pt model-00001-of-00001.bin", `"model-00001-of-00004.bin": missing, with 3 of 4 files of its set; "model-00001-of-00004.pt": missing, with 3 of 4 files of its set`},
		{"model-1-of-2.bin model-00001-of-00000.bin 00001-of-00002.bin x-00001-of-00002.a/b", ""},
		{"m-00001-of-00003.bin m-00002-of-00003.bin m-00004-of-00003.bin", `"m-00003-of-00003.bin": missing, with 1 of 3 files of its set`},
	} {
		var got []string
		for _, p := range headers.Missing(strings.Fields(tt.paths)) {
			got = append(got, p.String())
		}
		if s := strings.Join(got, "; "); s != tt.want {
			t.Errorf("%s: got %s, want %s", tt.paths, s, tt.want)
		}
	}
}

// TestMissingOfLargeSets has 20,000 sets of 99,999 files: to look for each of their files takes minutes.
func TestMissingOfLargeSets(t *testing.T) {
	t.Parallel()
	var paths []string
	for i := range 20_000 {
		paths = append(paths, fmt.Sprintf("a%d-00001-of-99999.x", i))
	}
	problems := headers.Missing(paths)
	want := `"a0-00002-of-99999.x": missing, with 99998 of 99999 files of its set`
	if len(problems) != len(paths) || problems[0].String() != want {
		t.Errorf("%d problems, the first is %s", len(problems), problems[0])
	}
}

// TestReadIsBounded reads too many files, large ones, and some that fail.
func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	var read int
	large := tensors(2 << 20)
	var files []headers.File
	for i := range 300 {
		files = append(files, file(fmt.Sprintf("%03d.safetensors", i), large, &read))
	}
	r := headers.Read(t.Context(), files)
	if want := headers.MaxFiles << 18; read > want {
		t.Errorf("%d bytes were read, more than %d", read, want)
	}
	if last := r.Problems[len(r.Problems)-1]; last.Path != "256.safetensors" || !strings.Contains(last.Text, "skipped") {
		t.Errorf("the last problem is %+v", last)
	}

	broken := errors.New("the disk is gone")
	f := headers.File{Path: "a.gguf", Size: 9, Open: func(context.Context) (io.ReadCloser, error) { return nil, broken }}
	if r := headers.Read(t.Context(), []headers.File{f}); len(r.Problems) != 1 || r.Problems[0].Text != broken.Error() {
		t.Errorf("problems: %v", r.Problems)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := headers.Read(ctx, files[:1]); len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Text, "canceled") {
		t.Errorf("problems: %v", r.Problems)
	}
}

// TestSnifferPieces writes files in pieces of every size: what is known is the same as if they came whole.
func TestSnifferPieces(t *testing.T) {
	t.Parallel()
	for path, p := range map[string][]byte{
		"a.gguf": converttest.GGUF(converttest.SmallGGUF()), "a.safetensors": tensors(3000), "a.bin": []byte("GGUF"),
	} {
		whole := headers.NewSniffer(path, int64(len(p)))
		whole.Write(p)
		want := headers.Describe([]*headers.Sniffer{whole})
		for _, size := range []int{1, 7, 100, len(p)} {
			s := headers.NewSniffer(path, int64(len(p)))
			for rest := p; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				if n, err := s.Write(rest[:min(size, len(rest))]); err != nil || n != min(size, len(rest)) {
					t.Fatalf("Write: %d, %v", n, err)
				}
			}
			if diff := cmp.Diff(want, headers.Describe([]*headers.Sniffer{s})); diff != "" || !s.Done() {
				t.Errorf("%s in pieces of %d (-want +got):\n%s", path, size, diff)
			}
		}
	}
}
