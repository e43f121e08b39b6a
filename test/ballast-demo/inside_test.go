package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCheckSums compares files with a list, except for those that are mounted.
func TestCheckSums(t *testing.T) {
	const hi = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4" // of "hi"
	for name, tt := range map[string]struct {
		files map[string]string
		list  string
		want  string
		fails bool
	}{
		"good":      {map[string]string{"a": "hi", "b/c": "hi"}, hi + "  a\n" + hi + "  b/c\n", "a: OK\nb/c: OK\n", false},
		"changed":   {map[string]string{"a": "ho"}, hi + "  a\n", "a: FAILED\n", true},
		"more":      {map[string]string{"a": "hi", "b/c": "hi"}, hi + "  a\n", "a: OK\nb/c: not in the list\n", true},
		"missing":   {map[string]string{"a": "hi"}, hi + "  b\n", "", true},
		"no list":   {map[string]string{}, "", "", true},
		"not a sum": {map[string]string{"a": "hi"}, "a\n", "", true},
	} {
		root := t.TempDir()
		for path, text := range tt.files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		mount(t, filepath.Join(root, ".sums"), tt.list)
		var out strings.Builder
		err := checkSums(&out, root, filepath.Join(root, ".sums/SHA256SUMS"))
		if out.String() != tt.want || (err != nil) != tt.fails {
			t.Errorf("%s: got %q, %v, want %q", name, out.String(), err, tt.want)
		}
	}
}

// mount mounts a file system with a list.
func mount(t *testing.T, dir, list string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
}
