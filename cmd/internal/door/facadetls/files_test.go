package facadetls

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnreadableAuthority: a CA that cannot be read at the moment is not lost, and the current certificates stay valid. A
// daemon that starts has none, and replaces it.
func TestUnreadableAuthority(t *testing.T) {
	n := newNode(t)
	was, good := n.read(t), n.client(t)
	if err := os.Chmod(authorityFile(n.root), 0); err != nil {
		t.Fatal(err)
	}
	if err := unprivileged(t, n.Renew); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v", err)
	}
	if err := n.ask(t, good.config, "127.0.0.1"); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(authorityFile(n.root), secretMode); err != nil {
		t.Fatal(err)
	}
	n.renew(t)
	for name, p := range n.read(t) {
		if was[name] != p {
			t.Errorf("%s was replaced", name)
		}
	}
	if err := os.Chmod(authorityFile(n.root), 0); err != nil {
		t.Fatal(err)
	}
	err := unprivileged(t, func() (err error) {
		n.Keys, err = Open(n.root, n.options())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.ask(t, n.client(t).config, "127.0.0.1"); err != nil || n.ask(t, good.config, "127.0.0.1") == nil {
		t.Errorf("after a start: %v, or the old key still opens", err)
	}
}

// unprivileged calls do in a thread that cannot read all files.
func unprivileged(t *testing.T, do func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&head, &caps[0])
		if err == nil {
			caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
			err = unix.Capset(&head, &caps[0])
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}
