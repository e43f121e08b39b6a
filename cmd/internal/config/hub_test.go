package config

import (
	"os"
	"path/filepath"
	"testing"
)

// TestHub finds the token where tools of the Hub keep it, in their order.
func TestHub(t *testing.T) {
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
	for _, key := range []string{"HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT", "XDG_CACHE_HOME"} {
		t.Setenv(key, "")
	}
	t.Setenv("HOME", dir)
	if h := Hub(); h != (HubAccess{}) {
		t.Errorf("nothing: %+v", h)
	}
	for _, step := range []struct{ key, value, token string }{
		{"HOME", dir + "/home", "of the cache"}, {"HF_HOME", dir + "/hf", "of HF_HOME"}, {"HF_TOKEN_PATH", dir + "/file", "of a file"},
		{"HF_TOKEN", "of the environment", "of the environment"},
	} {
		t.Setenv(step.key, step.value)
		if h := Hub(); h.Token != step.token {
			t.Errorf("%s: got %q, want %q", step.key, h.Token, step.token)
		}
	}
	t.Setenv("HF_ENDPOINT", "https://hub.example")
	if h := Hub(); h.Endpoint != "https://hub.example" {
		t.Errorf("endpoint %q", h.Endpoint)
	}
}
