package clients

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// convert runs "ballast convert" into the registry of a node and returns the reference.
func convert(t *testing.T, n *node.Node, src, name string, flags ...string) string {
	t.Helper()
	ref := n.Registry.Ref("converted/"+name, "1")
	if out := n.Ballast(append([]string{"convert", src, ref}, flags...)...); out.Err != nil {
		t.Fatalf("ballast convert %s: %v\n%s", strings.Join(flags, " "), out.Err, out.Output())
	}
	return ref
}

// directory writes the files of a model.
func directory(t *testing.T, b *converttest.Built) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	for _, f := range b.Files {
		p := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, f.Data, os.FileMode(f.Mode)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// forms are the forms of "ballast convert".
var forms = []struct {
	name  string
	flags []string
	image bool // an ordinary image
	raw   bool // a layer for each file
}{
	{"ballast", nil, false, false},
	{"ballast-seekable", []string{"--compress", "zstd-seekable"}, false, false},
	{"ballast-chunked", []string{"--compress", "zstd-chunked"}, false, false},
	{"modelpack", []string{"--as", "modelpack"}, false, true},
	{"modelpack-tar", []string{"--as", "modelpack", "--tar"}, false, false},
	{"image", []string{"--as", "image"}, true, false},
	{"image-chunked", []string{"--as", "image", "--compress", "zstd-chunked"}, true, false},
}

// mounted returns the files of an image as a container of ctr sees them. flags are those of the pull.
func mounted(t *testing.T, n *node.Node, snapshotter, ref string, flags ...string) map[string]string {
	t.Helper()
	if out := n.Pull(snapshotter, ref, flags...); out.Err != nil {
		t.Fatalf("ctr images pull %s: %v\n%s", ref, out.Err, out.Output())
	}
	files, err := n.List(snapshotter, ref, "/")
	if err != nil {
		t.Fatalf("container of %s: %v", ref, err)
	}
	m := map[string]string{}
	for p, f := range files {
		m[p] = f.SHA256
	}
	return m
}

// TestConverted copies the output of "ballast convert" with other tools, reads it with those that can,
// and mounts the copies with ballast, and ordinary images also with overlayfs.
func TestConverted(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	stock := node.StartNode(t, node.Options{Stock: true, Registry: n.Registry})
	b := converttest.ModelPackRaw(converttest.Files(weights(5<<20 + 3)))
	src := directory(t, b)
	for _, form := range forms {
		t.Run(form.name, func(t *testing.T) {
			ref := convert(t, n, src, form.name, form.flags...)
			copies := map[string]string{}
			for _, tool := range []string{"oras", "crane", "skopeo"} {
				copies[tool] = n.Registry.Ref("copies/"+form.name, tool)
			}
			run(t, nil, tool(t, "oras"), "cp", "--from-plain-http", "--to-plain-http", ref, copies["oras"])
			run(t, nil, tool(t, "crane"), "copy", "--insecure", ref, copies["crane"])
			run(t, nil, "skopeo", "copy", "--quiet", "--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false", "docker://"+ref, "docker://"+copies["skopeo"])
			want := run(t, nil, tool(t, "crane"), "digest", "--insecure", ref)
			for name, c := range copies {
				if got := run(t, nil, tool(t, "crane"), "digest", "--insecure", c); got != want {
					t.Errorf("%s copied %s as %s", name, want, got)
				}
			}
			same(t, "the copy", withoutOrigin(mounted(t, n, "ballast", copies["skopeo"])), sums(b))
			if form.image {
				run(t, nil, tool(t, "crane"), "validate", "--fast", "--insecure", "--remote", ref)
				exported := filepath.Join(t.TempDir(), "fs.tar")
				run(t, nil, tool(t, "crane"), "export", "--insecure", ref, exported)
				same(t, "crane export", inTar(t, exported), sums(b))
				same(t, "overlayfs", mounted(t, stock, "overlayfs", ref), sums(b))
			}
			if form.raw {
				dir := t.TempDir()
				run(t, nil, tool(t, "oras"), "pull", "--plain-http", "--output", dir, ref)
				same(t, "oras pull", withoutOrigin(onDisk(t, dir)), sums(b))
			}
		})
	}
}

// withoutOrigin leaves out the documents of the original model.
func withoutOrigin(m map[string]string) map[string]string {
	for p := range m {
		if strings.HasPrefix(p, "origin/") {
			delete(m, p)
		}
	}
	return m
}

// inTar returns the digests of the regular files of a tar.
func inTar(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := map[string]string{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err == io.EOF {
			return m
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		d, err := digest.FromReader(r)
		if err != nil {
			t.Fatal(err)
		}
		m[strings.TrimPrefix(h.Name, "./")] = d.Encoded()
	}
}

// TestOrasPush pushes a ModelPack artifact with oras alone, which names files by their titles, and
// reads it with ctr.
func TestOrasPush(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	dir := t.TempDir()
	files := map[string][]byte{"model.gguf": weights(2<<20 + 1), "tokenizer/vocab.json": []byte("{}\n"), "README.md": []byte("# read me\n")}
	types := map[string]string{
		"model.gguf":           "application/vnd.cncf.model.weight.v1.raw",
		"tokenizer/vocab.json": "application/vnd.cncf.model.weight.config.v1.raw",
		"README.md":            "application/vnd.cncf.model.doc.v1.raw",
	}
	want, args := map[string]string{}, []string{}
	config := map[string]any{"descriptor": map[string]any{"name": "pushed"}, "config": map[string]any{}}
	var diffs []string
	for p, data := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), data, 0o644); err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(data)
		want[p], diffs, args = d.Encoded(), append(diffs, d.String()), append(args, p+":"+types[p])
	}
	config["modelfs"] = map[string]any{"type": "layers", "diffIds": diffs}
	encoded, err := json.Marshal(config)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "config.json"), encoded, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, oras := n.Registry.Ref("pushed/by-oras", "1"), tool(t, "oras")
	t.Chdir(dir)
	run(t, nil, append([]string{oras, "push", "--plain-http", "--artifact-type", "application/vnd.cncf.model.manifest.v1+json",
		"--config", "config.json:application/vnd.cncf.model.config.v1+json", ref}, args...)...)
	same(t, "pushed by oras", mounted(t, n, "ballast", ref), want)

	// The same bytes can be pulled again, with ballast and with oras.
	back := t.TempDir()
	run(t, nil, oras, "pull", "--plain-http", "--output", back, ref)
	same(t, "pulled by oras", onDisk(t, back), want)
}

// TestOrasFiles pushes files and a directory with oras as anybody does, without a model format. They
// are mounted, by a name in the configuration and after a prefetch, as oras itself pulls them; oras
// also pulls the output of "ballast convert".
func TestOrasFiles(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[upstream]\nartifacts = [\"*/wanted/*\"]\n"})
	dir, oras := t.TempDir(), tool(t, "oras")
	want := map[string]string{}
	for p, data := range map[string][]byte{"model.gguf": weights(2<<20 + 1), "tokenizer/vocab.json": []byte("{}\n"), "tokenizer/deep/er.txt": []byte("x\n")} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p), data, 0o644); err != nil {
			t.Fatal(err)
		}
		want[p] = digest.FromBytes(data).Encoded()
	}
	t.Chdir(dir)
	for _, name := range []string{"wanted/files", "other/files", "prefetched/files"} {
		run(t, nil, oras, "push", "--plain-http", n.Registry.Ref(name, "1"), "model.gguf", "tokenizer")
	}
	ref := n.Registry.Ref("wanted/files", "1")
	back := t.TempDir()
	run(t, nil, oras, "pull", "--plain-http", "--output", back, ref)
	same(t, "pulled by oras", onDisk(t, back), want)
	same(t, "mounted, since the configuration names it", mounted(t, n, "ballast", ref), want)

	ref = n.Registry.Ref("prefetched/files", "1")
	if out := n.Ballast("prefetch", ref); out.Err != nil {
		t.Fatalf("ballast prefetch: %v\n%s", out.Err, out.Output())
	}
	same(t, "mounted after a prefetch", mounted(t, n, "ballast", ref), want)

	from := n.Registry.Ref("other/files", "1")
	if out := n.Ballast("digest", from); out.Err != nil || strings.TrimSpace(out.Stdout) != strings.TrimSpace(run(t, nil, oras, "resolve", "--plain-http", from)) {
		t.Errorf("the other artifact was converted: %v %s", out.Err, out.Output())
	}
	ref = convert(t, n, from, "from-files", "--as", "modelpack")
	back = t.TempDir()
	run(t, nil, oras, "pull", "--plain-http", "--output", back, ref)
	same(t, "converted, and pulled by oras", withoutOrigin(onDisk(t, back)), want)
}

// TestPodman reads an image in zstd:chunked as Podman stores it.
func TestPodman(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(5<<20 + 3)))
	ref := convert(t, n, directory(t, b), "podman", "--as", "image", "--compress", "zstd-chunked")
	podman := func(args ...string) string {
		t.Helper()
		return run(t, nil, append([]string{"podman", "--root", filepath.Join(n.Dir, "podman"), "--runroot", filepath.Join(n.Dir, "podman-run"), "--storage-driver", "vfs"}, args...)...)
	}
	podman("pull", "--quiet", "--tls-verify=false", ref)
	dir := strings.TrimSpace(podman("image", "mount", ref))
	defer podman("image", "umount", ref)
	same(t, "podman image mount", onDisk(t, dir), sums(b))
	if out := podman("image", "inspect", ref); !bytes.Contains([]byte(out), []byte("linux")) {
		t.Errorf("inspect: %s", out)
	}
}
