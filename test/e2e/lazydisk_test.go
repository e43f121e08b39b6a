package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// smallRoot mounts a file system of the given size in bytes as a node's root.
func smallRoot(t *testing.T, n *node.Node, size int) {
	t.Helper()
	n.Ballastd.Stop(t) // which unmounts the lazy mount
	if err := unix.Mount("tmpfs", n.Root(), "tmpfs", 0, fmt.Sprintf("mode=711,size=%d", size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.Root(), unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", n.Root(), err)
		}
	})
	n.StartBallastd(t)
}

// fill uses up the free space of a file system, and returns a function that frees it.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for p := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(p)
	}
	if closed := f.Close(); !errors.Is(err, syscall.ENOSPC) || closed != nil {
		t.Fatal(err, closed)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// The disk is full before the model is complete: present bytes can be read, reads of missing bytes fail
// with an error that the log explains, and the model becomes complete when there is space again.
func TestLazyDiskFull(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[fetch]\nreserve = \"1MiB\"\n" + slowBackground})
	smallRoot(t, n, 160<<20)
	m := mountLazy(t, n, 96<<20, 6<<20)
	if err := m.read(0, 1<<20); err != nil {
		t.Fatal(err)
	}
	free := fill(t, n.Root())
	if err := m.read(90<<20, 4096); !errors.Is(err, syscall.EIO) {
		t.Errorf("missing bytes: got %v, want EIO", err)
	}
	if err := m.read(4096, 4096); err != nil {
		t.Errorf("bytes that are there: %v", err)
	}
	if !logged(t, n, "level=ERROR", "stay in reserve") {
		t.Error("the log does not say why")
	}
	if m.complete() {
		t.Error("the model was complete before the disk was full; the test proves nothing")
	}
	free()
	if err := m.read(80<<20, 4096); err != nil {
		t.Errorf("with space again: %v", err)
	}
	m.readAll(t)
	wantFiles(t, n, m.ref, states(converttest.ModelPackRaw(converttest.Files(m.want))))
}

// A pod reads a model in a volume before it is complete, while the daemon is restarted, and afterwards.
func TestLazyVolume(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Config: slowBackground})
	b := converttest.ModelPackRaw(converttest.Files(weights(161, 96<<20)))
	m := &lazyModel{node: n, want: b.Files["model.gguf"].Data, ref: convertedModel(t, n, b)}
	n.Registry.Wire.Link(6<<20, 5*time.Millisecond)
	model, err := cri.Pull(m.ref, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: model, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	read := func(when string, off int) {
		t.Helper()
		// The output of Exec is text.
		out, err := cri.Exec(c, "/bin/busybox", "sh", "-c",
			fmt.Sprintf("/bin/busybox dd if=/model/model.gguf bs=4096 skip=%d count=1 2>/dev/null | /bin/busybox sha256sum", off/4096))
		if want := sum(m.want[off:][:4096]); err != nil || !strings.HasPrefix(out, want) {
			t.Errorf("%s: got %q, %v, want %s", when, out, err, want)
		}
	}
	read("before it is complete", 80<<20)
	n.Ballastd.Stop(t)
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		read("asked for while the daemon is away", 64<<20)
	}()
	time.Sleep(300 * time.Millisecond) // so that the read is requested
	n.LaunchBallastd(t)
	<-waited
	n.Ballastd.Kill()
	n.LaunchBallastd(t)
	read("after the daemon was killed", 88<<20)
	if m.complete() {
		t.Error("the model was complete too early; the test proves little")
	}
	n.Registry.Wire.Link(0, 0)
	wantVolume(t, cri, c, "/model", states(b)) // loads all of it
	waitFor(t, "the model to be complete", func() error {
		if !m.complete() {
			return errors.New("it is not")
		}
		return nil
	})
	wantVolume(t, cri, c, "/model", states(b))
	if log, err := os.ReadFile(n.Ballastd.Log); err != nil || bytes.Contains(log, []byte("no registry is known")) {
		t.Errorf("a restart forgot where to fetch from (%v)", err)
	}
}

// sum is the sha256 of p in hex.
func sum(p []byte) string { return digest.FromBytes(p).Encoded() }
