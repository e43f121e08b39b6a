package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// serveFile serves a file at any path ending in name, with or without ranges.
func serveFile(t *testing.T, name string, p []byte, ranges bool) (host string) {
	return node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != name {
			http.NotFound(w, r)
			return
		}
		if !ranges {
			r.Header.Del("Range")
			w.Header().Set("Accept-Ranges", "none")
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p))
	}))
}

// cartonStates are the files that a container must see of a carton.
func cartonStates(c converttest.Carton) map[string]node.FileState {
	m := map[string]node.FileState{}
	for _, f := range c.Model() {
		m[f.Path] = state(f)
	}
	return m
}

// TestPullCartonURL pulls a carton by a name that the configuration maps to a URL, and prefetches it by
// the URL.
func TestPullCartonURL(t *testing.T) {
	c := converttest.GoodCarton(weights(80, 9<<20))
	for name, ranges := range map[string]bool{"ranges": true, "no ranges": false} {
		t.Run(name, func(t *testing.T) {
			host := serveFile(t, "/models/org/tiny/v1.carton", c.Bytes(), ranges)
			n := node.StartNode(t, node.Options{Config: fmt.Sprintf(
				"[[carton]]\nregistry = \"carton.example\"\nurl = \"http://%s/models/{repository}/{tag}.carton\"\nallow_http = true\n", host)})
			n.Upstream(t, "carton.example", host)
			const ref = "carton.example/org/tiny:v1"
			for _, flags := range [][]string{nil, {"--local"}} {
				mustPull(t, n, "ballast", ref, flags...)
				wantFiles(t, n, ref, cartonStates(c))
				if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
					t.Fatalf("%v: %s", out.Err, out.Output())
				}
				if out := n.Ballast("gc", "--yes"); out.Err != nil {
					t.Fatalf("ballast gc: %v\n%s", out.Err, out.Output())
				}
			}
			url := "carton+http://" + host + "/models/org/tiny/v1.carton"
			for _, args := range [][]string{{"prefetch", url}, {"inspect", url}, {"inspect", "--remote", url}, {"inspect", "--remote", ref}} {
				if out := n.Ballast(args...); out.Err != nil {
					t.Errorf("ballast %q: %v\n%s", args, out.Err, out.Output())
				}
			}
			wantError(t, n.Pull("ballast", "carton.example/org/tiny:v2"), "not found")
		})
	}
}

// TestPullCarton pulls a carton that is a layer in a registry.
func TestPullCarton(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	c := converttest.GoodCarton(weights(81, 9<<20))
	b := converttest.CartonArtifact(c)
	ref := push(t, n, b)
	for _, flags := range [][]string{nil, {"--local"}} {
		mustPull(t, n, "ballast", ref, flags...)
		wantFiles(t, n, ref, cartonStates(c))
		if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
			t.Fatalf("%v: %s", out.Err, out.Output())
		}
		if out := n.Ballast("gc", "--yes"); out.Err != nil {
			t.Fatalf("ballast gc: %v\n%s", out.Err, out.Output())
		}
	}
}

// TestPullOllamaList pulls a list of models by its tag, with the configured runner, and with a runner
// in the tag.
func TestPullOllamaList(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback + "ollama_runner = \"mlx\"\n"})
	front := node.StartOllama(t, n.Registry)
	n.Upstream(t, "registry.ollama.ai", front.Host)
	ggml := converttest.Ollama(converttest.Files(weights(82, 3<<20)), converttest.OllamaConfigNew)
	mlx := converttest.OllamaTensors(converttest.TensorNamed, converttest.Tensors(20, 100<<10))
	entries := []converttest.ListEntry{{Built: ggml, Runner: "ggml"}, {Built: mlx.Built, Runner: "mlx"}}
	list := converttest.OllamaList(0, entries...)
	n.Registry.Push(t, "library/tiny", "27b", artifact(list))

	const ref = "registry.ollama.ai/library/tiny:27b"
	mustPull(t, n, "ballast", ref+"-ggml")
	wantFiles(t, n, ref+"-ggml", states(list))
	mustPull(t, n, "ballast", ref)
	files := mounted(t, n, ref)
	if !bytes.Equal(files["ollama/list.json"].Data, list.Manifest) {
		t.Error("ollama/list.json is not the list")
	}
	delete(files, "ollama/list.json")
	if err := mlx.Check(files); err != nil {
		t.Error(err)
	}
}

// TestPullTensors pulls a model with a layer for each of 1,200 tensors, and reads every tensor in a
// container.
func TestPullTensors(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback})
	front := node.StartOllama(t, n.Registry)
	n.Upstream(t, "registry.ollama.ai", front.Host)
	for _, g := range converttest.Generations {
		t.Run(string(g), func(t *testing.T) {
			// Four of five weights have a scale, in the same layer or in another one.
			layers := 40
			if g == converttest.TensorNamed {
				layers = 1200 // as many as a model has
			}
			tensors := converttest.Tensors(layers, 4<<10)
			if g != converttest.TensorNamed {
				tensors = tensors[:layers]
			}
			m := converttest.OllamaTensors(g, tensors)
			if n := bytes.Count(m.Manifest, []byte("ollama.image.tensor")); n != layers {
				t.Fatalf("%d tensor layers, want %d", n, layers)
			}
			n.Registry.Push(t, "library/tensors", string(g), artifact(m.Built))
			ref := "registry.ollama.ai/library/tensors:" + string(g)
			start := time.Now()
			mustPull(t, n, "ballast", ref)
			t.Logf("pulled in %v", time.Since(start).Round(time.Millisecond))
			if err := m.Check(mounted(t, n, ref)); err != nil {
				t.Error(err)
			}
		})
	}
}

// copyScript copies the files of a model out of a container.
const copyScript = `cd / && for f in *; do case $f in proc|sys|dev|run) ;; *) $B cp -R "$f" /.out/ || exit 1 ;; esac; done`

// mounted returns all files of an image, copied by a container from its root.
func mounted(t *testing.T, n *node.Node, ref string) map[string]converttest.File {
	t.Helper()
	dir := t.TempDir()
	id := "copy-" + digest.FromString(ref).Encoded()[:8]
	out := n.Ctr("run", "--rm", "--snapshotter", "ballast", "--mount", node.BusyboxMount,
		"--mount", "type=bind,src="+dir+",dst=/.out,options=rbind:rw", "--env", "B=/.bin/busybox",
		ref, id, "/.bin/busybox", "sh", "-c", copyScript)
	if out.Err != nil {
		t.Fatalf("copy out of a container: %v\n%s", out.Err, out.Output())
	}
	files := map[string]converttest.File{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		name, relErr := filepath.Rel(dir, p)
		files[name] = converttest.File{Path: name, Data: b}
		return errors.Join(err, relErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
