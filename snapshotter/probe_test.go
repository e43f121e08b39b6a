package snapshotter

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestProbe(t *testing.T) {
	n := newNode(t, Auto)
	dir := t.TempDir()
	if a := Probe(dir, n.store.ObjectsDir()); a.Stubs != nil || a.Links != nil {
		t.Errorf("got %v, want both backends", a)
	}
	if empty, err := emptyDir(dir); err != nil || !empty {
		t.Errorf("probing left something: %v, %v", empty, err)
	}
	other := t.TempDir()
	if err := unix.Mount("tmpfs", other, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(other, 0); err != nil {
			t.Error(err)
		}
	})
	if a := Probe(other, n.store.ObjectsDir()); !errors.Is(a.Links, unix.EXDEV) {
		t.Errorf("on another file system: got %v, want %v", a.Links, unix.EXDEV)
	}
	if _, err := New(filepath.Join(other, "s"), n.store, Options{Show: tree.Links}); !errdefs.IsNotImplemented(err) {
		t.Errorf("links on another file system: got %v, want not implemented", err)
	}
	if a := Probe(filepath.Join(dir, "missing"), n.store.ObjectsDir()); a.Stubs == nil || a.Links == nil {
		t.Errorf("in a directory that does not exist: got %v, want two errors", a)
	}
	if _, err := New(t.TempDir(), n.store, Options{Show: "magic"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unknown way: got %v, want invalid argument", err)
	}
	if _, err := (Abilities{Stubs: unix.EPERM, Links: unix.EXDEV}).best(); !errors.Is(err, unix.EPERM) || !errors.Is(err, unix.EXDEV) {
		t.Errorf("neither: got %v, want both reasons", err)
	}
	if got, err := (Abilities{Stubs: unix.EPERM}).best(); got != tree.Links || err != nil {
		t.Errorf("no stubs: got %v, %v, want %v", got, err, tree.Links)
	}
}
