package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// TestUnconverted pulls a model as if its registry were not closed: the pull succeeds, and each way to use the model
// ends with a message that the page about troubleshooting explains.
func TestUnconverted(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(weights(5, 1<<20))))
	if out := n.Ctr("images", "pull", "--snapshotter", "ballast", "--plain-http", ref); out.Err != nil {
		t.Fatalf("pull: %v\n%s", out.Err, out.Output())
	}
	page, err := os.ReadFile("../../contrib/docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		message string
		args    []string
	}{
		{"a snapshot without layers is refused", []string{"images", "mount", "--snapshotter", "ballast", ref, t.TempDir()}},
		{"unknown image config media type application/vnd", []string{"run", "--rm", "--snapshotter", "ballast", ref, "x", "true"}},
	} {
		out := n.Ctr(tt.args...)
		if out.Err == nil || !strings.Contains(out.Output(), tt.message) {
			t.Errorf("ctr %q: %v, no %q in\n%s", tt.args, out.Err, tt.message, out.Output())
		}
		if !strings.Contains(string(page), tt.message) {
			t.Errorf("the page does not explain %q", tt.message)
		}
	}
}
