package lazy

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStoppedMountIsHidden stops a daemon whose mount has a waiting reader: nothing is mounted at the directory, so
// programs that look into all mounts do not wait there. The next daemon mounts the same file system there again, and
// the reader goes on.
func TestStoppedMountIsHidden(t *testing.T) {
	p := newPlace(t)
	file := p.add(t, 1, 1<<20, 0)
	d := startDaemon(t, p.args()...)
	f := open(t, p.path(file))
	done := make(chan error, 1)
	go func() { done <- readAt(f, 1, 0, 1<<20) }()
	for range 2 {
		eventually(t, "a read waits", func() bool { return d.stats().Waiting > 0 })
		before, ok, err := findMount(p.mount())
		if err != nil || !ok {
			t.Fatalf("the daemon has no mount: %v", err)
		}
		d.tell("close")
		if m, ok, err := findMount(p.mount()); err != nil || ok {
			t.Fatalf("a stopped daemon leaves %+v mounted, %v", m, err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(p.mount(), &st); err != nil || st.Type == unix.FUSE_SUPER_MAGIC {
			t.Errorf("statfs: type %x, %v", st.Type, err)
		}
		if names, err := os.ReadDir(p.mount()); err != nil || len(names) != 0 {
			t.Errorf("in the directory: %v, %v", names, err)
		}
		if err := os.Remove(p.mount()); err != nil { // as an operator may
			t.Error(err)
		}
		d = startDaemon(t, p.args()...)
		if after, ok, err := findMount(p.mount()); err != nil || !ok || after.dev != before.dev {
			t.Fatalf("mounted again: %+v, %v, want the device of %+v", after, err, before)
		}
		if s := d.stats(); s.Takeovers != 1 {
			t.Fatalf("%+v\n%s", s, d.log)
		}
	}
	p.set(t, file, ".have", 1<<20)
	if err := <-done; err != nil {
		t.Error(err)
	}
	d.tell("unmount")
	if _, ok, err := findMount(p.mount()); err != nil || ok {
		t.Errorf("unmounted: %v, %v", ok, err)
	}
}
