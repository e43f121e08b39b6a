package resolve_test

import (
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/containerd/errdefs"
)

func TestParseRef(t *testing.T) {
	const d = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for in, want := range map[string]string{
		"ghcr.io/a/b":                            "ghcr.io/a/b:latest",
		"oci://ghcr.io/a/b:v1":                   "ghcr.io/a/b:v1",
		"docker://ghcr.io/a/b:v1":                "ghcr.io/a/b:v1",
		"oci+native://ghcr.io/a/b":               "ghcr.io/a/b:latest",
		"https://hub.docker.com/r/ai/smollm2":    "docker.io/ai/smollm2:latest",
		"hub.docker.com/r/ai/smollm2/tags":       "docker.io/ai/smollm2:latest",
		"localhost/a:v1":                         "localhost/a:v1",
		"127.0.0.1:5000/a/b":                     "127.0.0.1:5000/a/b:latest",
		"registry.ollama.ai/library/llama3.2:1b": "registry.ollama.ai/library/llama3.2:1b",
		"carton+https://h.example/a.carton":      "carton+https://h.example/a.carton",
		"ghcr.io/a/b@" + d:                       "ghcr.io/a/b@" + d,

		"https://huggingface.co/Qwen/Qwen3-0.6B":                "hf.co/Qwen/Qwen3-0.6B:main",
		"https://huggingface.co/Qwen/Qwen3-0.6B/tree/v1?x=y#z":  "hf.co/Qwen/Qwen3-0.6B:v1",
		"huggingface.co/Qwen/Qwen3-0.6B/tree/v1":                "hf.co/Qwen/Qwen3-0.6B:v1",
		"huggingface.co/Qwen/Qwen3-0.6B":                        "hf.co/Qwen/Qwen3-0.6B:latest",
		"https://ollama.com/library/llama3.2":                   "registry.ollama.ai/library/llama3.2:latest",
		"https://www.ollama.com/user/llama3.2:1b/":              "registry.ollama.ai/user/llama3.2:1b",
		"ollama.com/library/llama3.2:1b":                        "registry.ollama.ai/library/llama3.2:1b",
		"registry.example/huggingface.co/Qwen/Qwen3/blob/a/b:c": "registry.example/huggingface.co/Qwen/Qwen3/blob/a/b:c",
	} {
		got, err := resolve.ParseRef(in)
		if err != nil || got.String() != want {
			t.Errorf("ParseRef(%q): got %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "llama3.2", "ai/smollm2", "library/x:y", "ghcr.io/", "ghcr.io/a b", "http://ghcr.io/a", "ghcr.io/a:", "ghcr.io/a@sha256:x", strings.Repeat("a.", 500) + "/x",
		"https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/a.gguf", "https://huggingface.co/Qwen/Qwen3-0.6B/resolve/main/d/a.gguf?download=true",
		"huggingface.co/Qwen/Qwen3-0.6B/blob/main/a.gguf", "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main/sub", "https://huggingface.co/gpt2",
		"https://huggingface.co/datasets/a/b", "https://huggingface.co/Qwen/Qwen3-0.6B/discussions", "https://ollama.com/library/x/tags", "https://ollama.com/x",
		"s3://b/k", "hf./a/b", "oci+native://smollm2", "https://hub.docker.com/u/ai", "https://hub.docker.com/r/ai/a/b/c", "https://example.com/a/b", "https://h.example/a.carton", "https://user@ollama.com/library/x"} {
		if got, err := resolve.ParseRef(in); !errdefs.IsInvalidArgument(err) {
			t.Errorf("ParseRef(%q): got %q, %v, want ErrInvalidArgument", in, got, err)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"ghcr.io/a/b:v1", "oci://localhost/x", "llama3.2", "a.b/c@sha256:00", "[::1]:5000/x", "xAa./x", "xaa:443/x", "xaa.:0443/x", "hF./00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := resolve.ParseRef(s)
		if err != nil {
			return
		}
		back, err := resolve.ParseRef(ref.String())
		if err != nil || back != ref {
			t.Fatalf("%q is %q, read back as %q, %v", s, ref, back, err)
		}
	})
}
