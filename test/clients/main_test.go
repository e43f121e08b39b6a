package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m.Run)) }

// tool returns the path of a client built by test/clients.sh.
func tool(t *testing.T, name string) string {
	t.Helper()
	p, err := filepath.Abs(filepath.Join("../../.cache/tools/clients", name))
	if err == nil {
		_, err = os.Stat(p)
	}
	if err != nil {
		t.Fatalf("%s is not built; run `make clients`: %v", name, err)
	}
	return p
}

// run runs a client, which must succeed, and returns its output.
func run(t *testing.T, env []string, argv ...string) string {
	t.Helper()
	r := node.Command(context.Background(), env, argv...)
	if r.Err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), r.Err, r.Output())
	}
	return r.Stdout
}

// models are models of formats that look different to clients.
func models() []*converttest.Built {
	return converttest.All(converttest.Files(weights(1<<20 + 3)))
}

func weights(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>9)
	}
	copy(p, "GGUF of no version")
	return p
}

// push pushes a model to the registry of a node and returns its reference.
func push(t *testing.T, n *node.Node, b *converttest.Built) string {
	t.Helper()
	n.Registry.Push(t, "models/"+b.Name, "1", node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
	return n.Registry.Ref("models/"+b.Name, "1")
}

// sums returns the digests of the files of a model.
func sums(b *converttest.Built) map[string]string {
	m := map[string]string{}
	for _, f := range b.Files {
		m[f.Path] = digest.FromBytes(f.Data).Encoded()
	}
	return m
}

// onDisk returns the digests of the regular files below a directory.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		m[rel] = digest.FromBytes(data).Encoded()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// listed returns the digests in the output of sha256sum for files below a directory.
func listed(out, dir string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[1], dir+"/") {
			m[strings.TrimPrefix(f[1], dir+"/")] = f[0]
		}
	}
	return m
}

// sumFiles is a command that prints the digests of all files below a directory.
func sumFiles(dir string) []string {
	return []string{"sh", "-c", "find " + dir + " -type f | xargs sha256sum"}
}

// same fails the test if the files differ from want.
func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("%s: files (-got +want):\n%s", what, diff)
	}
}

// edited returns an image with another config.
func edited(t *testing.T, a node.Artifact, edit func(*ocispec.Image)) node.Artifact {
	t.Helper()
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(a.Blobs[m.Config.Digest], &config); err != nil {
		t.Fatal(err)
	}
	edit(&config)
	p, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	out := node.Artifact{MediaType: a.MediaType, Blobs: map[digest.Digest][]byte{}}
	for _, l := range m.Layers {
		out.Blobs[l.Digest] = a.Blobs[l.Digest]
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(p), int64(len(p))
	out.Blobs[m.Config.Digest] = p
	if out.Manifest, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return out
}

// snapshotter returns the name of the snapshotter of a node.
func snapshotter(stock bool) string {
	if stock {
		return "overlayfs"
	}
	return "ballast"
}

// network gives pods a network with only an address, and restarts containerd, which reads the
// configuration.
func network(t *testing.T, n *node.Node) {
	t.Helper()
	for name, content := range map[string]string{
		"cni/loopback":         "#!/bin/sh\necho '{\"cniVersion\": \"1.0.0\"}'\n",
		"cni/nothing":          "#!/bin/sh\necho '{\"cniVersion\": \"1.0.0\", \"interfaces\": [{\"name\": \"eth0\", \"sandbox\": \"'$CNI_NETNS'\"}], \"ips\": [{\"address\": \"192.0.2.2/24\", \"interface\": 0}]}'\n",
		"cni/nothing.conflist": `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "nothing"}]}`,
	} {
		if err := os.WriteFile(filepath.Join(n.Dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.Containerd.Stop(t)
	n.StartContainerd(t)
}

// both runs a test on a stock node and on a node with ballast.
func both(t *testing.T, f func(t *testing.T, n *node.Node, snapshotter string)) {
	for _, stock := range []bool{true, false} {
		t.Run(snapshotter(stock), func(t *testing.T) {
			n := node.StartNode(t, node.Options{Stock: stock})
			n.Registry.Push(t, "busybox", "1", node.Busybox(t))
			f(t, n, snapshotter(stock))
		})
	}
}

// author gives an image another config.
func author(name string) func(*ocispec.Image) {
	return func(im *ocispec.Image) { im.Author = fmt.Sprintf("author of %s", name) }
}
