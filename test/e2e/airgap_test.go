package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// away is a registry that the nodes of these tests cannot reach.
const away = "registry.away.example"

// stdin runs "ballast import -" with the output of a shell command.
func stdin(t *testing.T, n *node.Node, command string) node.Result {
	return node.Command(t.Context(), n.Env(), "sh", "-c", command+` | "$0" --config "$1" import -`, node.Binary(t, "ballast"), n.ConfigFile())
}

// TestImportArchive imports archives by each way on a node whose registry does not answer, and pulls and runs
// them from there. The registry wins when it answers.
func TestImportArchive(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback})
	n.Upstream(t, away, node.FreeAddress(t))
	raw := converttest.ModelPackRaw(converttest.Files(weights(41, 5<<20+5)))
	packed := converttest.ModelPackTarGzip(converttest.Files(weights(42, 3<<20+1)))
	theirs := converttest.Ollama(converttest.Files(weights(43, 2<<20+1)), converttest.OllamaConfigNew)

	// Two models with names, as a compressed tar file.
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(node.TarOf(t, node.LayoutFiles(t, map[string]*converttest.Built{away + "/team/raw:v1": raw, away + "/team/packed:v1": packed}))); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.Dir, "two.tar.gz")
	if err := os.WriteFile(file, zipped.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := stdin(t, n, "cat "+file); out.Err != nil || strings.Count(out.Stdout, away) != 2 {
		t.Fatalf("ballast import: %v\n%s", out.Err, out.Output())
	}
	// One without a name, in a directory.
	dir := filepath.Join(n.Dir, "layout")
	for name, p := range node.LayoutFiles(t, map[string]*converttest.Built{"": theirs}) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, p, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wantError(t, n.Ballast("import", "oci:"+dir), "--name")
	if out := n.Ballast("import", "oci:"+dir, "--name", away+"/team/ollama:v1"); out.Err != nil || !strings.Contains(out.Stdout, "linked") {
		t.Fatalf("ballast import: %v\n%s", out.Err, out.Output())
	}
	for name, b := range map[string]*converttest.Built{"raw": raw, "packed": packed, "ollama": theirs} {
		ref := away + "/team/" + name + ":v1"
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
	}
	if left, err := filepath.Glob(filepath.Join(n.Root(), "archives", "import-*")); err != nil || len(left) > 0 {
		t.Errorf("left of the archives: %v, %v", left, err)
	}
	if out := n.Ballast("prefetch", away+"/team/raw:v1"); out.Err != nil {
		t.Errorf("ballast prefetch: %v\n%s", out.Err, out.Output())
	}
	// One for those only who can read it in its registry.
	if out := n.Ballast("import", "oci:"+dir, "--name", away+"/team/private:v1", "--private"); out.Err != nil {
		t.Fatalf("ballast import --private: %v\n%s", out.Err, out.Output())
	}
	if out := n.Pull("ballast", away+"/team/private:v1"); out.Err == nil {
		t.Error("everybody gets a private import")
	}
	// What containerd writes of a pulled model is a model again.
	ref := push(t, n, converttest.CNAI(converttest.Files(weights(44, 1<<20))))
	mustPull(t, n, "ballast", ref)
	exported := filepath.Join(n.Dir, "exported.tar")
	for _, args := range [][]string{{"content", "fetch", "--hosts-dir", n.HostsDir(), ref}, {"images", "export", "--local", exported, ref}} {
		if out := n.Ctr(args...); out.Err != nil {
			t.Fatalf("ctr %v: %v\n%s", args, out.Err, out.Output())
		}
	}
	if out := n.Ballast("import", exported, "--name", away+"/team/exported:v1"); out.Err != nil {
		t.Fatalf("ballast import: %v\n%s", out.Err, out.Output())
	}
	mustPull(t, n, "ballast", away+"/team/exported:v1")

	// The registry answers again, with another model.
	newer := converttest.ModelPackRaw(converttest.Files(weights(45, 1<<20)))
	n.Registry.Push(t, "team/raw", "v1", artifact(newer))
	n.Upstream(t, away, n.Registry.Host)
	mustPull(t, n, "ballast", away+"/team/raw:v1")
	wantFiles(t, n, away+"/team/raw:v1", states(newer))
	if out := n.Pull("ballast", away+"/team/packed:v1"); out.Err == nil {
		t.Error("an import wins over a registry that answers that there is no such model")
	}
}

// TestImportNothing imports hostile and broken archives, which leave nothing.
func TestImportNothing(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackRaw(converttest.Files(weights(46, 1<<20)))
	good := node.LayoutFiles(t, map[string]*converttest.Built{away + "/team/x:v1": b})
	weight := "blobs/sha256/" + digest.FromBytes(b.Files["model.gguf"].Data).Encoded()
	before := everything(t, n)
	wantError(t, stdin(t, n, "head -c 64M /dev/zero"), "no OCI layout") // while the stream goes on
	for name, tt := range map[string]struct {
		change func(files map[string][]byte)
		want   string
	}{
		"missing blob":  {func(f map[string][]byte) { delete(f, weight) }, "not found"},
		"wrong digest":  {func(f map[string][]byte) { f[weight] = append([]byte("x"), f[weight][1:]...) }, "sha256"},
		"no index":      {func(f map[string][]byte) { delete(f, "index.json") }, "no OCI layout"},
		"not a layout":  {func(f map[string][]byte) { clear(f); f["etc/passwd"] = []byte("x") }, "no OCI layout"},
		"docker's own":  {func(f map[string][]byte) { clear(f); f["manifest.json"] = []byte("[]") }, "ctr images import"},
		"index is text": {func(f map[string][]byte) { f["index.json"] = []byte("x") }, "index.json"},
		"only a tag": {func(f map[string][]byte) {
			f["index.json"] = bytes.ReplaceAll(f["index.json"], []byte(away+"/team/x:v1"), []byte("v1"))
		}, "--name"},
		"a path": {func(f map[string][]byte) {
			f["index.json"] = bytes.ReplaceAll(f["index.json"], []byte(away+"/team/x:v1"), []byte("../../x:v1"))
		}, "--name"},
		"second model broken": {func(f map[string][]byte) {
			other := converttest.ModelPackRaw(converttest.Files(weights(47, 1<<20)))
			clear(f)
			maps.Copy(f, node.LayoutFiles(t, map[string]*converttest.Built{away + "/team/a:v1": b, away + "/team/b:v1": other}))
			delete(f, "blobs/sha256/"+digest.FromBytes(other.Files["model.gguf"].Data).Encoded())
		}, "not found"},
	} {
		files := maps.Clone(good)
		tt.change(files)
		file := filepath.Join(n.Dir, "bad.tar")
		if err := os.WriteFile(file, node.TarOf(t, files), 0o644); err != nil {
			t.Fatal(err)
		}
		out := n.Ballast("import", file)
		wantError(t, out, tt.want)
		if lines := strings.Split(strings.TrimSpace(out.Stderr), "\n"); !strings.Contains(lines[len(lines)-1], tt.want) {
			t.Errorf("%s: the last line does not say %q:\n%s", name, tt.want, out.Output())
		}
		if after := everything(t, n); !slices.Equal(before, after) {
			t.Errorf("%s: it left\n%s", name, strings.Join(after, "\n"))
		}
	}
}

// everything returns the names of the objects and of the images of a node.
func everything(t *testing.T, n *node.Node) (names []string) {
	t.Helper()
	for _, pattern := range []string{"objects/sha256/*/*", "partial/*", "archives/*", "damaged/*"} {
		found, err := filepath.Glob(filepath.Join(n.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	for _, args := range [][]string{{"ls", "-q"}, {"pin", "ls", "-q"}} {
		out := n.Ballast(args...)
		if out.Err != nil {
			t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
		}
		names = append(names, strings.Fields(out.Stdout)...)
	}
	return names
}

// TestSeed makes the root of a node image, and starts a node with a copy of it whose registry does not answer.
func TestSeed(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	b := converttest.ModelPackTar(converttest.Files(weights(48, 3<<20+7)))
	ref := push(t, n, b)
	seed, image := filepath.Join(n.Dir, "seed"), filepath.Join(n.Dir, "image.tar")
	if out := n.Ballast("seed", seed, ref); out.Err != nil || !strings.Contains(out.Stdout, ref) {
		t.Fatalf("ballast seed: %v\n%s", out.Err, out.Output())
	}
	entries, err := os.ReadDir(seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !store.Owns(e.Name()) {
			t.Errorf("the seed has %s", e.Name())
		}
	}
	wantError(t, n.Ballast("seed", n.Root(), ref), "use another directory")
	n.Ballastd.Stop(t)
	n.KillHolder(t)
	for _, argv := range [][]string{
		{"umount", "-l", filepath.Join(n.Root(), "lazy")}, {"tar", "-C", seed, "-cf", image, "."},
		{"rm", "-rf", n.Root()}, {"mkdir", "-m", "700", n.Root()}, {"tar", "-C", n.Root(), "-xpf", image},
	} {
		if out := node.Command(t.Context(), nil, argv...); out.Err != nil && argv[0] != "umount" {
			t.Fatalf("%v: %v\n%s", argv, out.Err, out.Output())
		}
	}
	n.Upstream(t, n.Registry.Host, node.FreeAddress(t))
	n.Registry.Wire.Reset()
	n.StartBallastd(t)
	if out := n.Ballast("ls"); !strings.Contains(out.Stdout, "complete, pinned") {
		t.Errorf("ballast ls:\n%s", out.Output())
	}
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))
	if log := n.Ballastd.Tail(100); strings.Contains(log, "hashed") {
		t.Errorf("objects were hashed again:\n%s", log)
	}
	if all := n.Registry.Wire.Requests(); len(all) > 0 {
		t.Errorf("the registry was asked: %+v", all)
	}
	if out := n.Ballast("verify"); out.Err != nil {
		t.Errorf("ballast verify: %v\n%s", out.Err, out.Output())
	}
}

// TestResolve asks for mounted models as users who are not root.
func TestResolve(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "r", "resolve.sock")
	for dir := filepath.Dir(filepath.Dir(socket)); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback + "[resolve]\ngroup = \"daemon\"\naddress = \"" + socket + "\"\n"})
	b := converttest.ModelPackRaw(converttest.Files(weights(49, 1<<20)))
	ref := push(t, n, b)
	dir := filepath.Join(n.Dir, "mounted")
	as := func(gid string, args ...string) node.Result {
		argv := append([]string{"setpriv", "--reuid=65534", "--regid=" + gid, "--clear-groups", node.Binary(t, "ballast")}, args...)
		return node.Command(t.Context(), nil, argv...)
	}
	ask := func(ref string) node.Result { return as("1", "resolve", ref, "-o", "json", "--socket", socket) }
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	wantError(t, ask(ref), "is not mounted")
	for _, args := range [][]string{{"prefetch", ref}, {"mount", ref, dir}} {
		if out := n.Ballast(args...); out.Err != nil {
			t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
		}
	}
	defer n.Ballast("unmount", dir)
	var got struct {
		Path, Format, Digest string
		Complete             bool
		Files                []struct{ Path, Digest string }
	}
	out := ask(ref)
	if err := json.Unmarshal([]byte(out.Stdout), &got); err != nil || out.Err != nil {
		t.Fatalf("ballast resolve: %v, %v\n%s", out.Err, err, out.Output())
	}
	if got.Path != dir || got.Format != "modelpack" || !got.Complete || len(got.Files) != len(b.Files) {
		t.Errorf("got %+v", got)
	}
	wantError(t, as("65534", "resolve", ref, "--socket", socket), "resolve.group")
	// What is private, and what does not exist, is answered in the same way.
	archive := filepath.Join(n.Dir, "private.tar")
	if err := os.WriteFile(archive, node.TarOf(t, node.LayoutFiles(t, map[string]*converttest.Built{away + "/team/secret:v1": converttest.ModelPackRaw(converttest.Files(weights(50, 1<<20)))})), 0o644); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(n.Dir, "secret")
	if err := os.Mkdir(secret, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"import", archive, "--private"}, {"mount", away + "/team/secret:v1", secret}} {
		if out := n.Ballast(args...); out.Err != nil {
			t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
		}
	}
	defer n.Ballast("unmount", secret)
	hidden, none := ask(away+"/team/secret:v1"), ask(away+"/team/nobody:v1")
	if hidden.Err == nil || strings.ReplaceAll(hidden.Stderr, "secret", "nobody") != none.Stderr {
		t.Errorf("a private model: %s\nnone: %s", hidden.Output(), none.Output())
	}
	// Other requests, stalled ones, and many, change nothing for the daemon.
	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}
	for _, request := range []string{"GET /v1/images", "GET /v1/health", "POST /v1/gc", "DELETE /v1/image?name=" + ref, "GET /metrics", "GET /debug/pprof/"} {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://ballastd"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status %d", request, resp.StatusCode)
		}
	}
	for range 100 {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("GET /v1/resolve HTTP/1.1\r\nX: ")); err != nil {
			t.Fatal(err)
		}
	}
	if out := ask(ref); out.Err != nil { // when the stalled ones have ended
		t.Errorf("beside stalled requests: %v\n%s", out.Err, out.Output())
	}
	if out := n.Ballast("ls"); out.Err != nil {
		t.Errorf("ballast ls: %v\n%s", out.Err, out.Output())
	}
}
