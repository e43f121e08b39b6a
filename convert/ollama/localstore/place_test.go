package localstore

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSplit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a:b")
	if err := os.MkdirAll(filepath.Join(dir, "blobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string][2]string{
		"x:1b":                         {"", "x:1b"},
		"localhost:5000/me/x:1b":       {"", "localhost:5000/me/x:1b"},
		"/none:x:1b":                   {"/none", "x:1b"},
		dir + ":x:1b":                  {dir, "x:1b"},
		dir + ":localhost:5000/me/x:1": {dir, "localhost:5000/me/x:1"},
		"./models:x":                   {"./models", "x"},
		"/none":                        {"/none", ""},
	} {
		if d, m := split(in); d != want[0] || m != want[1] {
			t.Errorf("%s: got %q, %q", in, d, m)
		}
	}
}
