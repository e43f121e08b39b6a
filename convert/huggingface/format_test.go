package huggingface

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/format"
	"github.com/containerd/errdefs"
)

// TestToken finds the token in the places of the Hub's tools, in their order.
func TestToken(t *testing.T) {
	dir := t.TempDir()
	for name, p := range map[string]string{"home/.cache/huggingface/token": "of the cache\n", "hf/token": "of HF_HOME", "file": " of a file \n"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"} {
		t.Setenv(key, "")
	}
	t.Setenv("HOME", dir)
	if got := token(os.Getenv); got != "" {
		t.Errorf("nothing: %q", got)
	}
	for _, step := range []struct{ key, value, token string }{
		{"HOME", dir + "/home", "of the cache"}, {"HF_HOME", dir + "/hf", "of HF_HOME"}, {"HF_TOKEN_PATH", dir + "/file", "of a file"},
		{"HF_TOKEN", "of the environment", "of the environment"},
	} {
		t.Setenv(step.key, step.value)
		if got := token(os.Getenv); got != step.token {
			t.Errorf("%s: got %q, want %q", step.key, got, step.token)
		}
	}
	t.Setenv("HF_ENDPOINT", "ftp://hub.example")
	if _, err := Format.Hosts(format.Settings{Getenv: os.Getenv}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("endpoint: %v", err)
	}
}
