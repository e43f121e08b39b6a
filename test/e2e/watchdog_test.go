package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/contrib/systemd"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// Requests FIFREEZE and FITHAW.
// https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/fs.h
const (
	fsFreeze = 0xc0045877 // _IOWR('X', 119, int)
	fsThaw   = 0xc0045878 // _IOWR('X', 120, int)
)

// freezable mounts a new ext4 file system at a directory. freeze makes its writers wait until thaw.
func freezable(t *testing.T, dir string) (freeze, thaw func()) {
	t.Helper()
	ext4(t, dir)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	request := func(r uint) error { return unix.IoctlSetInt(int(f.Fd()), r, 0) }
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	do := func(r uint) func() {
		return func() {
			t.Cleanup(func() { _ = request(fsThaw) }) // for processes that are ended and wait; fails if it is not frozen
			if err := request(r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return do(fsFreeze), do(fsThaw)
}

// TestWatchdog freezes the file system of a daemon's root during a write: systemd, to which the daemon has
// said that it works until then, kills it and starts it again. A SIGHUP does not end it.
func TestWatchdog(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(132, 1<<20))))
	lib := filepath.Join(n.Dir, "guest", "lib")
	if err := os.MkdirAll(lib, 0o755); err != nil {
		t.Fatal(err)
	}
	freeze, thaw := freezable(t, lib)
	g := startGuest(t, n, "[fetch]\nreserve = \"64MiB\"\n", "WatchdogSec=20\n")
	g.ballast("prefetch", ref)
	pid := g.show(systemd.Service, "MainPID")
	if pids := g.show(systemd.Holder, "MainPID"); pid == "0" || pids == "0" {
		t.Fatalf("processes %s and %s", pid, pids)
	}

	g.systemctl("kill", "-s", "HUP", systemd.Service, systemd.Holder)
	var said string
	for range 2 { // times that the daemon says that it works
		waitFor(t, "the daemon to say that it works", func() error {
			now := g.show(systemd.Service, "WatchdogTimestampMonotonic")
			if now == said {
				return fmt.Errorf("the last time is %s", now)
			}
			said = now
			return nil
		})
	}
	if now := g.show(systemd.Service, "MainPID"); now != pid || g.show(systemd.Service, "NRestarts") != "0" || g.show(systemd.Holder, "NRestarts") != "0" {
		t.Fatalf("the daemon was process %s and is %s", pid, now)
	}
	wantLog := func(text string) {
		t.Helper()
		waitFor(t, "a line in the log", func() error {
			p, err := os.ReadFile(g.log)
			if err == nil && !strings.Contains(string(p), text) {
				err = fmt.Errorf("it does not say %q", text)
			}
			return err
		})
	}
	wantLog("SIGHUP is ignored")

	freeze()
	go g.run(node.Binary(t, "ballast"), "unpin", ref) // waits, and fails with the daemon
	wantLog("SIGABRT: abort")                         // by systemd
	thaw()
	waitFor(t, "another daemon", func() error {
		if now := g.show(systemd.Service, "MainPID"); now == pid || now == "0" {
			return fmt.Errorf("process %s", now)
		}
		return nil
	})
	g.awaitDaemon()
	wantLog("the daemon hangs")
}
