package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestImportOllama imports the models of a local Ollama and pulls them by name, from a registry that
// has their manifests but no longer their blobs.
func TestImportOllama(t *testing.T) {
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			n := node.StartNode(t, node.Options{Config: node.AllowLoopback + showAs(way)})
			front := node.StartOllama(t, n.Registry)
			n.Upstream(t, "registry.ollama.ai", front.Host)
			dir := filepath.Join(n.Dir, "models")
			linked := converttest.Ollama(converttest.Files(weights(95, 9<<20+5)), converttest.OllamaConfigNew)
			copied := converttest.Ollama(converttest.Files(weights(96, 5<<20+1)), converttest.OllamaConfigOld)
			for name, m := range map[string]struct {
				b      *converttest.Built
				layout converttest.StoreLayout
			}{"linked": {linked, converttest.StoreV2Link}, "copied": {copied, converttest.StoreLegacy}} {
				host := map[converttest.StoreLayout]string{converttest.StoreV2Link: "ollama.com", converttest.StoreLegacy: "registry.ollama.ai"}[m.layout]
				if err := converttest.WriteOllamaStore(dir, m.layout, host+"/library/"+name+"/1b", m.b); err != nil {
					t.Fatal(err)
				}
				n.Registry.Push(t, "library/"+name, "1b", artifact(m.b))
			}
			theirs := func(b *converttest.Built) string {
				return filepath.Join(dir, "blobs", "sha256-"+digest.FromBytes(b.Files["model.gguf"].Data).Encoded())
			}
			if err := os.Chown(theirs(copied), 1000, 1000); err != nil { // the owner of the files of Ollama's service
				t.Fatal(err)
			}
			front.Wire.Add(node.Fault{Match: node.AnyBlob, Status: 404})
			if out := n.Ballast("import", "ollama", "--dir", dir); out.Err != nil || strings.Count(out.Stdout, ":1b  ") != 2 {
				t.Fatalf("ballast import: %v\n%s", out.Err, out.Output())
			}
			if len(front.Wire.Requests()) != 0 {
				t.Errorf("the import asked the registry: %+v", front.Wire.Requests())
			}
			for name, b := range map[string]*converttest.Built{"linked": linked, "copied": copied} {
				ref := "registry.ollama.ai/library/" + name + ":1b"
				if out := n.Ballast("ls"); !strings.Contains(out.Stdout, ref) || !strings.Contains(out.Stdout, "complete, pinned") {
					t.Errorf("ballast ls:\n%s", out.Output())
				}
				mustPull(t, n, "ballast", ref)
				wantFiles(t, n, ref, states(b))
				object := filepath.Join(n.Root(), "objects", store.ObjectName(digest.FromBytes(b.Files["model.gguf"].Data)))
				if same := inode(t, object) == inode(t, theirs(b)); same != (name == "linked") {
					t.Errorf("%s: the object and Ollama's file are one: %v", name, same)
				}
			}
			for _, r := range front.Wire.Requests() {
				if r.Blob() != "" {
					t.Errorf("the pull asked for a blob: %s %s", r.Method, r.Path)
				}
			}
			// Ollama can be removed, and the models stay.
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if out := n.Ballast("verify"); out.Err != nil {
				t.Errorf("ballast verify: %v\n%s", out.Err, out.Output())
			}
			wantFiles(t, n, "registry.ollama.ai/library/linked:1b", states(linked))
		})
	}
}

// TestConvertLocal converts local models into a registry: a model of a local Ollama to a ModelPack, and
// a carton, as a file and at a URL, to an image for stock overlayfs.
func TestConvertLocal(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	dir := filepath.Join(n.Dir, "models")
	b := converttest.Ollama(converttest.Files(weights(97, 9<<20+5)), converttest.OllamaConfigNew)
	if err := converttest.WriteOllamaStore(dir, converttest.StoreV2Link, "ollama.com/library/x/1b", b); err != nil {
		t.Fatal(err)
	}
	c := converttest.GoodCarton(weights(98, 5<<20+1))
	file := filepath.Join(n.Dir, "tiny.carton")
	if err := os.WriteFile(file, c.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	url := "http://" + serveFile(t, "/tiny.carton", c.Bytes(), true) + "/tiny.carton"
	for _, tt := range []struct {
		src, as, snapshotter string
		want                 map[string]node.FileState
	}{
		{"ollama:" + dir + ":x:1b", "modelpack", "ballast", states(b)},
		{file, "image", "overlayfs", cartonStates(c)},
		{url, "image", "overlayfs", cartonStates(c)},
		{file, "ballast", "ballast", cartonStates(c)},
	} {
		dst := n.Registry.Ref("converted/local", digest.FromString(tt.src + tt.as).Encoded()[:8])
		if out := n.Ballast("convert", tt.src, dst, "--as", tt.as); out.Err != nil {
			t.Errorf("%s: %v\n%s", tt.src, out.Err, out.Output())
			continue
		}
		mustPull(t, n, tt.snapshotter, dst)
		got, err := n.List(tt.snapshotter, dst, "/")
		if err != nil {
			t.Errorf("%s: %v", tt.src, err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("files of %s (-want +got):\n%s", tt.src, d)
		}
	}
}

func inode(t *testing.T, name string) uint64 {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}
