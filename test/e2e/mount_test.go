package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// wantHostFiles compares the files that a process of the host sees below dir.
func wantHostFiles(t *testing.T, dir string, b *converttest.Built) {
	t.Helper()
	got := map[string]node.FileState{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		p, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		got[rel] = state(converttest.File{Data: p, Mode: uint32(info.Mode().Perm())})
		return err
	})
	if err != nil {
		t.Errorf("files below %s: %v", dir, err)
	}
	for path, want := range states(b) {
		if got[path] != want {
			t.Errorf("%s/%s: got %+v, want %+v", dir, path, got[path], want)
		}
	}
}

// TestHostMount reads a model on the host without a container: also after the daemon was killed, and
// after the model has lost its name and its pin. After the unmount the model is removed.
func TestHostMount(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(90, 12<<20)
	b := converttest.ModelPackRaw(converttest.Files(w))
	ref := push(t, n, b)
	ballast(t, n, "prefetch", ref)
	dir := filepath.Join(n.Dir, "models of mine")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := ballast(t, n, "mount", ref, dir); got != dir+"\n" {
		t.Errorf("mount prints %q", got)
	}
	own := strings.TrimSpace(ballast(t, n, "path", ref))
	if again := strings.TrimSpace(ballast(t, n, "path", ref)); again != own || own == dir {
		t.Errorf("path prints %q, then %q", own, again)
	}
	if mounts, err := n.Mounts(); err != nil || len(slices.DeleteFunc(mounts, func(m string) bool { return m != own })) != 1 {
		t.Errorf("not mounted once at %s: %v", own, err)
	}
	ballast(t, n, "unpin", ref)
	ballast(t, n, "rm", ref)
	n.Ballastd.Kill()
	wantHostFiles(t, dir, b)
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v", err)
	}
	cat := exec.Command("cat", filepath.Join(dir, "model.gguf"))
	cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if p, err := cat.Output(); err != nil || !bytes.Equal(p, w) {
		t.Errorf("another user, without the daemon: %v, or other bytes", err)
	}
	n.StartBallastd(t)
	ballast(t, n, "gc", "--yes")
	if err := unix.Unmount(own, 0); err != nil { // without ballastd
		t.Fatal(err)
	}
	if out := ballast(t, n, "mount", "ls"); !strings.Contains(out, "not mounted\n") || !strings.Contains(out, "  mounted\n") {
		t.Errorf("list of mounts:\n%s", out)
	}
	ballast(t, n, "unmount", own)
	ballast(t, n, "gc", "--yes")
	wantHostFiles(t, dir, b)
	if _, err := os.Stat(object(n, digest.FromBytes(w))); err != nil {
		t.Errorf("the model was collected while it was mounted: %v", err)
	}
	ballast(t, n, "unmount", dir)
	wantError(t, n.Ballast("unmount", dir), "no model is mounted")
	ballast(t, n, "gc", "--yes")
	if _, err := os.Stat(object(n, digest.FromBytes(w))); err == nil {
		t.Error("the model is there after the unmount")
	}
}

// TestHostMountCollected runs containerd's garbage collection, which must keep host mounts.
func TestHostMountCollected(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(94, 1<<20)))
	ref := push(t, n, b)
	ballast(t, n, "prefetch", "--no-pin", ref)
	dir := t.TempDir()
	ballast(t, n, "mount", ref, dir)
	other := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(91, 1<<20))))
	mustPull(t, n, "ballast", other)
	if out := n.Ctr("images", "rm", "--sync", other); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	ballast(t, n, "gc", "--yes")
	if out := ballast(t, n, "mount", "ls", "-q"); out != dir+"\n" {
		t.Errorf("mounts: %q", out)
	}
	wantHostFiles(t, dir, b)
	ballast(t, n, "unmount", dir)
}

// TestHostMountRefused checks that nothing is mounted over something else, and no model that cannot be
// read yet.
func TestHostMountRefused(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(92, 1<<20))))
	dir := t.TempDir()
	wantError(t, n.Ballast("mount", ref, dir), "not complete", "download it first: ballast prefetch "+ref)
	ballast(t, n, "prefetch", ref)
	wantError(t, n.Ballast("mount", ref, n.Dir), "not empty")
	wantError(t, n.Ballast("mount", ref, filepath.Join(dir, "x")), "no such directory; make it first")
	if out := ballast(t, n, "mount", "ls", "-q"); out != "" {
		t.Errorf("mounts: %s", out)
	}
}

// TestHostMountLazy reads the end of an incomplete model, by a name that the node did not know. A read
// waits while the daemon is killed and started again.
func TestHostMountLazy(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	m := &lazyModel{node: n, want: weights(93, 32<<20)}
	m.ref = convertedModel(t, n, converttest.ModelPackRaw(converttest.Files(m.want)))
	crawl(n)
	dir := t.TempDir()
	ballast(t, n, "mount", m.ref, dir)
	m.path = filepath.Join(dir, "model.gguf")
	if err := m.read(30<<20, 4096); err != nil {
		t.Error(err)
	}
	n.Ballastd.Kill()
	read := make(chan error)
	go func() { read <- m.read(20<<20, 1<<20) }()
	n.StartBallastd(t)
	if err := <-read; err != nil {
		t.Errorf("read while the daemon was not there: %v", err)
	}
	if m.complete() {
		t.Error("the model was complete too early, the reads proved little")
	}
	m.readAll(t)
	ballast(t, n, "unmount", dir)
	if out := ballast(t, n, "mount", "ls", "-o", "json"); out != "[]\n" {
		t.Errorf("mounts that are left: %s", out)
	}
}
