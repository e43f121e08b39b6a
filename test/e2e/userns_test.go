package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// private returns the files of a model whose weights only owner and group may read.
func private(w []byte) []converttest.File {
	files := converttest.Files(w)
	for i := range files {
		if files[i].Path == "model.gguf" {
			files[i].Mode = 0o640
		}
	}
	return files
}

// A userPod is a pod in a user namespace with a model as image volume at /model.
type userPod struct {
	*node.Pod
	cri  *node.CRI
	host uint32
	id   string
	mode string // of the weights: 640, which belong to user 1000, or 644, the object of root
}

// startUserPod starts a userPod whose user 0 is mapped to host.
func startUserPod(t *testing.T, cri *node.CRI, host uint32, image, model string) *userPod {
	t.Helper()
	p := &userPod{Pod: cri.RunUserPod(t, host), cri: cri, host: host, mode: "640"}
	var err error
	if p.id, err = p.Run(image, node.ImageMount{Image: model, Path: "/model"}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *userPod) sh(t *testing.T, script string) string {
	t.Helper()
	out, err := p.cri.Exec(p.id, "/bin/busybox", "sh", "-c", script)
	if err != nil {
		t.Errorf("%s: %v", script, err)
	}
	return out
}

// looks checks owners in the pod, and who can read the weights w.
func (p *userPod) looks(t *testing.T, w []byte) {
	t.Helper()
	got := p.sh(t, `cat /proc/self/uid_map | xargs echo; stat -c '%u:%g %a %n' /model /model/model.gguf /bin/busybox /data/kept
cd /model; sha256sum model.gguf
grep -q u1 /etc/passwd || echo 'u1:x:1001:1000::/:/bin/sh
u2:x:1001:1001::/:/bin/sh' >>/etc/passwd
busybox su u1 -c 'sha256sum /model/model.gguf'; busybox su u2 -c 'cat /model/model.gguf' >/dev/null 2>&1 && echo allowed || echo denied`)
	want := fmt.Sprintf(`0 %d 65536
0:0 755 /model
%s /model/model.gguf
0:0 755 /bin/busybox
0:0 4755 /data/kept
%s  model.gguf
%s  /model/model.gguf
%s
`, p.host, p.attributes(), sum(w), sum(w), map[string]string{"640": "denied", "644": "allowed"}[p.mode])
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("pod of users from %d (-got +want):\n%s", p.host, diff)
	}
}

// attributes are the owner and the mode of the weights.
func (p *userPod) attributes() string {
	return map[string]string{"640": "1000:1000 640", "644": "0:0 644"}[p.mode]
}

// snapshotCount returns the number of snapshots of ballast in containerd.
func snapshotCount(t *testing.T, n *node.Node) int {
	t.Helper()
	out := n.Ctr("-n", "k8s.io", "snapshots", "--snapshotter", "ballast", "ls")
	if out.Err != nil {
		t.Fatal(out.Output())
	}
	return strings.Count(out.Stdout, "\n")
}

// TestUserNamespaces has two pods with different users at the same time: all files belong to their own
// users, nothing is copied for them, their writes are private, and nothing is left of them.
func TestUserNamespaces(t *testing.T) {
	for _, show := range ways {
		t.Run(show, func(t *testing.T) { testUserNamespaces(t, show) })
	}
}

func testUserNamespaces(t *testing.T, show string) {
	n, cri, busybox := startPods(t, node.Options{Config: showAs(show)})
	w := weights(61, 4<<20+1)
	model, err := cri.Pull(push(t, n, converttest.ModelPackRaw(private(w))), "")
	if err != nil {
		t.Fatal(err)
	}
	before, snapshots := disk(t, filepath.Join(n.Root(), "snapshots")), snapshotCount(t, n)
	pods := []*userPod{startUserPod(t, cri, 100000, busybox, model), startUserPod(t, cri, 300000, busybox, model)}
	if grown := disk(t, filepath.Join(n.Root(), "snapshots")) - before; grown > 256<<10 {
		t.Errorf("the pods take %d bytes more on the disk", grown)
	}
	for _, p := range pods {
		if show == "links" {
			p.mode = "644" // that of the object
		}
		p.looks(t, w)
		if got, want := p.sh(t, "echo mine >/mine && echo more >>/data/changed && chown 7:7 /mine && stat -c '%u:%g' /mine && cat /data/changed"), "7:7\nafter\nmore\n"; got != want {
			t.Errorf("written in the pod: got %q, want %q", got, want)
		}
		if _, err := cri.Exec(p.id, "/bin/busybox", "touch", "/model/x"); err == nil {
			t.Error("the volume can be written")
		}
	}
	if got, want := ownersOf(t, filepath.Join(n.Root(), "snapshots", "*", "fs", "mine")), map[uint32]bool{100007: true, 300007: true}; !cmp.Equal(got, want) {
		t.Errorf("what the pods wrote belongs to %v on the node, want %v", got, want)
	}
	n.Ballastd.Stop(t)
	n.StartBallastd(t)
	for _, p := range pods {
		p.looks(t, w)
	}
	id, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: model, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cri.Exec(id, "/bin/busybox", "stat", "-c", "%u:%g %a", "/model/model.gguf"); err != nil || got != pods[0].attributes()+"\n" {
		t.Errorf("a pod without a user namespace sees %q, %v", got, err)
	}
	for _, p := range pods {
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, "snapshots of the pods to go", func() error {
		if got, want := snapshotCount(t, n), snapshots+3; got > want { // the pod without a user namespace has three
			return fmt.Errorf("%d, want %d", got, want)
		}
		return nil
	})
}

// ownersOf returns the owners, on the node, of the files that match a pattern.
func ownersOf(t *testing.T, pattern string) map[uint32]bool {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[uint32]bool{}
	for _, name := range found {
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			t.Fatal(err)
		}
		owners[st.Uid] = true
	}
	return owners
}

// TestUserNamespaceCtr runs a model as a root file system in a user namespace, by ctr.
func TestUserNamespaceCtr(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(62, 1<<20+1)
	ref := push(t, n, converttest.ModelPackRaw(private(w)))
	mustPull(t, n, "ballast", ref)
	out := n.RunAs(node.UserFlags(100000), "ballast", ref, "$B stat -c '%u:%g %a' /model.gguf && $B sha256sum </model.gguf && $B chown 5 /model.gguf && $B stat -c %u /model.gguf")
	if want := "1000:1000 640\n" + sum(w) + "  -\n5\n"; out.Err != nil || out.Stdout != want {
		t.Errorf("got %q, %v, want %q\n%s", out.Stdout, out.Err, want, out.Stderr)
	}
}

// TestUserNamespaceLazy reads a model in user namespaces before it is complete, also across a restart.
func TestUserNamespaceLazy(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{})
	w := weights(63, 48<<20)
	ref := convertedModel(t, n, converttest.ModelPackRaw(private(w)))
	n.Registry.Wire.Link(2<<20, 0)
	model, err := cri.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	p := startUserPod(t, cri, 100000, busybox, model)
	if got, want := p.sh(t, "stat -c '%u:%g %a' /model/model.gguf; tail -c 100 /model/model.gguf | sha256sum"), "1000:1000 640\n"+sum(w[len(w)-100:])+"  -\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	n.Ballastd.Kill()
	n.StartBallastd(t)
	if got, want := p.sh(t, "tail -c 3000000 /model/model.gguf | head -c 100 | sha256sum"), sum(w[len(w)-3000000:][:100])+"  -\n"; got != want {
		t.Errorf("after a restart: got %q, want %q", got, want)
	}
	if complete(n, w) {
		t.Error("the file was complete before it was read")
	}
	n.Registry.Wire.Link(0, 0)
	p.looks(t, w)
	startUserPod(t, cri, 300000, busybox, model).looks(t, w)
}

// TestUserNamespaceOldDropIn uses a drop-in without the capability "remap-ids": containerd copies each
// root file system with new owners, which is not mapped again.
func TestUserNamespaceOldDropIn(t *testing.T) {
	n := node.StartNode(t, node.Options{Edit: func(s string) string {
		return regexp.MustCompile(`(?m)^ *capabilities = .*"remap-ids".*$`).ReplaceAllString(s, "")
	}})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	cri := n.CRI(t)
	busybox, err := cri.Pull(n.Registry.Ref("busybox", "1"), "")
	if err != nil {
		t.Fatal(err)
	}
	w := weights(64, 1<<20)
	model, err := cri.Pull(push(t, n, converttest.ModelPackRaw(private(w))), "")
	if err != nil {
		t.Fatal(err)
	}
	before := snapshotCount(t, n)
	id, err := cri.RunUserPod(t, 100000).Run(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if got := snapshotCount(t, n) - before; got < 3 {
		t.Errorf("%d snapshots more, want the copy beside those of sandbox and container: this test proves nothing", got)
	}
	if got, err := cri.Exec(id, "/bin/busybox", "stat", "-c", "%u:%g", "/data/kept"); err != nil || got != "0:0\n" {
		t.Errorf("got %q, %v, want 0:0", got, err)
	}
	// Image volumes are not copied, but mapped.
	startUserPod(t, cri, 100000, busybox, model).looks(t, w)
}

// TestUserNamespaceOldKernel has a kernel that cannot id-map FUSE, as before Linux 6.12: the lazy mount
// is outside of the root, complete models work, and others are refused until they are complete.
func TestUserNamespaceOldKernel(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Config: "[lazy]\nidmap = false\n"})
	if got, want := lazyDir(t, n), n.LazyApart(); got != want {
		t.Errorf("files that are not complete are mounted at %q, want %q", got, want)
	}
	if out, err := as(nobody, "ls", n.LazyApart()); err == nil {
		t.Errorf("nobody lists %s: %s", n.LazyApart(), out)
	}
	done := weights(65, 1<<20)
	model, err := cri.Pull(push(t, n, converttest.ModelPackRaw(private(done))), "")
	if err != nil {
		t.Fatal(err)
	}
	w := weights(66, 32<<20)
	ref := convertedModel(t, n, converttest.ModelPackRaw(private(w)))
	pause(t, n)
	early, err := cri.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	startUserPod(t, cri, 100000, busybox, model).looks(t, done)
	p := &userPod{Pod: cri.RunUserPod(t, 300000), cri: cri, host: 300000, mode: "640"}
	volume := node.ImageMount{Image: early, Path: "/model"}
	if _, err = p.Run(busybox, volume); err == nil || !strings.Contains(err.Error(), "is not complete and cannot be mounted for a user namespace yet: this kernel cannot id-map FUSE") {
		t.Errorf("a model that is not complete: got %v", err)
	}
	if complete(n, w) {
		t.Fatal("it was complete; this test proves nothing")
	}
	id, err := cri.RunPod(t, "").Run(busybox, volume)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cri.Exec(id, "/bin/busybox", "sh", "-c", "tail -c 100 /model/model.gguf | sha256sum"); err != nil || got != sum(w[len(w)-100:])+"  -\n" {
		t.Errorf("a pod without a user namespace reads %q, %v", got, err)
	}
	if out := doctor(n); !strings.Contains(out.Stdout, "start when their model is complete, not before") {
		t.Errorf("doctor does not say so:\n%s", out.Output())
	}
	resume(t, n)
	waitFor(t, "the pod to start", func() error {
		p.id, err = p.Run(busybox, volume)
		return err
	})
	p.looks(t, w)
}
