package lazy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// idmap does what containerd does before it mounts layers below the root for a user namespace.
func (p place) idmap(t *testing.T) error {
	t.Helper()
	users, err := mount.GetUsernsFD("0:100000:65536", "0:100000:65536")
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	dir := t.TempDir()
	if err := mount.IDMapMountWithAttrs(p.dir, dir, int(users.Fd()), unix.MOUNT_ATTR_RDONLY, 0); err != nil {
		return err
	}
	return mount.UnmountRecursive(dir, 0)
}

// wantAt checks where the mount is: once.
func (p place) wantAt(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{p.mount(), p.apart()} {
		if _, ok, err := findMount(d); err != nil || ok != (d == dir) {
			t.Errorf("mounted at %s: %t, %v", d, ok, err)
		}
	}
}

// at returns where a file is in a mount.
func at(dir string, d digest.Digest) string { return filepath.Join(dir, store.ObjectName(d)) }

// TestPlaces mounts below the root if the mount can be id-mapped, as containerd requires, and otherwise
// apart, so that containerd can map everything else.
func TestPlaces(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want func(place) string
	}{
		"id-mapped":     {nil, place.mount},
		"not id-mapped": {[]string{"--no-idmap"}, place.apart},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			file := p.add(t, 1, 1<<20, 1<<20)
			args := p.args(append(test.args, "--apart", p.apart())...)
			d := startDaemon(t, args...)
			for takeovers := range int64(2) {
				p.wantAt(t, test.want(p))
				if err := readOnce(at(test.want(p), file), 1, false); err != nil {
					t.Error(err)
				}
				if err := p.idmap(t); err != nil {
					t.Errorf("the root cannot be id-mapped: %v", err)
				}
				if s := d.stats(); s.Takeovers != takeovers {
					t.Errorf("%d takeovers, want %d\n%s", s.Takeovers, takeovers, d.log)
				}
				d.kill()
				d = startDaemon(t, args...)
			}
			d.kill()
			was, err := Detach(Options{Dir: p.mount(), Apart: p.apart(), StateDir: filepath.Join(p.dir, "lazy.state"), Holder: fdstore.Options{Socket: p.socket}})
			if err != nil || !was {
				t.Errorf("detach: %t, %v", was, err)
			}
			p.wantAt(t, "")
		})
	}
}

// TestDetachCopiedNamespace checks that the holder ends, and with it the connection, while a process has a
// copy of the mount namespace, in which the mount stays. The clean-up of newPlace waits for the end of the
// holder.
func TestDetachCopiedNamespace(t *testing.T) {
	var copied *exec.Cmd
	t.Cleanup(func() {
		_ = copied.Process.Kill()
		_ = copied.Wait()
	})
	t.Run("place", func(t *testing.T) {
		p := newPlace(t)
		startDaemon(t, p.args()...)
		copied = exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "infinity")
		if err := copied.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the copy has the mount", func() bool {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", copied.Process.Pid))
			mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", copied.Process.Pid))
			return err == nil && string(comm) == "sleep\n" && strings.Contains(string(mounts), p.mount())
		})
	})
}

// TestMoveInterrupted starts after a process that ended while it moved its new mount, before it described it.
func TestMoveInterrupted(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	args := p.args("--no-idmap", "--apart", p.apart())
	startDaemon(t, args...).kill()
	if err := os.RemoveAll(filepath.Join(p.dir, "lazy.state")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(p.apart(), p.mount(), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	startDaemon(t, args...)
	p.wantAt(t, p.apart())
	if err := readOnce(at(p.apart(), file), 1, false); err != nil {
		t.Error(err)
	}
}

// TestStateOfAnotherRoot starts on a copy of a root with the state of a mount, which is neither taken
// over nor changed.
func TestStateOfAnotherRoot(t *testing.T) {
	p, q := newPlace(t), newPlace(t)
	file := p.add(t, 1, 1<<20, 1<<20)
	d := startDaemon(t, p.args("--no-idmap", "--apart", p.apart())...)
	if err := os.CopyFS(filepath.Join(q.dir, "lazy.state"), os.DirFS(filepath.Join(p.dir, "lazy.state"))); err != nil {
		t.Fatal(err)
	}
	other := startDaemon(t, q.args()...)
	if s := other.stats(); s.Takeovers != 0 {
		t.Errorf("taken over: %+v\n%s", s, other.log)
	}
	p.wantAt(t, p.apart())
	if err := readOnce(at(p.apart(), file), 1, false); err != nil {
		t.Error(err)
	}
	if s := d.stats(); s.Reads == 0 {
		t.Error("the first daemon was not asked")
	}
}
