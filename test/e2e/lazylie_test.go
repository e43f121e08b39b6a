package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// fetched returns the content at a path of the registry.
func fetched(t *testing.T, n *node.Node, path string) []byte {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+n.Registry.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	return p
}

// lyingModel converts b, sets another digest for model.gguf in its table, and adds files.
func lyingModel(t *testing.T, n *node.Node, b *converttest.Built, as digest.Digest, more ...filetable.File) string {
	t.Helper()
	src := push(t, n, b)
	if out := n.Ballast("convert", src, n.Registry.Ref("lazy/lie", "true"), "--compress", "zstd-chunked"); out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(fetched(t, n, "/v2/lazy/lie/manifests/true"), &m); err != nil {
		t.Fatal(err)
	}
	config := fetched(t, n, "/v2/lazy/lie/blobs/"+m.Config.Digest.String())
	blobs := map[digest.Digest][]byte{}
	for i, l := range m.Layers {
		if l.MediaType != filetable.MediaTypeTableLayer {
			continue
		}
		table, err := filetable.Decode(fetched(t, n, "/v2/lazy/lie/blobs/"+l.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		for j := range table.Files {
			if table.Files[j].Path == "model.gguf" {
				table.Files[j].Digest = as
			}
		}
		table.Files = append(table.Files, more...)
		slices.SortFunc(table.Files, func(a, b filetable.File) int { return strings.Compare(a.Path, b.Path) })
		p, err := table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(p)
		config = bytes.ReplaceAll(config, []byte(l.Digest), []byte(d))
		m.Layers[i].Digest, m.Layers[i].Size = d, int64(len(p))
		blobs[d] = p
	}
	m.Config.Digest, m.Config.Size = digest.FromBytes(config), int64(len(config))
	blobs[m.Config.Digest] = config
	manifest, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	n.Registry.Push(t, "lazy/lie", "1", node.Artifact{Manifest: manifest, MediaType: ocispec.MediaTypeImageManifest, Blobs: blobs})
	return n.Registry.Ref("lazy/lie", "1")
}

// The table of a model gives its own bytes the digest of another model's file. A container reads it,
// and it is removed. Readers of the other model must then get the bytes of the digest, not those in the
// page cache.
func TestLazyLieIsForgotten(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	honest := converttest.ModelPackRaw(converttest.Files(weights(150, 24<<20)))
	want := honest.Files["model.gguf"].Data
	ref := convertedModel(t, n, honest)
	evil := converttest.ModelPackRaw(converttest.Files(weights(151, 24<<20)))
	lie := lyingModel(t, n, evil, digest.FromBytes(want))

	pause(t, n)
	mustPull(t, n, "ballast", lie)
	id := "liar"
	if out := n.Start("ballast", lie, id); out.Err != nil {
		t.Fatalf("start: %v\n%s", out.Err, out.Output())
	}
	got := readIn(t, n, id, 4096)
	if bytes.Equal(got, want[:4096]) {
		t.Fatal("the lie shows the honest bytes; the test proves nothing")
	}
	n.Ctr("tasks", "rm", "-f", id)
	n.Ctr("containers", "rm", id)
	if out := n.Ctr("images", "rm", "--sync", lie); out.Err != nil {
		t.Fatal(out.Output())
	}

	mustPull(t, n, "ballast", ref)
	m := &lazyModel{node: n, ref: ref, want: want, path: filepath.Join(rootOf(t, n, ref), "model.gguf")}
	if m.complete() {
		t.Error("the honest model was complete before it was read")
	}
	if err := m.read(0, 4096); err != nil {
		t.Errorf("honest model: %v", err)
	}
	resume(t, n)
	m.awaitComplete(t)
	wantFiles(t, n, ref, states(honest))
}

// readIn reads the first bytes of model.gguf in a container.
func readIn(t *testing.T, n *node.Node, id string, size int) []byte {
	t.Helper()
	for line := range strings.Lines(n.Ctr("tasks", "ls").Stdout) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != id {
			continue
		}
		file, err := os.Open(filepath.Join("/proc", f[1], "root", "model.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		p := make([]byte, size)
		if _, err := io.ReadFull(file, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	t.Fatalf("container %s has no process", id)
	return nil
}

// One model has two names: after one is removed, readers through the other continue; after both are
// removed, nothing is fetched and nothing is left.
func TestLazyRemoved(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	want := weights(152, 96<<20)
	b := converttest.ModelPackRaw(converttest.Files(want))
	first := convertedModel(t, n, b)
	second := strings.TrimSuffix(first, ":1") + ":2"
	if out := n.Ballast("convert", n.Registry.Ref("models/"+b.Name, "1"), second); out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	crawl(n)
	mustPull(t, n, "ballast", first)
	mustPull(t, n, "ballast", second)
	m := &lazyModel{node: n, ref: second, want: want, path: filepath.Join(rootOf(t, n, second), "model.gguf")}
	if out := n.Ctr("images", "rm", "--sync", first); out.Err != nil {
		t.Fatal(out.Output())
	}
	if err := m.read(90<<20, 4096); err != nil {
		t.Errorf("one of two names is gone: %v", err)
	}
	n.Ctr("tasks", "rm", "-f", "reader"+lastReader())
	n.Ctr("containers", "rm", "reader"+lastReader())
	if out := n.Ctr("images", "rm", "--sync", second); out.Err != nil {
		t.Fatal(out.Output())
	}
	waitFor(t, "the fetch to end", func() error {
		if !logged(t, n, "nothing needs the model") {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	time.Sleep(2 * time.Second) // for requests that are being sent
	n.Registry.Wire.Drain()
	n.Registry.Wire.Reset()
	time.Sleep(3 * time.Second)
	if got := len(n.Registry.Wire.Requests()); got > 0 {
		t.Errorf("%d requests for a model that nothing refers to", got)
	}
	n.Registry.Wire.Link(0, 0)
	if m.complete() {
		t.Fatal("the model was complete before it was removed; the test proves nothing")
	}
}
