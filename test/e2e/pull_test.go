package e2e

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// TestPullFormats pulls a model of every format with ctr, and compares all files in a container with
// the original.
func TestPullFormats(t *testing.T) {
	for _, show := range ways {
		n := node.StartNode(t, node.Options{Config: showAs(show)})
		for _, b := range converttest.All(converttest.Files(weights(1, 3<<20+17))) {
			t.Run(show+"/"+b.Name, func(t *testing.T) {
				ref := push(t, n, b)
				mustPull(t, n, "ballast", ref)
				wantFiles(t, n, ref, states(b))
			})
		}
	}
}

// TestPullLocal is TestPullFormats for clients that fetch and unpack layers themselves.
func TestPullLocal(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	for _, b := range converttest.All(converttest.Files(weights(2, 1<<20+3))) {
		t.Run(b.Name, func(t *testing.T) {
			ref := push(t, n, b)
			mustPull(t, n, "ballast", ref, "--local")
			wantFiles(t, n, ref, states(b))
		})
	}
}

// TestPullOllama pulls by its ordinary name from a server that behaves as registry.ollama.ai does.
func TestPullOllama(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback})
	front := node.StartOllama(t, n.Registry)
	n.Upstream(t, "registry.ollama.ai", front.Host)
	for _, config := range []converttest.OllamaConfig{converttest.OllamaConfigOld, converttest.OllamaConfigNew} {
		b := converttest.Ollama(converttest.Files(weights(3, 5<<20)), config)
		n.Registry.Push(t, "library/tiny", string(config), artifact(b))
		ref := "registry.ollama.ai/library/tiny:" + string(config)
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
	}
	for _, r := range front.Blobs.Requests() {
		if r.Authorization != "" {
			t.Errorf("credentials went to the other server: %s %s", r.Method, r.Path)
		}
	}
}

// TestPullImage pulls and runs an ordinary image through the same snapshotter and facade.
func TestPullImage(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	ref := n.Registry.Ref("busybox", "1")
	for _, flags := range [][]string{nil, {"--local"}} {
		mustPull(t, n, "ballast", ref, flags...)
		got, err := n.List("ballast", ref, "/data")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(ordinaryFiles(), got); d != "" {
			t.Errorf("files (-want +got):\n%s", d)
		}
		if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
			t.Fatalf("%v: %s", out.Err, out.Output())
		}
	}
	// The manifest must be that of the registry, byte for byte.
	mustPull(t, n, "ballast", ref)
	want := digest.FromBytes(node.Busybox(t).Manifest).String()
	if out := n.Ctr("images", "ls"); !strings.Contains(out.Stdout, want) {
		t.Errorf("got %s, want the digest %s", out.Stdout, want)
	}
}

// TestOneObject pulls the same weights in five formats: they are one file on disk, and no raw blob is
// downloaded after the first one.
func TestOneObject(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(4, 16<<20)
	files := converttest.Files(w)
	wrappings := []*converttest.Built{
		converttest.Ollama(files, converttest.OllamaConfigNew),
		converttest.DockerAIGGUF(files),
		converttest.ModelPackRaw(files),
		converttest.ModelPackTar(files),
		converttest.CNAIEarlyGzip(files),
	}
	for _, b := range wrappings {
		ref := push(t, n, b)
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
	}
	d := digest.FromBytes(w)
	if _, err := os.Stat(object(n, d)); err != nil {
		t.Errorf("the weights are not an object: %v", err)
	}
	if got, limit := disk(t, n.Root()), int64(len(w))*5/4; got > limit {
		t.Errorf("disk use of five wrappings: got %d, want at most %d", got, limit)
	}
	sent := n.Registry.Wire.BlobBytes()
	if got, want := sent[d], int64(len(w)); got != want {
		t.Errorf("bytes of the raw weights downloaded: got %d, want %d", got, want)
	}
}

// TestSameOnTwoNodes converts the same models on two new nodes: the digests are equal.
func TestSameOnTwoNodes(t *testing.T) {
	a := node.StartNode(t, node.Options{})
	b := node.StartNode(t, node.Options{Registry: a.Registry})
	for _, m := range converttest.All(converttest.Files(weights(5, 100<<10))) {
		ref := push(t, a, m)
		var targets []string
		for _, n := range []*node.Node{a, b} {
			mustPull(t, n, "ballast", ref)
			targets = append(targets, imageDigest(t, n, ref))
		}
		if targets[0] != targets[1] {
			t.Errorf("%s: %s on one node, %s on the other", m.Name, targets[0], targets[1])
		}
		if targets[0] == m.Digest().String() {
			t.Errorf("%s: was not converted", m.Name)
		}
	}
}

// TestWriteIsPrivate writes to a model's file in a container: the container gets a private copy, and
// the model does not change.
func TestWriteIsPrivate(t *testing.T) {
	for _, show := range ways {
		t.Run(show, func(t *testing.T) { testWriteIsPrivate(t, show) })
	}
}

func testWriteIsPrivate(t *testing.T, show string) {
	n := node.StartNode(t, node.Options{Config: showAs(show)})
	b := converttest.ModelPackRaw(converttest.Files(weights(6, 1<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	out := n.RunIn("ballast", ref, `printf X | $B dd of=/model.gguf bs=1 conv=notrunc 2>/dev/null && $B sha256sum < /model.gguf && $B rm /README.md && ! $B test -e /README.md`)
	if out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	changed := bytes.Clone(b.Files["model.gguf"].Data)
	changed[0] = 'X'
	if want := digest.FromBytes(changed).Encoded(); !strings.Contains(out.Stdout, want) {
		t.Errorf("after the write: got %s, want %s", out.Stdout, want)
	}
	wantFiles(t, n, ref, states(b))
}

// TestRemove removes an image and collects: the disk space is free again, in containerd and in the
// store.
func TestRemove(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	before := disk(t, n.Root())
	w := weights(7, 32<<20)
	b := converttest.ModelPackRaw(converttest.Files(w))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	if got := disk(t, n.Root()) - before; got < int64(len(w)) {
		t.Fatalf("disk use after the pull: got %d, want at least %d", got, len(w))
	}

	// While the image exists, nothing is removed.
	if out := n.Ballast("gc", "--yes"); out.Err != nil {
		t.Fatalf("ballast gc: %v\n%s", out.Err, out.Output())
	}
	wantFiles(t, n, ref, states(b))

	if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	if out := n.Ballast("gc", "--yes"); out.Err != nil {
		t.Fatalf("ballast gc: %v\n%s", out.Err, out.Output())
	}
	if got := disk(t, n.Root()) - before; got > 1<<20 {
		t.Errorf("disk use after rm and gc: got %d more than before, want at most 1 MiB", got)
	}
	if got := disk(t, n.Dir+"/root"); got > 16<<20 {
		t.Errorf("disk use of containerd: %d", got)
	}
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))
	if !slices.Contains(imageNames(t, n), ref) {
		t.Errorf("%s is not there after the second pull", ref)
	}
}

// TestOneFetch pulls and prefetches models concurrently: each is downloaded once, except for requests
// that were canceled in favor of another repository.
func TestOneFetch(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	sizes := map[digest.Digest]int64{}
	var g errgroup.Group
	for i, build := range []func([]converttest.File) *converttest.Built{
		func(f []converttest.File) *converttest.Built { return converttest.ModelPackRaw(f) },
		func(f []converttest.File) *converttest.Built { return converttest.DockerAIGGUF(f) },
		func(f []converttest.File) *converttest.Built {
			return converttest.Ollama(f, converttest.OllamaConfigOld)
		},
	} {
		w := weights(byte(40+i), 24<<20)
		sizes[digest.FromBytes(w)] = int64(len(w))
		n.Registry.Wire.Add(node.Fault{Match: node.Blob(digest.FromBytes(w)), Rate: 4 << 20})
		ref := push(t, n, build(converttest.Files(w)))
		for _, do := range []func() node.Result{
			func() node.Result { return n.Pull("ballast", ref) },
			func() node.Result { return n.Ballast("prefetch", ref) },
		} {
			g.Go(func() error {
				if out := do(); out.Err != nil {
					return fmt.Errorf("%s: %w: %s", ref, out.Err, out.Output())
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for d, want := range sizes {
		if got := n.Registry.Wire.BlobBytes()[d]; got < want || got > want*5/4 {
			t.Errorf("bytes of %s downloaded: got %d, want %d", d, got, want)
		}
	}
}

// TestRestart restarts both daemons: containers continue to run, and images are still there.
func TestRestart(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.CNAIEarlyGzip(converttest.Files(weights(9, 4<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	if out := n.Start("ballast", ref, "running"); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	n.Ballastd.Kill()
	n.Containerd.Stop(t)
	n.StartBallastd(t)
	n.StartContainerd(t)
	out := n.Exec("running", "/.bin/busybox", "sha256sum", "/model.gguf")
	if want := state(b.Files["model.gguf"]).SHA256; out.Err != nil || !strings.HasPrefix(out.Stdout, want) {
		t.Errorf("running container: got %v %s, want %s", out.Err, out.Output(), want)
	}
	n.Registry.Wire.Reset()
	wantFiles(t, n, ref, states(b))
	mustPull(t, n, "ballast", ref)
	for d, got := range n.Registry.Wire.BlobBytes() {
		if got > 4<<10 {
			t.Errorf("%d bytes of %s were downloaded again", got, d)
		}
	}
}
