package lazy

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// overlay mounts stubs of files over the objects and the lazy mount, as for a snapshot.
func (p place) overlay(t *testing.T, name string, files map[string]digest.Digest) string {
	t.Helper()
	low, dir := filepath.Join(p.dir, name+".stubs"), filepath.Join(p.dir, name)
	for _, d := range []string{low, dir, filepath.Join(p.dir, "objects")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, d := range files {
		path := filepath.Join(low, file)
		size, _, err := p.LazyFile(0, d)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			os.WriteFile(path, nil, 0o640),
			os.Truncate(path, size),
			unix.Setxattr(path, "trusted.overlay.metacopy", nil, 0),
			unix.Setxattr(path, "trusted.overlay.redirect", []byte("/"+store.ObjectName(d)), 0),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	options := fmt.Sprintf("metacopy=on,redirect_dir=on,lowerdir=%s::%s::%s", low, filepath.Join(p.dir, "objects"), p.mount())
	if err := unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestOverlay reads through the mounts of containers, also while a file becomes complete.
func TestOverlay(t *testing.T) {
	const size = 6 << 20
	p := newPlace(t)
	lazy, moved, whole := p.add(t, 1, size, size), p.add(t, 2, size, size), p.add(t, 3, size, size)
	p.complete(t, whole)
	d := startDaemon(t, p.args()...)
	files := map[string]digest.Digest{"lazy": lazy, "moved": moved, "whole": whole}
	dir := p.overlay(t, "a", files)
	for seed, name := range []string{1: "lazy", 2: "moved", 3: "whole"} {
		if name == "" {
			continue
		}
		if err := readOnce(filepath.Join(dir, name), uint64(seed), false); err != nil {
			t.Error(err)
		}
	}
	if s := d.stats(); s.Opens != 2 { // whole was never opened here
		t.Errorf("%+v", s)
	}
	if info, err := os.Stat(filepath.Join(dir, "lazy")); err != nil || info.Mode() != 0o640 || info.Size() != size {
		t.Errorf("%v, %v", info, err)
	}

	open, err := os.Open(filepath.Join(dir, "moved"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	p.complete(t, moved)
	if err := unix.Fadvise(int(open.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	before := d.stats()
	if err := readAt(open, 2, 0, size); err != nil { // an earlier handle
		t.Error(err)
	}
	if s := d.stats(); s.ObjectReads == before.ObjectReads || s.ReadErrors != 0 {
		t.Errorf("not read from the object: %+v", s)
	}
	r := startReader(t, filepath.Join(dir, "moved"), 2, true)
	eventually(t, "the reader opens", func() bool { return d.stats().Opens > before.Opens })
	r.finish(t)

	// A mount made now finds the object, and does not need the daemon.
	fresh := p.overlay(t, "b", map[string]digest.Digest{"moved": moved})
	opens := d.stats().Opens
	if err := readOnce(filepath.Join(fresh, "moved"), 2, false); err != nil {
		t.Error(err)
	}
	if s := d.stats(); s.Opens != opens {
		t.Errorf("opened through the daemon: %+v", s)
	}
	d.tell("unmount")
	if err := readOnce(filepath.Join(fresh, "moved"), 2, false); err != nil {
		t.Errorf("after the daemon: %v", err)
	}
}

// TestUserNamespace reads as another user in a user and mount namespace.
func TestUserNamespace(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	for dir := p.dir; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d := startDaemon(t, p.args()...)
	r := &reader{}
	r.start(t, p.path(file), 1, false, &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1000}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 1000}},
	})
	eventually(t, "the reader reads", func() bool { return d.stats().Reads > 0 })
	if n := r.finish(t); n == 0 {
		t.Error("nothing read")
	}
	d.tell("unmount")
}
