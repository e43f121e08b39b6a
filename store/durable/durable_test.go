package durable

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// TestOthersKeepTheirFiles keeps the file that an editor or a person has put beside the written one, and the owner of a
// file that is written for them.
func TestOthersKeepTheirFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path+".new", []byte("a draft"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CopyFile(path, strings.NewReader("text"), 0o640, 33, 12); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path + ".new"); err != nil || string(got) != "a draft" {
		t.Errorf("the draft: %q, %v", got, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 33 || stat.Gid != 12 || info.Mode() != 0o640 {
		t.Errorf("owner %d:%d, mode %v", stat.Uid, stat.Gid, info.Mode())
	}
	if err := os.WriteFile(path+freshSuffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if !Unfinished(path+freshSuffix) || Unfinished(path+".new") {
		t.Error("the draft, and not what a crash has left, looks unfinished")
	}
	for range 2 {
		if err := Sweep(path); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("got %v, %v, want f and its draft", left, err)
	}
}

// TestSweepReadOnly sweeps where nothing is left and nothing can be removed.
func TestSweepReadOnly(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := Sweep(filepath.Join(dir, "f")); err != nil {
		t.Error(err)
	}
}
