package e2e

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// ways are the backends: stubs over data-only layers, and hard links.
var ways = []string{"stubs", "links"}

// showAs is a configuration with one of them.
func showAs(way string) string { return fmt.Sprintf("[snapshot]\nshow = %q\n", way) }

// weights returns size incompressible bytes, the same for the same seed.
func weights(seed byte, size int) []byte {
	p := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func artifact(b *converttest.Built) node.Artifact {
	return node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs}
}

// push pushes a model to models/<its name>:1 and returns the reference.
func push(t *testing.T, n *node.Node, b *converttest.Built) string {
	t.Helper()
	n.Registry.Push(t, "models/"+b.Name, "1", artifact(b))
	return n.Registry.Ref("models/"+b.Name, "1")
}

// states returns the files of a model as a container must see them.
func states(b *converttest.Built) map[string]node.FileState {
	m := map[string]node.FileState{}
	for _, f := range b.Files {
		m[f.Path] = state(f)
	}
	return m
}

func state(f converttest.File) node.FileState {
	return node.FileState{Mode: fmt.Sprintf("%o", f.Mode), Size: int64(len(f.Data)), SHA256: digest.FromBytes(f.Data).Encoded()}
}

// mustPull pulls with ctr and ends the test on errors.
func mustPull(t *testing.T, n *node.Node, snapshotter, ref string, flags ...string) {
	t.Helper()
	if out := n.Pull(snapshotter, ref, flags...); out.Err != nil {
		t.Fatalf("ctr images pull %s: %v\n%s", ref, out.Err, out.Output())
	}
}

// printed calls run until the output contains want, at most five times: on a busy machine ctr may end
// before it has copied all output of a container. try is different in each call.
func printed(want string, run func(try string) node.Result) (out node.Result) {
	for i := range 5 {
		if out = run(fmt.Sprint(i)); strings.Contains(out.Output(), want) {
			break
		}
	}
	return out
}

// wantFiles compares the files of a container whose root is the image.
func wantFiles(t *testing.T, n *node.Node, ref string, want map[string]node.FileState) {
	t.Helper()
	got, err := n.List("ballast", ref, "/")
	if err != nil {
		t.Errorf("container of %s: %v", ref, err)
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files of %s (-want +got):\n%s", ref, d)
	}
}

// wantVolume compares the files of a container below dir.
func wantVolume(t *testing.T, cri *node.CRI, container, dir string, want map[string]node.FileState) {
	t.Helper()
	got, err := cri.List(container, dir)
	if err != nil {
		t.Errorf("%s: %v", dir, err)
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", dir, d)
	}
}

// disk returns the disk usage of a directory, in bytes; each inode counts once.
func disk(t *testing.T, dir string) (sum int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return nil
		}
		if !seen[st.Ino] && st.Mode&unix.S_IFMT == unix.S_IFREG {
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// object returns the path of an object in the node's store.
func object(n *node.Node, d digest.Digest) string {
	return filepath.Join(n.Root(), "objects", "sha256", d.Encoded()[:2], d.Encoded())
}

// wantError checks that a command failed with an error that contains words.
func wantError(t *testing.T, out node.Result, words ...string) {
	t.Helper()
	if out.Err == nil {
		t.Fatalf("got no error, want one with %q\n%s", words, out.Output())
	}
	for _, w := range words {
		if !strings.Contains(strings.ToLower(out.Output()), strings.ToLower(w)) {
			t.Errorf("the message lacks %q:\n%s", w, out.Output())
		}
	}
}

// imageNames returns the images that containerd has.
func imageNames(t *testing.T, n *node.Node) []string {
	t.Helper()
	out := n.Ctr("images", "ls", "-q")
	if out.Err != nil {
		t.Fatalf("ctr images ls: %v\n%s", out.Err, out.Output())
	}
	return strings.Fields(out.Stdout)
}

// imageDigest returns the digest of the manifest that containerd has for an image.
func imageDigest(t *testing.T, n *node.Node, ref string) string {
	t.Helper()
	out := n.Ctr("images", "ls", "name=="+ref)
	i := strings.Index(out.Stdout, "sha256:")
	if out.Err != nil || i < 0 {
		t.Fatalf("ctr images ls: %v %s", out.Err, out.Output())
	}
	return out.Stdout[i : i+len("sha256:")+64]
}
