package serve_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/door/serve"
	"github.com/containerd/errdefs"
)

// TestGroup makes a socket that only root and a group can open, and none where others could replace it.
func TestGroup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	path, gid := filepath.Join(dir, "s"), os.Getegid()
	l, err := serve.Group(path, gid)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{dir: 0o750, path: 0o660} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want || int(info.Sys().(*syscall.Stat_t).Gid) != gid {
			t.Errorf("%s has mode %o, want %o of group %d", name, got, want, gid)
		}
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if _, err := serve.Group(path, gid); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a directory that the group can change: %v", err)
	}
	other := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), other); err != nil {
		t.Fatal(err)
	}
	if _, err := serve.Group(filepath.Join(other, "s"), gid); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a link as directory: %v", err)
	}
}
