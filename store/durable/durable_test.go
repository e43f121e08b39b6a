package durable

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWriteFile replaces a file with a permissive mode and a temporary file of a crash, with a umask.
func TestWriteFile(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, p := range []string{path, path + freshSuffix} {
		if err := os.WriteFile(p, []byte("what is much longer than the new content"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	keep := filepath.Join(dir, "keep")
	if err := os.Link(path, keep); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "new" {
		t.Errorf("got %q, %v", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("got mode %v, %v, want 0644", info.Mode(), err)
	}
	if got, err := os.ReadFile(keep); err != nil || string(got) == "new" {
		t.Errorf("the old file was written to: %q, %v", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("got %v, %v, want f and keep", left, err)
	}
}

// TestWriteFileFails checks that an error leaves the old file and no temporary file.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "f", "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "f"), []byte("new"), 0o644); err == nil {
		t.Fatal("a directory was replaced")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("got %v, %v, want the directory alone", left, err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "f"), nil, 0o644); !os.IsNotExist(err) {
		t.Errorf("without a directory: %v", err)
	}
}
