package e2e

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// A typist types the commands of pages on a node, as root. Only what is the machine's differs: the address of containerd, the
// directories of hosts.toml files and of the mount, the cgroup and the port.
type typist struct {
	n    *node.Node
	port string
	mnt  string
}

const typistShell = `set -euo pipefail
sudo() { "$@"; }
ballast() { "$BALLAST" --config "$CONFIG" "$@"; }
ctr() {
	local a=("$@")
	case "$1 ${2:-}" in
	"images pull") a=(images pull --hosts-dir "$HOSTS" "${@:3}") ;;
	"run "*) a=(run --cgroup "$CGROUP" "${@:2}") ;;
	esac
	"$CTR" -a "$SOCKET" "${a[@]}"
}
`

func newTypist(t *testing.T, n *node.Node) *typist {
	t.Helper()
	_, port, err := net.SplitHostPort(node.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	mnt := filepath.Join(n.Dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	return &typist{n: n, port: port, mnt: mnt}
}

// types types lines into one shell, which they must not fail, and returns what they print.
func (w *typist) types(t *testing.T, lines ...string) string {
	t.Helper()
	script := strings.NewReplacer("/etc/containerd/certs.d", w.n.HostsDir(), "/mnt", w.mnt, "8080", w.port).Replace(strings.Join(lines, "\n"))
	env := append(w.n.Env(), "BALLAST="+node.Binary(t, "ballast"), "CONFIG="+w.n.ConfigFile(), "CTR="+w.n.Tool("ctr"), "SOCKET="+w.n.Socket(),
		"HOSTS="+w.n.HostsDir(), "CGROUP=/ballast-test-"+rand.Text())
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	out := node.Command(ctx, env, "bash", "-c", typistShell+script)
	if out.Err != nil {
		t.Fatalf("%v\n%s\n%s", out.Err, script, out.Output())
	}
	return out.Stdout
}

// publicModel starts a node that reaches registry.ollama.ai and ghcr.io by their names. It returns what the server in
// place of llama.cpp answers with the model of the pages.
func publicModel(t *testing.T) (n *node.Node, answer string) {
	t.Helper()
	n = node.StartNode(t, node.Options{Config: node.AllowLoopback})
	n.Upstream(t, node.OllamaHost, node.StartOllama(t, n.Registry).Host)
	n.Direct(t, node.GithubHost, n.Registry.Host)
	n.Registry.Push(t, "ggml-org/llama.cpp", "server", node.LlamaServer(t))
	f := converttest.SmallGGUF()
	f.Tensors[0] = converttest.GGUFTensor{Name: "token_embd.weight", Shape: []uint64{2048, 1024}, Type: 1, Data: weights(141, 4<<20)}
	b := artifact(converttest.Ollama(converttest.Files(converttest.GGUF(f)), converttest.OllamaConfigNew))
	for _, tag := range []string{"1b", "1b-instruct-q8_0"} {
		n.Registry.Push(t, "library/llama3.2", tag, b)
	}
	return n, node.LlamaAnswer(f)
}

// answers checks the answer of a server.
func answers(t *testing.T, out, want string) {
	t.Helper()
	var got struct{ Content string }
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Content != want {
		t.Errorf("the server answers %q, want %q: %v", out, want, err)
	}
}

// TestReadmeAnswers types the README from the pull of a model to the answer of a server that has read it, and to its
// removal.
func TestReadmeAnswers(t *testing.T) {
	n, want := publicModel(t)
	w := newTypist(t, n)
	pull, run := node.Typed(t, "README.md", "## First pull"), node.Typed(t, "README.md", "llama.cpp answers")
	if len(pull) != 4 || len(run) != 5 || !strings.HasPrefix(run[3], "curl ") {
		t.Fatalf("the page has other commands than this test knows: %q, %q", pull, run)
	}
	w.types(t, pull...)
	answers(t, w.types(t, run[0], run[1]+" >&2", run[2]+" >&2", run[3]), want)
	look := node.Typed(t, "README.md", "## Look around")
	remove := look[len(look)-2:]
	if out := n.Ballast("rm", "--now", strings.TrimPrefix(pull[0], "ref=")); out.Err == nil || !strings.Contains(out.Stderr, "is in use, and nothing was removed") {
		t.Errorf("rm --now of a model in use: %v\n%s", out.Err, out.Output())
	}
	w.types(t, run[4])
	if out := w.types(t, append([]string{pull[0]}, remove...)...); !strings.Contains(out, "removed registry.ollama.ai/library/llama3.2:1b ") || !strings.Contains(out, " of files\n") {
		t.Errorf("the removal prints\n%s", out)
	}
	if got := disk(t, n.Root()); got > 2<<20 {
		t.Errorf("%d bytes are left", got)
	}
}

// TestTutorial types the page for the first fifteen minutes, after its installation.
func TestTutorial(t *testing.T) {
	const page = "contrib/docs/tutorial.md"
	n, want := publicModel(t)
	w := newTypist(t, n)
	if got := node.Blocks(t, page); got != 7 {
		t.Fatalf("the page has %d blocks", got)
	}
	vars := node.Typed(t, page, "## A model")
	w.types(t, vars...)
	ref := vars[0]
	run := node.Typed(t, page, "## A container that answers")
	answers(t, w.types(t, append([]string{ref, "exec 3>&1 >&2"}, append(run[:len(run)-1:len(run)-1], run[len(run)-1]+" >&3")...)...), want)
	if top := node.Typed(t, page, "in another terminal"); len(top) != 1 || !strings.Contains(w.types(t, top[0]+" -n 1"), "REGISTRY") {
		t.Errorf("the page watches with %q", top)
	}
	before := disk(t, n.Root())
	second := node.Typed(t, page, "## A second tag")
	out := w.types(t, second...)
	if strings.Count(out, "registry.ollama.ai/library/llama3.2:1b") < 2 || !strings.Contains(out, "UNIQUE") {
		t.Errorf("after the second tag:\n%s", out)
	}
	if got := disk(t, n.Root()); got > before+1<<20 {
		t.Errorf("the second tag takes %d bytes", got-before)
	}
	why := w.types(t, append([]string{ref}, node.Typed(t, page, "## Why it is there")...)...)
	for _, holder := range []string{"ctr -n default images rm --sync registry.ollama.ai/library/llama3.2:1b\n", "1b-instruct-q8_0", w.mnt} {
		if !strings.Contains(why, holder) {
			t.Errorf("no %q in\n%s", holder, why)
		}
	}
	out = w.types(t, append([]string{ref, second[0]}, node.Typed(t, page, "## Remove it")...)...)
	if !strings.Contains(out, " of files\n") || strings.Contains(w.types(t, "ballast ls"), "llama3.2") {
		t.Errorf("the removal prints\n%s", out)
	}
	if got := disk(t, n.Root()); got > 2<<20 {
		t.Errorf("%d bytes are left", got)
	}
	if fmt.Sprint(node.Lines(n.Ctr("images", "ls", "-q").Stdout)) != "[ghcr.io/ggml-org/llama.cpp:server]" {
		t.Errorf("images that are left: %s", n.Ctr("images", "ls", "-q").Stdout)
	}
}
