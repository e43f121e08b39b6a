package clients

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestNerdctlReadme types what the README has for nerdctl, up to the answer of a server that has read the model.
func TestNerdctlReadme(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: node.AllowLoopback})
	n.Upstream(t, node.OllamaHost, node.StartOllama(t, n.Registry).Host)
	n.Direct(t, node.GithubHost, n.Registry.Host)
	n.Registry.Push(t, "ggml-org/llama.cpp", "server", node.LlamaServer(t))
	f := converttest.SmallGGUF()
	b := converttest.Ollama(converttest.Files(converttest.GGUF(f)), converttest.OllamaConfigNew)
	n.Registry.Push(t, "library/llama3.2", "1b", node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs})
	lines := node.Typed(t, "README.md", "With `nerdctl`")
	if len(lines) != 6 || !strings.HasPrefix(lines[4], "curl ") {
		t.Fatalf("the page has other commands than this test knows: %q", lines)
	}
	_, port, err := net.SplitHostPort(node.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	mnt := filepath.Join(n.Dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		if i != 4 {
			lines[i] = "{ " + lines[i] + "; } >&2"
		}
	}
	script := "set -euo pipefail\nsudo() { \"$@\"; }\nballast() { \"$BALLAST\" --config \"$CONFIG\" \"$@\"; }\nnerdctl() { \"${NERDCTL[@]}\" \"$@\"; }\n" +
		"NERDCTL=(" + strings.Join(newNerdctl(t, n, "overlayfs").flags, " ") + ")\n" + strings.NewReplacer("/mnt", mnt, "8080", port).Replace(strings.Join(lines, "\n"))
	out := run(t, append(n.Env(), "BALLAST="+node.Binary(t, "ballast"), "CONFIG="+n.ConfigFile()), "bash", "-c", script)
	var got struct{ Content string }
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Content != node.LlamaAnswer(f) {
		t.Errorf("the server answers %q, want %q: %v", out, node.LlamaAnswer(f), err)
	}
}
