package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// explained is the JSON of "ballast why".
type explained struct {
	Own     int64 `json:"own"`
	Holders []struct {
		Kind string `json:"kind"`
		End  string `json:"end"`
	} `json:"holders"`
	Unknown *struct{} `json:"unknown"`
}

// TestWhy runs the commands that "ballast why" prints: after them nothing holds the model, and what "ls --size"
// shows as its own comes back.
func TestWhy(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(97, 4<<20)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(w)))
	why := func() (v explained) {
		t.Helper()
		if err := json.Unmarshal([]byte(ballast(t, n, "why", "-o", "json", ref)), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if out := n.Ballast("why", ref); out.Err == nil || !strings.Contains(out.Stderr, `"ballast ls" lists all`) {
		t.Errorf("why of an unknown model: %v\n%s", out.Err, out.Output())
	}
	ballast(t, n, "prefetch", ref)
	ballast(t, n, "path", ref)
	mustPull(t, n, "ballast", ref)
	v := why()
	var kinds []string
	for _, h := range v.Holders {
		kinds = append(kinds, h.Kind)
	}
	if want := []string{"pin", "mount", "image"}; !slices.Equal(kinds, want) || v.Unknown != nil || v.Own < int64(len(w)) {
		t.Fatalf("why: got %+v, want holders %q, and %d bytes of its own", v, want, len(w))
	}
	if out := ballast(t, n, "why", ref); !strings.Contains(out, "images rm --sync "+ref) || !strings.Contains(out, "ballast unpin "+ref) {
		t.Errorf("why:\n%s", out)
	}
	for _, h := range v.Holders {
		words := strings.Fields(h.End)
		var out node.Result
		if words[0] == "ctr" { // -n NAMESPACE
			out = n.Ctr(words[3:]...)
		} else {
			out = n.Ballast(words[1:]...)
		}
		if out.Err != nil {
			t.Errorf("%s: %v\n%s", h.End, out.Err, out.Output())
		}
	}
	if v = why(); len(v.Holders) > 0 {
		t.Errorf("after these commands: %+v", v.Holders)
	}
	if out := ballast(t, n, "why", ref); !strings.Contains(out, "nothing holds it") {
		t.Errorf("why:\n%s", out)
	}
	ballast(t, n, "rm", ref)
	ballast(t, n, "gc", "--yes")
	if got := disk(t, n.Root()); got > 2<<20 {
		t.Errorf("after rm and gc: %d bytes are left", got)
	}
}
