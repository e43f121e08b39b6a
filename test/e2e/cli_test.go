package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

func ballast(t *testing.T, n *node.Node, args ...string) string {
	t.Helper()
	out := n.Ballast(args...)
	if out.Err != nil {
		t.Fatalf("ballast %s: %v\n%s", strings.Join(args, " "), out.Err, out.Output())
	}
	return out.Stdout
}

// TestPrefetch fetches a model before its use: the following pull fetches only manifests from the
// registry, and the model stays until it is unpinned.
func TestPrefetch(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(60, 24<<20)
	b := converttest.ModelPackRaw(converttest.Files(w))
	ref := push(t, n, b)
	d := digest.FromBytes(w)

	var last struct{ Status string }
	lines := strings.Split(strings.TrimSpace(ballast(t, n, "prefetch", "-o", "json", ref)), "\n")
	for _, line := range lines {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
	}
	if last.Status != "success" {
		t.Errorf("last line: got %q, want success", lines[len(lines)-1])
	}
	ballast(t, n, "prefetch", ref) // the second time there is nothing to do
	if got, want := n.Registry.Wire.BlobBytes()[d], int64(len(w)); got != want {
		t.Errorf("bytes of the weights downloaded: got %d, want %d", got, want)
	}

	n.Registry.Wire.Reset()
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))
	if got := n.Registry.Wire.BlobBytes()[d]; got != 0 {
		t.Errorf("bytes of the weights downloaded by the pull: got %d, want 0", got)
	}

	for _, args := range [][]string{{"ls"}, {"inspect", ref}, {"inspect", "--remote", ref}} {
		if out := ballast(t, n, args...); !strings.Contains(out, "models/"+b.Name) && !strings.Contains(out, "model.gguf") {
			t.Errorf("ballast %s does not name the model:\n%s", strings.Join(args, " "), out)
		}
	}
	ballast(t, n, "verify")
	ballast(t, n, "df")

	if out := n.Ctr("images", "rm", "--sync", ref); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	ballast(t, n, "gc", "--yes")
	if got := disk(t, n.Root()); got < int64(len(w)) {
		t.Errorf("a pinned model was collected: %d bytes are left", got)
	}
	ballast(t, n, "unpin", ref)
	ballast(t, n, "gc", "--yes")
	if got := disk(t, n.Root()); got > 2<<20 {
		t.Errorf("after unpin and gc: got %d bytes, want at most 2 MiB", got)
	}
}
