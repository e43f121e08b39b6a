package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// aVersion is a node with one version of containerd, on which the core suite runs.
type aVersion struct {
	*node.Node
	t       *testing.T // of all steps, so that what is started stays
	minor   string
	pods    *node.CRI
	busybox string // image ID
	seed    byte   // of the last model: each has its own weights

	copied    *converttest.Built // the model that ctr has pulled, and its name
	copiedRef string
}

// Results of a step of the core suite: words for the matrix.
const (
	works = "yes"
	none  = "no"
)

// coreSteps are the rows of the matrix. Each step returns its result; what should work and does not is
// also an error. The order matters: a step uses the state left by the steps before.
var coreSteps = []struct {
	row  string
	step func(*aVersion, *testing.T) string
}{
	{"pull by `ctr`", (*aVersion).ctrPull},
	{"container and `ctr images mount`", (*aVersion).rootfs},
	{"ordinary images, by `ctr` and by CRI", (*aVersion).ordinary},
	{"pull by CRI, as it comes", (*aVersion).criPull},
	{"pull by CRI with a pull secret", (*aVersion).pullSecret},
	{"image volume", (*aVersion).volume},
	{"image volume with `subPath`", (*aVersion).subPath},
	{"read before it is complete", (*aVersion).lazy},
	{"pod in a user namespace (`hostUsers: false`)", (*aVersion).users},
	{"image volume in a user namespace", (*aVersion).usersVolume},
	{"the same before it is complete", (*aVersion).usersLazy},
	{"`ballastd` stopped: pulls fail, also with the closed `_default`", (*aVersion).closed},
	{"restart of both daemons under a container", (*aVersion).restart},
	{"pull by CRI, `use_local_image_pull` and `discard_unpacked_layers`", (*aVersion).localPull},
	{"`--runtime-handler`: other pods with overlayfs", (*aVersion).handler},
	{"removal leaves nothing", (*aVersion).removal},
}

// TestVersions runs the core suite on each version of containerd, and compares the results with the
// table in the documentation; -update writes the table.
func TestVersions(t *testing.T) {
	m := &matrix{name: "versions", columns: node.Versions(t), cells: map[[2]string]string{}}
	for _, s := range coreSteps {
		m.rows = append(m.rows, s.row)
	}
	for _, v := range node.Versions(t) {
		t.Run(node.Minor(v), func(t *testing.T) {
			n := startVersion(t, node.Options{Version: v, Base: base(t, v)})
			for _, s := range coreSteps {
				t.Run(s.row, func(t *testing.T) { m.set(s.row, v, s.step(n, t)) })
			}
		})
	}
	m.compare(t)
}

// base is the configuration of a node before ballast is installed: the output of containerd config
// default. That of 1.7 would need lines to be merged manually.
func base(t *testing.T, version string) string {
	if node.Minor(version) == "1.7" {
		return ""
	}
	return node.DefaultConfig(t, version)
}

// startVersion starts a node.
func startVersion(t *testing.T, o node.Options) *aVersion {
	t.Helper()
	n := &aVersion{t: t, Node: node.StartNode(t, o), minor: node.Minor(o.Version)}
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	n.pods = n.CRI(t)
	var err error
	if n.busybox, err = n.pods.Pull(n.Registry.Ref("busybox", "1"), ""); err != nil {
		t.Fatal(err)
	}
	if out := n.Ballast("doctor", "--containerd-config", n.ContainerdConfigFile()); out.Err != nil || !strings.Contains(out.Stdout, "containerd version: ") {
		t.Errorf("doctor: %v\n%s", out.Err, out.Output())
	}
	return n
}

// model pushes a model that shares no bytes with others.
func (n *aVersion) model(t *testing.T, name string) (ref string, b *converttest.Built) {
	t.Helper()
	n.seed++
	b = converttest.ModelPackRaw(converttest.Files(weights(n.seed, 2<<20+int(n.seed))))
	n.Registry.Push(t, name, "1", artifact(b))
	n.Registry.Wire.Reset()
	return n.Registry.Ref(name, "1"), b
}

// claimed reports whether all blobs of a model were claimed: containerd downloaded none, and has none
// in its content store.
func (n *aVersion) claimed(t *testing.T, namespace string, b *converttest.Built) bool {
	t.Helper()
	weights := digest.FromBytes(b.Files["model.gguf"].Data)
	if got, want := n.Registry.Wire.BlobBytes()[weights], int64(len(b.Files["model.gguf"].Data)); got != want {
		t.Errorf("bytes of the weights that came over the wire: got %d, want %d", got, want)
	}
	content := n.Ctr("-n", namespace, "content", "ls", "-q")
	if content.Err != nil {
		t.Fatalf("%v\n%s", content.Err, content.Output())
	}
	claimed := !strings.Contains(content.Stdout, weights.String())
	for _, r := range n.Registry.Wire.Requests() {
		claimed = claimed && (b.Blobs[r.Blob()] == nil || !strings.HasPrefix(r.UserAgent, "containerd"))
	}
	return claimed
}

// volumes reports whether the version has image volumes.
func (n *aVersion) volumes() bool { return n.minor != "1.7" && n.minor != "2.0" }

// mustClaim fails the test if blobs were not claimed, and returns the words of the matrix.
func (n *aVersion) mustClaim(t *testing.T, b *converttest.Built) string {
	t.Helper()
	if !n.claimed(t, "k8s.io", b) {
		t.Errorf("containerd has downloaded blobs of the model")
		return none
	}
	return works
}

func (n *aVersion) ctrPull(t *testing.T) string {
	n.copiedRef, n.copied = n.model(t, "models/ctr")
	mustPull(t, n.Node, "ballast", n.copiedRef)
	wantFiles(t, n.Node, n.copiedRef, states(n.copied))
	if n.claimed(t, "default", n.copied) {
		return works
	}
	// ctr 1.7 does this by itself. Its other way, --local=false, does not read hosts.toml.
	if n.minor != "1.7" {
		t.Error("containerd has downloaded blobs of the model")
	}
	return "by copying"
}

func (n *aVersion) rootfs(t *testing.T) string {
	wantFiles(t, n.Node, n.copiedRef, states(n.copied))
	dir := t.TempDir()
	if out := n.Ctr("images", "mount", "--snapshotter", "ballast", n.copiedRef, dir); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	p, err := os.ReadFile(filepath.Join(dir, "model.gguf"))
	if err != nil || !bytes.Equal(p, n.copied.Files["model.gguf"].Data) {
		t.Errorf("mounted image: %v, or other bytes", err)
	}
	if out := n.Ctr("images", "unmount", "--snapshotter", "ballast", "--rm", dir); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	return works
}

func (n *aVersion) ordinary(t *testing.T) string {
	ref := n.Registry.Ref("busybox", "1")
	mustPull(t, n.Node, "ballast", ref)
	got, err := n.List("ballast", ref, "/data")
	if d := cmp.Diff(ordinaryFiles(), got); err != nil || d != "" {
		t.Errorf("by ctr: %v, files (-want +got):\n%s", err, d)
	}
	c, err := n.pods.RunPod(t, "").Run(n.busybox)
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, n.pods, c, "/data", ordinaryFiles())
	return works
}

func (n *aVersion) criPull(t *testing.T) string {
	ref, b := n.model(t, "models/cri")
	if _, err := n.pods.Pull(ref, ""); err != nil {
		t.Fatal(err)
	}
	return n.mustClaim(t, b)
}

func (n *aVersion) pullSecret(t *testing.T) string {
	name := "private" + strings.ReplaceAll(n.minor, ".", "-") + ".test"
	private := privateRegistry(t, n.Node, name, "alice", aliceSecret)
	_, b := n.model(t, "models/secret")
	private.Push(t, "team/model", "1", artifact(b))
	ref := name + "/team/model:1"
	if _, err := n.pods.Pull(ref, ""); err == nil {
		t.Error("a pod without a secret pulled a private model")
	}
	if _, err := n.pods.PullAs(ref, "", &criapi.AuthConfig{Username: "alice", Password: aliceSecret}); err != nil {
		t.Errorf("with a secret: %v", err)
		return none
	}
	if got, want := private.Wire.BlobBytes()[digest.FromBytes(b.Files["model.gguf"].Data)], int64(len(b.Files["model.gguf"].Data)); got != want {
		t.Errorf("bytes of the weights downloaded: got %d, want %d", got, want)
	}
	return works
}

// volume mounts a model in a container. Without image volumes, that must fail.
func (n *aVersion) volume(t *testing.T) string {
	ref, b := n.model(t, "models/volume")
	id, err := n.pods.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.pods.RunPod(t, "").Run(n.busybox, node.ImageMount{Image: id, Path: "/model"})
	if !n.volumes() {
		if err == nil {
			t.Error("a container started with an image volume that this version does not know")
		}
		t.Logf("image volume: %v", err)
		return none
	}
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, n.pods, c, "/model", states(b))
	return works
}

// subPath mounts a directory of a model. 2.1 ignores the field, and mounts the whole model.
func (n *aVersion) subPath(t *testing.T) string {
	if !n.volumes() {
		return none
	}
	ref, b := n.model(t, "models/subpath")
	id, err := n.pods.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := n.pods.RunPod(t, "").Run(n.busybox, node.ImageMount{Image: id, Path: "/part", SubPath: "scripts"})
	if err != nil {
		t.Fatal(err)
	}
	if n.minor == "2.1" {
		wantVolume(t, n.pods, c, "/part", states(b))
		return "no: all of the model is there"
	}
	below := map[string]node.FileState{}
	for p, f := range b.Files {
		if name, ok := strings.CutPrefix(p, "scripts/"); ok {
			below[name] = state(f)
		}
	}
	wantVolume(t, n.pods, c, "/part", below)
	return works
}

// lazy reads the end of a file of which nothing else is fetched.
func (n *aVersion) lazy(t *testing.T) string {
	n.seed++
	b := converttest.ModelPackRaw(converttest.Files(weights(n.seed, 24<<20)))
	big := b.Files["model.gguf"].Data
	ref := convertedModel(t, n.Node, b)
	pause(t, n.Node)
	const tail = `$B tail -c 4096 "$1/model.gguf" | $B sha256sum`
	var out string
	if n.volumes() {
		id, err := n.pods.Pull(ref, "")
		if err != nil {
			t.Fatal(err)
		}
		c, err := n.pods.RunPod(t, "").Run(n.busybox, node.ImageMount{Image: id, Path: "/model"})
		if err != nil {
			t.Fatal(err)
		}
		if out, err = n.pods.Exec(c, "/bin/busybox", "sh", "-c", "B=/bin/busybox; "+tail, "sh", "/model"); err != nil {
			t.Error(err)
		}
	} else {
		mustPull(t, n.Node, "ballast", ref)
		run := n.RunIn("ballast", ref, tail, "")
		if out = run.Stdout; run.Err != nil {
			t.Errorf("%v\n%s", run.Err, run.Output())
		}
	}
	if !strings.HasPrefix(out, sum(big[len(big)-4096:])) {
		t.Errorf("end of the file: got %q, want %s", out, sum(big[len(big)-4096:]))
	}
	if complete(n.Node, big) {
		t.Error("the model was complete before it was read")
	}
	resume(t, n.Node)
	if err := pullRest(n.Node, ref); err != nil {
		t.Error(err)
	}
	return works
}

// closed pulls while ballastd is stopped, from a registry with a hosts.toml and from one for which
// _default counts.
func (n *aVersion) closed(t *testing.T) string {
	if out := n.Ballast("config", "hosts", "--write", "--hosts-dir", n.HostsDir(), "_default"); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	other := node.StartRegistry(t, t.TempDir())
	first, _ := n.model(t, "models/closed")
	_, second := n.model(t, "models/other")
	other.Push(t, "models/other", "1", artifact(second))
	refs := []string{first, other.Ref("models/other", "1")}
	n.Ballastd.Stop(t)
	for _, ref := range refs {
		for _, snapshotter := range []string{"ballast", "overlayfs"} {
			if out := n.Pull(snapshotter, ref); out.Err == nil {
				t.Errorf("ctr pulled %s with %s", ref, snapshotter)
			}
		}
		if _, err := n.pods.Pull(ref, ""); err == nil {
			t.Errorf("CRI pulled %s", ref)
		}
	}
	n.StartBallastd(n.t)
	for _, ref := range refs {
		if _, err := n.pods.Pull(ref, ""); err != nil || !logged(t, n.Node, "model converted", "ref="+ref) {
			t.Errorf("after the start: %s was not converted, %v", ref, err)
		}
	}
	return works
}

// restart stops both daemons, and starts containerd with settings that make CRI pull without the
// transfer service.
func (n *aVersion) restart(t *testing.T) string {
	if out := n.Start("ballast", n.copiedRef, "running"); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	n.Ballastd.Kill()
	n.Containerd.Stop(t)
	const images = "[plugins.\"io.containerd.cri.v1.images\"]\n"
	if n.volumes() {
		n.MoreContainerd(images + "use_local_image_pull = true\ndiscard_unpacked_layers = true\n")
		n.ConfigureContainerd(t)
	}
	n.StartBallastd(n.t)
	n.StartContainerd(n.t)
	out := n.Exec("running", "/.bin/busybox", "sha256sum", "/model.gguf")
	if want := state(n.copied.Files["model.gguf"]).SHA256; out.Err != nil || !strings.HasPrefix(out.Stdout, want) {
		t.Errorf("running container: got %v %s, want %s", out.Err, out.Output(), want)
	}
	n.Registry.Wire.Reset()
	wantFiles(t, n.Node, n.copiedRef, states(n.copied))
	mustPull(t, n.Node, "ballast", n.copiedRef)
	for d, got := range n.Registry.Wire.BlobBytes() {
		if got > 4<<10 {
			t.Errorf("%d bytes of %s were downloaded again", got, d)
		}
	}
	if out := n.Ctr("tasks", "rm", "-f", "running"); out.Err != nil {
		t.Errorf("%v\n%s", out.Err, out.Output())
	}
	if out := n.Ctr("containers", "rm", "running"); out.Err != nil {
		t.Errorf("%v\n%s", out.Err, out.Output())
	}
	return works
}

// localPull pulls in the mode set by restart.
func (n *aVersion) localPull(t *testing.T) string {
	ref, b := n.model(t, "models/local")
	id, err := n.pods.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	if n.mustClaim(t, b) == none {
		return none
	}
	if !n.volumes() {
		return "yes, it knows no other way"
	}
	c, err := n.pods.RunPod(t, "").Run(n.busybox, node.ImageMount{Image: id, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, n.pods, c, "/model", states(b))
	return works
}

// handler lets only the pods of one handler use ballast. Other pods use overlayfs, and a model in them
// is an error.
func (n *aVersion) handler(t *testing.T) string {
	// The running containerd reports its version; the program cannot be found.
	env := append(n.Env(), "PATH=/nowhere")
	out := node.Command(t.Context(), env, node.Binary(t, "ballast"), "--config", n.ConfigFile(), "config", "containerd")
	if want := "of containerd " + n.minor + ". "; out.Err != nil || !strings.Contains(out.Stdout, want) {
		t.Errorf("%v, want %q in:\n%s", out.Err, want, out.Output())
	}
	n.ConfigureContainerd(t, "--runtime-handler", "models")
	n.Containerd.Stop(t)
	n.StartContainerd(n.t)
	ref, b := n.model(t, "models/handler")
	if _, err := n.pods.Pull(ref, ""); err == nil {
		t.Error("a model was pulled for a pod with overlayfs")
	}
	n.Registry.Push(t, "ordinary", "1", node.Busybox(t))
	if _, err := n.pods.Pull(n.Registry.Ref("ordinary", "1"), ""); err != nil {
		t.Errorf("ordinary image with overlayfs: %v", err)
	}
	found := "pods need the annotation, or a pull before them that names the handler"
	if id, err := n.pods.Pull(ref, "models"); err != nil {
		t.Logf("without the annotation: %s%v", id, err)
		n.pods.Annotations = map[string]string{"io.containerd.cri.runtime-handler": "models"}
		defer func() { n.pods.Annotations = nil }()
		found = "pods need the annotation `io.containerd.cri.runtime-handler`"
	}
	id, err := n.pods.Pull(ref, "models")
	if err != nil {
		t.Fatal(err)
	}
	if !n.volumes() {
		return found
	}
	if _, err := n.pods.Pull(n.Registry.Ref("busybox", "1"), "models"); err != nil {
		t.Fatal(err)
	}
	c, err := n.pods.RunPod(t, "models").Run(n.busybox, node.ImageMount{Image: id, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, n.pods, c, "/model", states(b))
	return found
}

// removal removes all images and collects.
func (n *aVersion) removal(t *testing.T) string {
	for _, ns := range []string{"default", "k8s.io"} {
		names := strings.Fields(n.Ctr("-n", ns, "images", "ls", "-q").Stdout)
		if len(names) == 0 {
			t.Errorf("no images in %s; the step proves nothing", ns)
		}
		if out := n.Ctr(append([]string{"-n", ns, "images", "rm", "--sync"}, names...)...); out.Err != nil {
			t.Fatalf("%v\n%s", out.Err, out.Output())
		}
		for _, args := range [][]string{{"snapshots", "--snapshotter", "ballast", "ls"}, {"content", "ls", "-q"}} {
			out := n.Ctr(append([]string{"-n", ns}, args...)...)
			if left := strings.TrimSpace(strings.TrimPrefix(out.Stdout, "KEY PARENT KIND")); out.Err != nil || strings.Contains(left, "sha256:") {
				t.Errorf("ctr %s in %s: %v, left:\n%s", strings.Join(args, " "), ns, out.Err, left)
			}
		}
	}
	ballast(t, n.Node, "gc", "--yes")
	if got := disk(t, filepath.Join(n.Root(), "objects")); got > 1<<20 {
		t.Errorf("disk use of objects after rm and gc: got %d, want at most 1 MiB: documents of the last minute", got)
	}
	return works
}
