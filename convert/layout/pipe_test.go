package layout

import (
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// TestPipes checks that a pipe in place of a file is refused: opening it would wait for a writer.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	l, err := Create(dir, "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := digest.FromString("x")
	for _, name := range []string{"index.json", blobPath(d)} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(dir, "v1"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("index.json: got %v", err)
	}
	if _, _, err := l.Fetch(t.Context(), d, 1, 0, 1); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a blob: got %v", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := openDir(pipe, "v1"); err == nil {
		t.Error("a pipe is a directory")
	}
}
