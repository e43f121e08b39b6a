package containerdversion

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadFile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want File
	}{
		"format 2":                {"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n", File{2, true}},
		"format 2 of later nodes": {"version = 2\n[plugins.'io.containerd.cri.v1.images']\n", File{2, false}},
		"format 4":                {"# version = 2\nversion = 4\nimports = []\n", File{4, false}},
		"nothing":                 {"", File{}},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadFile(path); err != nil || got != tt.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tt.want)
		}
	}
	if got, err := ReadFile(filepath.Join(t.TempDir(), "none")); err != nil || got != (File{}) {
		t.Errorf("no file: got %+v, %v, want nothing", got, err)
	}
	broken := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(broken, []byte("version ="), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFile(broken); err == nil {
		t.Errorf("broken file: got %+v, want an error", got)
	}
}

// TestDropIn has the combinations that the end-to-end tests have run.
func TestDropIn(t *testing.T) {
	for _, tt := range []struct {
		v          Version
		main, want File
	}{
		{Version{1, 7}, File{}, File{2, true}},
		{Version{1, 7}, File{2, true}, File{2, true}},
		{Version{2, 0}, File{}, File{3, false}},
		{Version{2, 2}, File{3, false}, File{3, false}},
		{Version{2, 2}, File{2, true}, File{2, true}},
		{Version{2, 2}, File{2, false}, File{2, false}},
		{Version{2, 3}, File{2, true}, File{3, false}},
		{Version{2, 4}, File{4, false}, File{3, false}},
	} {
		if got := tt.v.DropIn(tt.main); got != tt.want {
			t.Errorf("%v, main file %+v: got %+v, want %+v", tt.v, tt.main, got, tt.want)
		}
	}
}
