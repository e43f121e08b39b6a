package clients

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// A nerdctl runs nerdctl on a node.
type nerdctl struct {
	t     *testing.T
	n     *node.Node
	flags []string
	env   []string // besides that of the node
}

func newNerdctl(t *testing.T, n *node.Node, snapshotter string) *nerdctl {
	return &nerdctl{t: t, n: n, flags: []string{tool(t, "nerdctl"), "--address", n.Socket(), "--snapshotter", snapshotter, "--hosts-dir", n.HostsDir(),
		"--data-root", filepath.Join(n.Dir, "nerdctl"), "--cni-path", filepath.Join(n.Dir, "cni"), "--cni-netconfpath", filepath.Join(n.Dir, "nerdctl-cni"),
		"--cgroup-manager", "cgroupfs"}}
}

// run runs nerdctl, which must succeed.
func (c *nerdctl) run(args ...string) string {
	c.t.Helper()
	return run(c.t, append(c.n.Env(), c.env...), append(append([]string{}, c.flags...), args...)...)
}

// container runs a container without a network.
func (c *nerdctl) container(args ...string) string {
	c.t.Helper()
	return c.run(append([]string{"run", "--net", "none"}, args...)...)
}

// files returns the digests of the files of a container whose root is a model without a shell.
func (c *nerdctl) files(ref string) map[string]string {
	c.t.Helper()
	const shell = "/.bin/busybox"
	out := c.container("--rm", "--volume", node.BusyboxPath+":"+shell+":ro", "--env", "B="+shell, "--entrypoint", shell, ref,
		"sh", "-c", `$B find / \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /etc -o -path /.bin \) -prune -o -type f -print | $B xargs $B sha256sum`)
	return listed(out, "")
}

// TestNerdctlModels pulls models of all formats and reads them in containers.
func TestNerdctlModels(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	c := newNerdctl(t, n, "ballast")
	for _, b := range models() {
		ref := push(t, n, b)
		c.run("pull", "--quiet", ref)
		same(t, b.Name, c.files(ref), sums(b))
	}
	// All images are listed, and can be removed.
	images := c.run("images", "--quiet", "--no-trunc")
	if got, want := len(strings.Fields(images)), len(models()); got != want {
		t.Errorf("%d images, want %d:\n%s", got, want, images)
	}
	for _, b := range models() {
		c.run("rmi", n.Registry.Ref("models/"+b.Name, "1"))
	}
	if got := c.run("images", "--quiet"); got != "" {
		t.Errorf("images that are left: %q", got)
	}
}

// TestNerdctlImages uses an ordinary image as people do, with overlayfs and with ballast.
func TestNerdctlImages(t *testing.T) {
	both(t, func(t *testing.T, n *node.Node, snapshotter string) {
		c := newNerdctl(t, n, snapshotter)
		busybox := n.Registry.Ref("busybox", "1")
		c.run("pull", "--quiet", busybox)
		c.container("--detach", "--name", "one", busybox)
		c.run("exec", "one", "sh", "-c", "echo new > /data/file && rm /data/kept")
		mine := n.Registry.Ref("mine", "1")
		c.run("commit", "one", mine)
		c.run("rm", "--force", "one")
		check := func(what, ref string) {
			t.Helper()
			got := c.container("--rm", ref, "sh", "-c", "cat /data/file; ls /data")
			if want := "new\nchanged\ndir\nfile\n"; got != want {
				t.Errorf("%s: got %q, want %q", what, got, want)
			}
		}
		check("committed", mine)
		file := filepath.Join(n.Dir, "mine.tar")
		c.run("save", "--output", file, mine)
		c.run("push", "--quiet", mine)
		c.run("rmi", mine)
		c.run("load", "--input", file)
		check("saved and loaded", mine)
		c.run("rmi", mine)
		c.run("pull", "--quiet", mine)
		check("pushed and pulled", mine)
		c.run("rmi", mine, busybox)
		if got := c.run("images", "--all", "--names"); strings.Contains(got, n.Registry.Host) {
			t.Errorf("images that are left:\n%s", got)
		}
	})
}

// TestNerdctlSaveModel saves a model, for which nerdctl fetches its blobs, and loads it.
func TestNerdctlSaveModel(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	c := newNerdctl(t, n, "ballast")
	b := models()[0]
	ref, file := push(t, n, b), filepath.Join(n.Dir, "model.tar")
	c.run("pull", "--quiet", ref)
	c.run("save", "--output", file, ref)
	c.run("rmi", ref)
	c.run("load", "--input", file)
	same(t, "saved and loaded", c.files(ref), sums(b))
}

// TestExport checks that "ctr images export" of a model whose blobs containerd does not have fails and
// names a missing blob, and that after "ctr content fetch" another node imports what it writes. Without
// --local, ctr of containerd 2.4 often ends before the archive is complete, with exit code 0.
func TestExport(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := models()[0]
	ref, file := push(t, n, b), filepath.Join(n.Dir, "model.tar")
	if out := n.Pull("ballast", ref); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	if out := n.Ctr("images", "export", file, ref); out.Err == nil || !strings.Contains(out.Output(), "not found") {
		t.Errorf("export: got %v, want what is not found: %s", out.Err, out.Output())
	}
	elsewhere := node.StartRegistry(t, t.TempDir())
	other := elsewhere.Ref("copied/model", "1")
	if out := n.Ctr("images", "tag", ref, other); out.Err != nil {
		t.Fatal(out.Output())
	}
	if out := n.Ctr("images", "push", "--plain-http", other); out.Err == nil || !strings.Contains(out.Output(), "not found") {
		t.Errorf("push to another registry: got %v, want what is not found: %s", out.Err, out.Output())
	}
	if out := n.Ballast("convert", ref, other, "--no-chunks"); out.Err != nil {
		t.Errorf("convert to another registry: %v\n%s", out.Err, out.Output())
	}
	must := func(n *node.Node, args ...string) {
		t.Helper()
		if out := n.Ctr(args...); out.Err != nil {
			t.Fatalf("ctr %s: %v\n%s", strings.Join(args, " "), out.Err, out.Output())
		}
	}
	must(n, "content", "fetch", "--hosts-dir", n.HostsDir(), ref)
	for range 5 {
		must(n, "images", "export", "--local", file, ref)
		second := node.StartNode(t, node.Options{})
		must(second, "images", "import", "--snapshotter", "ballast", file)
		files, err := second.List("ballast", ref, "/")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for p, f := range files {
			got[p] = f.SHA256
		}
		same(t, "exported and imported", got, sums(b))
	}
}

// TestNerdctlConvert recompresses the layers of a model, including the file table: the result is not a
// model for a node that does not have it already, so it is an error and never an empty directory.
func TestNerdctlConvert(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	c := newNerdctl(t, n, "ballast")
	ref, other := push(t, n, models()[0]), n.Registry.Ref("models/zstd", "1")
	c.run("pull", "--quiet", ref)
	if out := n.Ctr("content", "fetch", "--hosts-dir", n.HostsDir(), ref); out.Err != nil {
		t.Fatalf("ctr content fetch: %v\n%s", out.Err, out.Output())
	}
	c.run("image", "convert", "--zstd", "--oci", ref, other)
	c.run("push", "--quiet", other)
	second := node.StartNode(t, node.Options{Registry: n.Registry})
	if out := second.Pull("ballast", other); out.Err == nil || !strings.Contains(out.Output(), "failed to extract layer") {
		t.Errorf("pull on another node: got %v, want a layer that cannot be extracted\n%s", out.Err, out.Output())
	}
}
