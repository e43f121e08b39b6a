package clients

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	oci "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// foreignModel writes a model that others compress to more than 50 MB, as their tools do for an image: weights of
// which some compress and some repeat, and small files.
func foreignModel(t *testing.T) (dir string, sums map[string]string) {
	t.Helper()
	dir = t.TempDir()
	var big []byte
	for i := range 40 {
		big = append(big, random(byte(i%36), 1_700_000)...) // some twice
		big = append(big, make([]byte, 200_000)...)
		big = append(big, weights(300_000)...)
	}
	for p, data := range map[string][]byte{
		"model.safetensors": big, "config.json": []byte("{}\n"), "tokenizer/tokenizer.json": weights(3 << 20), "empty": nil,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "Containerfile"), []byte("FROM scratch\nCOPY config.json empty model.safetensors /\nCOPY tokenizer /tokenizer\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sums = onDisk(t, dir)
	delete(sums, "Containerfile")
	return dir, sums
}

// layersOf makes a ModelPack artifact of the layers that another tool has pushed as those of an image, and of what it
// has written about them. chunked reports whether that is the digest of a table of contents.
func layersOf(t *testing.T, from *node.Registry) (a node.Artifact, chunked bool) {
	t.Helper()
	get := func(path string) []byte {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+from.Host+"/v2/image"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		p, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: %s %v", req.URL, res.Status, err)
		}
		return p
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(get("/manifests/1"), &m); err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"descriptor":{},"modelfs":{"type":"layers","diffIds":[]},"config":{}}`)
	a = node.Artifact{MediaType: ocispec.MediaTypeImageManifest, Blobs: map[digest.Digest][]byte{digest.FromBytes(config): config}}
	out := ocispec.Manifest{
		Versioned: oci.Versioned{SchemaVersion: 2}, MediaType: a.MediaType, ArtifactType: "application/vnd.cncf.model.manifest.v1+json",
		Config: ocispec.Descriptor{MediaType: "application/vnd.cncf.model.config.v1+json", Digest: digest.FromBytes(config), Size: int64(len(config))},
	}
	total := int64(0)
	for _, l := range m.Layers {
		codec, ok := strings.CutPrefix(l.MediaType, ocispec.MediaTypeImageLayer)
		if !ok {
			t.Fatalf("a layer of type %s", l.MediaType)
		}
		for k := range l.Annotations {
			chunked = chunked || strings.Contains(k, "checksum") || strings.Contains(k, "toc.digest")
		}
		l.MediaType = "application/vnd.cncf.model.weight.v1.tar" + codec
		a.Blobs[l.Digest] = get("/blobs/" + l.Digest.String())
		total += l.Size
		out.Layers = append(out.Layers, l)
	}
	if total < 50e6 {
		t.Fatalf("layers of %d bytes", total)
	}
	var err error
	if a.Manifest, err = json.Marshal(out); err != nil {
		t.Fatal(err)
	}
	return a, chunked
}

// TestForeignLayers reads models in layers that other tools compress at their defaults: while they are incomplete,
// when they are complete, and on a node that shows only complete models.
func TestForeignLayers(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	dir, want := foreignModel(t)
	root, runroot := filepath.Join(n.Dir, "podman"), filepath.Join(n.Dir, "podman-run")
	storage := []string{"--root", root, "--runroot", runroot, "--storage-driver", "vfs"}
	with := func(program, command string, args ...string) {
		t.Helper()
		run(t, nil, append(append(append([]string{program}, storage...), command), args...)...)
	}
	const image = "localhost/model:1"
	with("buildah", "build", "--quiet", "--layers=false", "--squash", "--tag", image, dir)
	registries := map[string]*node.Registry{} // one each: these programs do not compress what a registry has
	ref := func(name string) string {
		if registries[name] == nil {
			registries[name] = node.StartRegistry(t, t.TempDir())
		}
		return registries[name].Ref("image", "1")
	}
	with("podman", "push", "--quiet", "--tls-verify=false", "--compression-format", "zstd:chunked", image, ref("podman"))
	with("podman", "push", "--quiet", "--tls-verify=false", image, ref("podman-gzip"))
	with("podman", "push", "--quiet", "--tls-verify=false", "--compression-format", "zstd", image, ref("podman-zstd"))
	with("buildah", "push", "--quiet", "--tls-verify=false", "--compression-format", "zstd:chunked", image, ref("buildah"))
	run(t, nil, "skopeo", "copy", "--quiet", "--dest-tls-verify=false", "--dest-compress-format", "zstd:chunked",
		"containers-storage:[vfs@"+root+"+"+runroot+"]"+image, "docker://"+ref("skopeo"))
	c := newNerdctl(t, n, "overlayfs")
	c.run("pull", "--quiet", "--insecure-registry", ref("podman-gzip"))
	for name, flag := range map[string]string{"nerdctl-estargz": "--estargz", "nerdctl-zstdchunked": "--zstdchunked"} {
		c.run("image", "convert", "--oci", flag, ref("podman-gzip"), ref(name))
		c.run("push", "--quiet", "--insecure-registry", ref(name))
		c.run("rmi", ref(name))
	}
	c.run("rmi", ref("podman-gzip"))

	for _, name := range []string{"podman", "buildah", "skopeo", "nerdctl-estargz", "nerdctl-zstdchunked", "podman-gzip", "podman-zstd"} {
		t.Run(name, func(t *testing.T) {
			a, chunked := layersOf(t, registries[name])
			if whole := name == "podman-gzip" || name == "podman-zstd"; chunked == whole {
				t.Fatalf("the manifest has a table of contents: %t", chunked)
			}
			n.Registry.Push(t, "foreign/"+name, "1", a)
			ref := n.Registry.Ref("foreign/"+name, "1")
			n := node.StartNode(t, node.Options{Registry: n.Registry}) // that has none of the files
			links := node.StartNode(t, node.Options{Registry: n.Registry, Config: "[snapshot]\nshow = \"links\"\n"})
			ballast(t, n, "pause")
			if out := n.Pull("ballast", ref); out.Err != nil {
				t.Fatalf("ctr images pull %s: %v\n%s", ref, out.Err, out.Output())
			}
			if lazy := inState(t, n, ref, "lazy"); lazy != chunked {
				t.Errorf("it is shown before it is complete: %t, want %t", lazy, chunked)
			}
			same(t, "incomplete", mounted(t, n, "ballast", ref), want)
			ballast(t, n, "resume")
			ballast(t, n, "pull", strings.TrimSpace(ballast(t, n, "ls", "--quiet"))) // the only model
			if !inState(t, n, ref, "complete") {
				t.Errorf("it is not complete:\n%s", n.Ballast("ls").Output())
			}
			same(t, "complete", mounted(t, n, "ballast", ref), want)
			same(t, "links", mounted(t, links, "ballast", ref), want)
		})
	}
}

// inState reports whether a model is in a state of "ballast ls".
func inState(t *testing.T, n *node.Node, ref, state string) bool {
	t.Helper()
	out := n.Ballast("ls", "--quiet", "--filter", "state="+state, "--filter", "ref="+ref)
	if out.Err != nil {
		t.Fatalf("ballast ls: %v\n%s", out.Err, out.Output())
	}
	return strings.TrimSpace(out.Stdout) != ""
}

// ballast runs ballast, and returns what it prints.
func ballast(t *testing.T, n *node.Node, args ...string) string {
	t.Helper()
	out := n.Ballast(args...)
	if out.Err != nil {
		t.Fatalf("ballast %s: %v\n%s", strings.Join(args, " "), out.Err, out.Output())
	}
	return out.Stdout
}

// random returns n bytes that do not compress.
func random(seed byte, n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p) // it returns no error
	return p
}
