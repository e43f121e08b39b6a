package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestConvert converts an Ollama model into every form and into its own registry, and pulls the result:
// models with ballast, the plain image with stock overlayfs. The files are those of the Ollama model.
func TestConvert(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.Ollama(converttest.Files(weights(90, 9<<20+5)), converttest.OllamaConfigNew)
	src := push(t, n, b)
	want := states(b)
	for _, tt := range []struct {
		as, snapshotter string
		flags           []string
	}{
		{"ballast", "ballast", nil},
		{"modelpack", "ballast", nil},
		{"modelpack", "ballast", []string{"--tar"}},
		{"cnai", "ballast", nil},
		{"image", "overlayfs", nil},
		{"image", "ballast", nil},
	} {
		name := tt.as + strings.Join(tt.flags, "")
		t.Run(name+"/"+tt.snapshotter, func(t *testing.T) {
			dst := n.Registry.Ref("converted/"+name, "1")
			out := n.Ballast(append([]string{"convert", src, dst, "--as", tt.as, "-o", "json"}, tt.flags...)...)
			if out.Err != nil {
				t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
			}
			res := lastLine(t, out.Stdout)
			mustPull(t, n, tt.snapshotter, dst)
			got, err := n.List(tt.snapshotter, dst, "/")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("files (-want +got):\n%s", d)
			}
			// A second conversion sends no blob that the registry has, and has the same result.
			out = n.Ballast(append([]string{"convert", src, dst, "--as", tt.as, "-q"}, tt.flags...)...)
			if strings.TrimSpace(out.Stdout) != res.Digest {
				t.Errorf("second conversion: %q, want %s\n%s", out.Stdout, res.Digest, out.Stderr)
			}
			if seen := n.Ballast("digest", dst); tt.snapshotter == "ballast" && strings.TrimSpace(seen.Stdout) != imageDigest(t, n, dst) {
				t.Errorf("ballast digest: %s; containerd has %s", seen.Output(), imageDigest(t, n, dst))
			}
		})
	}
}

type converted struct {
	Status, Digest         string
	Sent, Mounted, Present int64
}

// lastLine is the result in the output of `ballast convert -o json`.
func lastLine(t *testing.T, stdout string) (c converted) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &c); err != nil || c.Status != "success" {
		t.Fatalf("last line %q: %v", lines[len(lines)-1], err)
	}
	return c
}

// TestConvertMounts converts within one registry: the weights are not transferred.
func TestConvertMounts(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(91, 12<<20)))
	src := push(t, n, b)
	n.Registry.Wire.Reset()
	dst := n.Registry.Ref("converted/mounted", "1")
	out := n.Ballast("convert", src, dst, "--as", "modelpack", "-o", "json")
	if out.Err != nil {
		t.Fatalf("%v\n%s", out.Err, out.Output())
	}
	res := lastLine(t, out.Stdout)
	if res.Mounted < 12<<20 || res.Sent > 1<<20 {
		t.Errorf("got %d bytes mounted and %d sent", res.Mounted, res.Sent)
	}
	if sent := n.Registry.Wire.BlobBytes()[digest.FromBytes(b.Files["model.gguf"].Data)]; sent > 12<<20 {
		t.Errorf("%d bytes of the weights were read", sent)
	}
	mustPull(t, n, "ballast", dst)
	wantFiles(t, n, dst, states(b))
}

// TestConvertDirectory converts a snapshot of a hub's cache, with its links to blobs, by way of an OCI layout. It has
// more files than an image has layers.
func TestConvertDirectory(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	cache := filepath.Join(n.Dir, "models--team--model")
	want := map[string]node.FileState{}
	snapshot := filepath.Join(cache, "snapshots", "0123abcd")
	files := map[string][]byte{
		"model.safetensors": weights(92, 5<<20), "config.json": []byte("{}"), "sub/tokenizer.json": []byte(`{"a":1}`),
	}
	for i := range 300 {
		files[fmt.Sprintf("many/%d.json", i)] = fmt.Appendf(nil, `{"number":%d}`, i)
	}
	for name, p := range files {
		f := converttest.File{Path: name, Data: p, Mode: 0o644}
		want[name] = state(f)
		blob := filepath.Join(cache, "blobs", "git-"+filepath.Base(name))
		if name == "model.safetensors" {
			blob = filepath.Join(cache, "blobs", want[name].SHA256)
		}
		link := filepath.Join(snapshot, name)
		for _, dir := range []string{filepath.Dir(blob), filepath.Dir(link)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(blob, p, 0o600); err != nil {
			t.Fatal(err)
		}
		target, err := filepath.Rel(filepath.Dir(link), blob)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	layout := "oci:" + filepath.Join(n.Dir, "layout") + ":v1"
	packed := n.Registry.Ref("converted/directory", "1")
	for _, args := range [][]string{
		{"convert", snapshot, layout, "--as", "modelpack"},
		{"convert", layout, packed},
		{"convert", layout, n.Registry.Ref("converted/directory", "image"), "--as", "image"},
	} {
		if out := n.Ballast(args...); out.Err != nil {
			t.Fatalf("ballast %s: %v\n%s", args, out.Err, out.Output())
		} else if args[2] == packed && !strings.Contains(out.Output(), "packed into tars") {
			t.Errorf("no small files are packed:\n%s", out.Output())
		}
	}
	for tag, snapshotter := range map[string]string{"1": "ballast", "image": "overlayfs"} {
		ref := n.Registry.Ref("converted/directory", tag)
		mustPull(t, n, snapshotter, ref)
		got, err := n.List(snapshotter, ref, "/")
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(got, func(p string, _ node.FileState) bool { return strings.HasPrefix(p, "origin/") })
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tag, d)
		}
	}
}

// TestConvertWrongBytes reads wrong bytes while converting: the command fails, and no tag is made.
func TestConvertWrongBytes(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.DockerAIGGUF(converttest.Files(weights(93, 6<<20)))
	src := push(t, n, b)
	dst := n.Registry.Ref("converted/spoilt", "1")
	remove := n.Registry.Wire.Add(node.Fault{Match: node.AnyBlob, Flip: true})
	out := n.Ballast("convert", src, dst)
	remove()
	if out.Err == nil {
		t.Fatalf("got no error\n%s", out.Output())
	}
	wantError(t, n.Ballast("digest", dst), "no such repository or tag")
}
