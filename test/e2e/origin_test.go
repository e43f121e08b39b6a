package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// atOrigin returns the reference of a model by the digest of its original manifest.
func atOrigin(n *node.Node, b *converttest.Built) string {
	return fmt.Sprintf("%s/models/%s@%s", n.Registry.Host, b.Name, b.Digest())
}

// convertedDigest returns the digest of the converted image of a reference.
func convertedDigest(t *testing.T, n *node.Node, ref string) string {
	t.Helper()
	out := n.Ballast("digest", "-q", ref)
	if out.Err != nil {
		t.Fatalf("ballast digest %s: %v\n%s", ref, out.Err, out.Output())
	}
	return strings.TrimSpace(out.Stdout)
}

// What containerd does with the original manifest of a model: it unpacks nothing, or all layers, or
// refuses to mount it.
const bare, layered, rejected = "bare", "layered", "rejected"

// mountable returns which of these applies to a model.
func mountable(t *testing.T, b *converttest.Built) string {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(b.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(b.Blobs[m.Config.Digest], &config); err != nil {
		t.Fatal(err)
	}
	layers := 0
	for _, l := range m.Layers {
		if strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer.") {
			layers++
		}
	}
	switch {
	case layers != len(config.RootFS.DiffIDs), strings.HasPrefix(m.MediaType, "application/vnd.cnai."):
		return rejected
	case layers == 0:
		return bare
	}
	return layered
}

// startPods starts a node and pulls busybox. It returns the node, its CRI client and the ID of the
// image.
func startPods(t *testing.T, o node.Options) (*node.Node, *node.CRI, string) {
	t.Helper()
	n := node.StartNode(t, o)
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	cri := n.CRI(t)
	busybox, err := cri.Pull(n.Registry.Ref("busybox", "1"), "")
	if err != nil {
		t.Fatal(err)
	}
	return n, cri, busybox
}

// TestOriginDigests mounts models of every format by the digests of their original manifests: a model
// that cannot be shown in this way is refused at the pull, with the digest to use.
func TestOriginDigests(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{})
	kinds := map[string]int{}
	for _, b := range converttest.All(converttest.Files(weights(70, 1<<20+1))) {
		tag := push(t, n, b)
		kind := mountable(t, b)
		kinds[kind]++
		id, err := cri.Pull(atOrigin(n, b), "")
		if kind == rejected {
			want := convertedDigest(t, n, tag)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want a refusal with %s", b.Name, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("pull %s: %v", b.Name, err)
			continue
		}
		pod := cri.RunPod(t, "")
		c, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"})
		if err != nil {
			t.Errorf("%s: %v", b.Name, err)
			continue
		}
		if kind == bare {
			wantVolume(t, cri, c, "/model", states(b))
		} else if got, err := cri.List(c, "/model"); err != nil || len(got) == 0 {
			t.Errorf("%s: got %v, %v, want files", b.Name, got, err)
		}
		if _, err := cri.Exec(c, "/bin/busybox", "sh", "-c", "echo x > /model/README.md"); err == nil {
			t.Errorf("%s: the volume can be written to", b.Name)
		}
		// Some models have the same config, so that containerd would take them as one image.
		if err := pod.Remove(); err != nil {
			t.Fatal(err)
		}
		removeImage(t, cri, id)
	}
	if kinds[bare] == 0 || kinds[rejected] == 0 || kinds[layered] == 0 {
		t.Errorf("the formats are not of every kind: %v", kinds)
	}
}

func removeImage(t *testing.T, cri *node.CRI, id string) {
	t.Helper()
	if _, err := cri.Images.RemoveImage(t.Context(), &criapi.RemoveImageRequest{Image: &criapi.ImageSpec{Image: id}}); err != nil {
		t.Fatal(err)
	}
}

// TestOriginLocalPull uses CRI's local pull, as many nodes do: it fetches all layers, and the volume is
// the same.
func TestOriginLocalPull(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Containerd: "[plugins.\"io.containerd.cri.v1.images\"]\n  use_local_image_pull = true\n"})
	b := converttest.ModelPackRaw(converttest.Files(weights(78, 1<<20)))
	push(t, n, b)
	id, err := cri.Pull(atOrigin(n, b), "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: id, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, cri, c, "/model", states(b))
	rejects := converttest.DockerAIGGUF(converttest.Files(weights(79, 1<<20)))
	want := convertedDigest(t, n, push(t, n, rejects))
	if _, err := cri.Pull(atOrigin(n, rejects), ""); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal with %s", err, want)
	}
}

// TestOriginLazy mounts an incomplete model, and completes it after a restart.
func TestOriginLazy(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Config: "[lazy]\nmode = \"lazy\"\n"})
	b := converttest.ModelPackRaw(converttest.Files(weights(69, 24<<20)))
	push(t, n, b)
	id, err := cri.Pull(atOrigin(n, b), "")
	if err != nil {
		t.Fatal(err)
	}
	large := digest.FromBytes(b.Files["model.gguf"].Data)
	remove := n.Registry.Wire.Add(node.Fault{Match: node.Blob(large), Rate: 128 << 10})
	pod := cri.RunPod(t, "")
	c, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(object(n, large)); err == nil {
		t.Error("the weights were there before the container was; the test proves nothing")
	}
	n.Ballastd.Kill()
	n.StartBallastd(t)
	remove()
	wantVolume(t, cri, c, "/model", states(b))
	if err := pod.Remove(); err != nil {
		t.Fatal(err)
	}
}

// TestOriginStays restarts all daemons between the pull and the mount, and while the pod runs, and
// removes the image.
func TestOriginStays(t *testing.T) {
	for _, show := range ways {
		t.Run(show, func(t *testing.T) { testOriginStays(t, show) })
	}
}

func testOriginStays(t *testing.T, show string) {
	n, cri, busybox := startPods(t, node.Options{Config: showAs(show)})
	b := converttest.ModelPackRaw(converttest.Files(weights(71, 2<<20)))
	push(t, n, b)
	ref := atOrigin(n, b)
	id, err := cri.Pull(ref, "")
	if err != nil {
		t.Fatal(err)
	}
	weights := digest.FromBytes(b.Files["model.gguf"].Data)
	if n := n.Registry.Wire.BlobBytes()[weights]; n > 0 {
		t.Errorf("containerd has fetched %d bytes of the weights", n)
	}
	// The daemon forgets its records of the model.
	n.Ballastd.Kill()
	n.StartBallastd(t)
	if out := n.Ballast("rm", ref); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	pod := cri.RunPod(t, "")
	first, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, cri, first, "/model", states(b))
	n.Ballastd.Kill()
	n.StartBallastd(t)
	wantVolume(t, cri, first, "/model", states(b))

	// A second container and a second pod, while the registry fails.
	remove := n.Registry.Wire.Add(node.Fault{Status: 503})
	second, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model", SubPath: "scripts"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cri.List(second, "/model"); err != nil || len(got) == 0 {
		t.Errorf("directory of a volume: got %v, %v", got, err)
	}
	other := cri.RunPod(t, "")
	third, err := other.Run(busybox, node.ImageMount{Image: id, Path: "/model"})
	if err != nil {
		t.Fatal(err)
	}
	wantVolume(t, cri, third, "/model", states(b))
	remove()
	if out := n.Ballast("verify"); out.Err != nil {
		t.Errorf("verify: %v\n%s", out.Err, out.Output())
	}

	// The pods are removed; the image keeps the objects, which are collected after it is removed.
	for _, p := range []*node.Pod{pod, other} {
		if err := p.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	for _, keeps := range []bool{true, false} {
		if !keeps {
			removeImage(t, cri, id)
		}
		if out := n.Ballast("gc", "--yes"); out.Err != nil {
			t.Fatalf("%v\n%s", out.Err, out.Output())
		}
		if _, err := os.Stat(object(n, weights)); (err == nil) != keeps {
			t.Errorf("with the image %v: %v", keeps, err)
		}
		if out := n.Ballast("ls"); strings.Contains(out.Stdout, "in use") != keeps {
			t.Errorf("with the image %v:\n%s", keeps, out.Output())
		}
	}
}

// TestOriginOfOthers mounts origins that other clients of containerd pulled: that fails, and never
// shows an empty directory.
func TestOriginOfOthers(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(72, 1<<20)))
	tag := push(t, n, b)
	want := convertedDigest(t, n, tag)
	for _, flags := range [][]string{nil, {"--local"}} {
		if out := n.Pull("ballast", atOrigin(n, b), flags...); out.Err != nil {
			t.Fatalf("%v\n%s", out.Err, out.Output())
		}
		for _, rw := range [][]string{nil, {"--rw"}} {
			args := append([]string{"images", "mount", "--snapshotter", "ballast"}, rw...)
			dir := t.TempDir()
			wantError(t, n.Ctr(append(args, atOrigin(n, b), dir)...), "only image volumes of pods", want)
		}
		wantError(t, n.Ctr("snapshots", "--snapshotter", "ballast", "view", "some-key"), want)
	}
	// Ordinary images, and the converted model, are not affected.
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	busybox := n.Registry.Ref("busybox", "1")
	mustPull(t, n, "ballast", busybox)
	if out := n.RunIn("ballast", busybox, "echo ok"); out.Err != nil {
		t.Errorf("%v\n%s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", tag)
	wantFiles(t, n, tag, states(b))
	if out := n.Ctr("images", "rm", "--sync", atOrigin(n, b)); out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	if out := n.Ctr("snapshots", "--snapshotter", "ballast", "prepare", "some-key"); out.Err != nil {
		t.Errorf("a snapshot without layers, when no model is in the way: %v\n%s", out.Err, out.Output())
	}
}

// TestOriginOff mounts origins where the configuration forbids it.
func TestOriginOff(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Config: "[facade]\norigin_digests = false\n"})
	b := converttest.ModelPackRaw(converttest.Files(weights(73, 1<<20)))
	want := convertedDigest(t, n, push(t, n, b))
	if _, err := cri.Pull(atOrigin(n, b), ""); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal with %s", err, want)
	}
	for _, flags := range [][]string{nil, {"--local"}} {
		wantError(t, n.Pull("ballast", atOrigin(n, b), flags...), want)
	}
	// Pulled without the facade: the volume is refused, also with the digest.
	n.Direct(t, n.Registry.Host, n.Registry.Host)
	id, err := cri.Pull(atOrigin(n, b), "")
	if err != nil {
		t.Fatal(err)
	}
	pod := cri.RunPod(t, "")
	if _, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want a refusal with %s", err, want)
	}
}

// TestOriginOfStrangers requests models of other users by their digests, through the requester's own
// registry.
func TestOriginOfStrangers(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{})
	wantRefused := func(what, id string, words ...string) {
		t.Helper()
		pod := cri.RunPod(t, "")
		_, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"})
		for _, w := range append(words, "cannot be mounted here") {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: got %v, want a refusal with %q", what, err, w)
			}
		}
		if err := pod.Remove(); err != nil {
			t.Fatal(err)
		}
	}

	// A private model is pulled with its secret only, and mounted.
	private := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "private.test", private.Host)
	secret := converttest.ModelPackRaw(converttest.Files(weights(74, 1<<20)))
	private.Push(t, "team/model", "1", artifact(secret))
	private.User, private.Password = "alice", "s3cret"
	alice := &criapi.AuthConfig{Username: "alice", Password: "s3cret"}
	byDigest := "private.test/team/model@" + secret.Digest().String()
	if _, err := cri.Pull(byDigest, ""); err == nil {
		t.Error("a private model was pulled without its secret")
	}
	owned, err := cri.PullAs(byDigest, "", alice)
	if err != nil {
		t.Fatal(err)
	}
	wantMounted := func() {
		t.Helper()
		pod := cri.RunPod(t, "")
		c, err := pod.Run(busybox, node.ImageMount{Image: owned, Path: "/model"})
		if err != nil {
			t.Fatal(err)
		}
		wantVolume(t, cri, c, "/model", states(secret))
		if err := pod.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	wantMounted()
	// What was read is known after a restart, and a complete model needs no registry.
	n.Ballastd.Kill()
	n.StartBallastd(t)
	remove := private.Wire.Add(node.Fault{Status: 503})
	wantMounted()
	remove()

	// A stranger gives the manifest to everybody, and then, by another registry, with credentials, but has no
	// files. containerd takes the images for one and does not say which of them a pod named.
	stranger := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "stranger.test", stranger.Host)
	stranger.Push(t, "x/y", "1", artifact(secret))
	stranger.Wire.Add(node.Fault{Match: node.AnyBlob, Status: 404})
	for user, word := range map[string]string{"": "stranger.test/x/y", "mallory": "no pull with credentials was seen by a name"} {
		stranger.User, stranger.Password = user, "m4llory"
		if _, err := cri.PullAs("stranger.test/x/y@"+secret.Digest().String(), "", &criapi.AuthConfig{Username: "mallory", Password: "m4llory"}); err != nil {
			t.Fatal(err)
		}
		wantRefused("also of a stranger", owned, word)
		if out := n.Ctr("--namespace", "k8s.io", "images", "rm", "--sync", "stranger.test/x/y@"+secret.Digest().String()); out.Err != nil {
			t.Fatalf("%v\n%s", out.Err, out.Output())
		}
		wantMounted()
	}
	// Who has the files, and needs credentials for them too, gives them again.
	friend := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "friend.test", friend.Host)
	friend.Push(t, "x/y", "1", artifact(secret))
	friend.User, friend.Password = "bob", "b0b"
	if _, err := cri.PullAs("friend.test/x/y@"+secret.Digest().String(), "", &criapi.AuthConfig{Username: "bob", Password: "b0b"}); err != nil {
		t.Fatal(err)
	}
	friend.Wire.Reset()
	wantMounted()
	large := digest.FromBytes(secret.Files["model.gguf"].Data)
	if got := friend.Wire.BlobBytes()[large]; got < int64(len(secret.Files["model.gguf"].Data)) {
		t.Errorf("the second private repository gave %d bytes of the weights", got)
	}
	removeImage(t, cri, owned)

	// It was pulled without the facade, which has seen no credentials.
	pulledDirectly := converttest.ModelPackRaw(converttest.Files(weights(79, 1<<20)))
	private.User, private.Password = "", ""
	private.Push(t, "team/direct", "1", artifact(pulledDirectly))
	private.User, private.Password = "alice", "s3cret"
	n.Direct(t, "private.test", private.Host)
	direct, err := cri.PullAs("private.test/team/direct@"+pulledDirectly.Digest().String(), "", alice)
	if err != nil {
		t.Fatal(err)
	}
	pod := cri.RunPod(t, "")
	if _, err := pod.Run(busybox, node.ImageMount{Image: direct, Path: "/model"}); err == nil || !strings.Contains(err.Error(), "no pull with credentials was seen") {
		t.Errorf("a private model pulled without the facade: %v", err)
	}
	if err := pod.Remove(); err != nil {
		t.Fatal(err)
	}
	removeImage(t, cri, direct)

	// Another image with the same config: containerd mounts the one whose name is first.
	good := converttest.ModelPackRaw(converttest.Files(weights(75, 1<<20)))
	push(t, n, good)
	id, err := cri.Pull(atOrigin(n, good), "")
	if err != nil {
		t.Fatal(err)
	}
	bad := converttest.ModelPackTar(converttest.Files(weights(76, 1<<20)))
	aaa := node.StartRegistry(t, t.TempDir())
	n.Upstream(t, "aaa.test", aaa.Host)
	aaa.Push(t, "models/bad", "1", withConfigOf(t, bad, good))
	a := withConfigOf(t, bad, good)
	if same, err := cri.Pull("aaa.test/models/bad@"+digest.FromBytes(a.Manifest).String(), ""); err != nil || same != id {
		t.Fatalf("got %s, %v, want the same image %s", same, err, id)
	}
	wantRefused("same config", id, "the same config", "@sha256:")
}

// withConfigOf returns a model with the config of another one.
func withConfigOf(t *testing.T, b, other *converttest.Built) node.Artifact {
	t.Helper()
	var m, from ocispec.Manifest
	for _, p := range []struct {
		in  []byte
		out *ocispec.Manifest
	}{{b.Manifest, &m}, {other.Manifest, &from}} {
		if err := json.Unmarshal(p.in, p.out); err != nil {
			t.Fatal(err)
		}
	}
	m.Config = from.Config
	p, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	blobs := map[digest.Digest][]byte{from.Config.Digest: other.Blobs[from.Config.Digest]}
	for d, p := range b.Blobs {
		blobs[d] = p
	}
	return node.Artifact{Manifest: p, MediaType: b.MediaType, Blobs: blobs}
}

// TestOriginSigned checks that a rule for signatures applies to pulls, and to origins pulled without
// the facade.
func TestOriginSigned(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Config: "[[verify.rule]]\nmatch = \"*/models/*\"\nmode = \"enforce\"\nlicenses = [\"MIT\"]\nany = []\n"})
	b := converttest.ModelPackRaw(converttest.Files(weights(77, 1<<20)))
	push(t, n, b)
	if _, err := cri.Pull(atOrigin(n, b), ""); err == nil || !strings.Contains(err.Error(), "verify.rule") {
		t.Errorf("got %v, want a refusal by the rule", err)
	}
	n.Direct(t, n.Registry.Host, n.Registry.Host)
	id, err := cri.Pull(atOrigin(n, b), "")
	if err != nil {
		t.Fatal(err)
	}
	pod := cri.RunPod(t, "")
	if _, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"}); err == nil || !strings.Contains(err.Error(), "verify.rule") {
		t.Errorf("got %v, want a refusal by the rule", err)
	}
}

// TestFleetPullPastFacade: what ballastd has pulled for pods, as the agent of ModelSets asks for it, a pod can mount, of
// every format, public and private in turn, also from an open registry, which containerd asks itself. Otherwise the error
// says that it must be closed.
func TestFleetPullPastFacade(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{})
	const secret = "s3cret-of-fleet"
	node.Belongs(secret, n.Registry.Host)
	n.Direct(t, n.Registry.Host, n.Registry.Host)
	mounted, seen := map[string]int{}, map[string]int{}
	for _, b := range converttest.All(converttest.Files(weights(75, 1<<20+1))) {
		request, kind := map[string]string{"ref": push(t, n, b)}, mountable(t, b)
		n.Registry.User, n.Registry.Password = "", ""
		if seen[kind]++; seen[kind]%2 == 0 {
			n.Registry.User, n.Registry.Password = "alice", secret
			request["username"], request["password"] = "alice", secret
		}
		if err := n.FleetPull(request); err != nil {
			if kind != rejected || !strings.Contains(err.Error(), "ballast setup --registry "+n.Registry.Host) {
				t.Errorf("%s, which is %s: %v", b.Name, kind, err)
			}
			continue
		}
		mounted[kind]++
		pod := cri.RunPod(t, "")
		c, err := pod.Run(busybox, node.ImageMount{Image: request["ref"], Path: "/model"})
		if err != nil {
			t.Errorf("%s, which is %s, was pulled and cannot be mounted: %v", b.Name, kind, err)
		} else if kind == bare {
			wantVolume(t, cri, c, "/model", states(b))
		} else if got, err := cri.List(c, "/model"); err != nil || len(got) == 0 { // as containerd unpacks it
			t.Errorf("%s: got %v, %v, want files", b.Name, got, err)
		}
		if err := pod.Remove(); err != nil {
			t.Fatal(err)
		}
		removeImage(t, cri, request["ref"]) // others have the same config
	}
	if mounted[bare] < 2 || mounted[layered] < 2 || mounted[rejected] > 0 {
		t.Errorf("mounted: %v", mounted)
	}
}

// TestFleetVersion: of a tag that has moved, pods get the version that the agent of ModelSets asks for, of every format,
// public and private in turn, and the next pull gets what the registry says.
func TestFleetVersion(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{})
	const secret = "s3cret-of-fleet"
	node.Belongs(secret, n.Registry.Host)
	mounts := func(request map[string]string, want *converttest.Built) {
		t.Helper()
		if err := n.FleetPull(request); err != nil {
			t.Errorf("%s: %v", want.Name, err)
			return
		}
		pod := cri.RunPod(t, "")
		c, err := pod.Run(busybox, node.ImageMount{Image: request["ref"], Path: "/model"})
		if err != nil {
			t.Errorf("%s: %v", want.Name, err)
		} else {
			wantVolume(t, cri, c, "/model", states(want))
		}
		if err := pod.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	first, later := converttest.All(converttest.Files(weights(76, 1<<20+1))), converttest.All(converttest.Files(weights(77, 1<<20+1)))
	moved := 0
	for i, b := range first {
		request := map[string]string{"ref": push(t, n, b)}
		n.Registry.User, n.Registry.Password = "", ""
		if i%2 == 0 {
			n.Registry.User, n.Registry.Password = "alice", secret
			request["username"], request["password"] = "alice", secret
		}
		version, err := n.FleetVersion(request)
		if err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		if version == "" { // of a list of variants
			continue
		}
		if version != b.Digest().String() {
			t.Errorf("%s: the tag points to %s, want %s", b.Name, version, b.Digest())
		}
		moved++
		push(t, n, later[i])
		request["version"] = version
		mounts(request, b)
		if moved <= 2 {
			delete(request, "version")
			mounts(request, later[i])
		}
	}
	if moved < len(first)-2 {
		t.Errorf("%d of %d formats have versions", moved, len(first))
	}
}

// TestFleetPins: a kubelet, which removes images as CRI reports them, keeps those of ModelSets, and ballastd says which of
// these somebody else has removed. Pins of others stay.
func TestFleetPins(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	cri := n.CRI(t)
	models, ids := map[string]digest.Digest{}, map[string]string{}
	pull := func(ref string) {
		t.Helper()
		if err := n.FleetPull(map[string]string{"ref": ref}); err != nil {
			t.Fatal(err)
		}
		id, err := cri.Pull(ref, "")
		if err != nil {
			t.Fatal(err)
		}
		models[ref], ids[ref] = digest.Digest(convertedDigest(t, n, ref)), id
	}
	pinned := func(refs ...string) {
		t.Helper()
		waitFor(t, fmt.Sprintf("pins of %q", refs), func() error { // CRI hears of labels by events
			resp, err := cri.Images.ListImages(t.Context(), &criapi.ListImagesRequest{})
			if err != nil {
				return err
			}
			for _, im := range resp.Images {
				want := slices.ContainsFunc(refs, func(ref string) bool { return ids[ref] == im.Id })
				if im.Pinned != want && slices.Contains(slices.Collect(maps.Values(ids)), im.Id) {
					return fmt.Errorf("%v has pinned %t", im.RepoTags, im.Pinned)
				}
			}
			return nil
		})
	}
	mine := push(t, n, converttest.Ollama(converttest.Files(weights(77, 1<<20+1)), converttest.OllamaConfigNew))
	theirs := push(t, n, converttest.DockerAIGGUF(converttest.Files(weights(78, 1<<20+1))))
	pull(mine)
	pull(theirs)
	if out := n.Ctr("-n", "k8s.io", "images", "label", ids[theirs], "io.cri-containerd.pinned=pinned"); out.Err != nil {
		t.Fatal(out.Output())
	}
	if d := cmp.Diff(models, n.FleetPin(t, models)); d != "" {
		t.Errorf("pins (-want +got):\n%s", d)
	}
	pinned(mine, theirs)
	removeImage(t, cri, ids[mine])
	if d := cmp.Diff(map[string]digest.Digest{theirs: models[theirs]}, n.FleetPin(t, models)); d != "" {
		t.Errorf("pins without an image (-want +got):\n%s", d)
	}
	pull(mine)
	if d := cmp.Diff(models, n.FleetPin(t, models)); d != "" {
		t.Errorf("pins after another pull (-want +got):\n%s", d)
	}
	pinned(mine, theirs)
	n.FleetPin(t, nil)
	pinned(theirs)
}
