package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// A holder keeps the files of a model.
type holder struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
	End  string `json:"end"`
}

// ended runs the commands that end a holder; they need not succeed.
func (h holder) ended(n *node.Node) (out []node.Result) {
	for command := range strings.SplitSeq(h.End, "; ") {
		if words := strings.Fields(command); words[0] == "ctr" {
			out = append(out, n.Ctr(words[1:]...))
		} else {
			out = append(out, n.Ballast(words[1:]...))
		}
	}
	return out
}

// explained is the JSON of "ballast why".
type explained struct {
	Own     int64     `json:"own"`
	Holders []holder  `json:"holders"`
	Unknown *struct{} `json:"unknown"`
}

// TestWhy runs the commands that "ballast why" prints: after them nothing holds the model, and what "ls --size"
// shows as its own comes back.
func TestWhy(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(97, 4<<20)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(w)))
	why := func() explained { return whyOf(t, n, ref) }
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
	ballast(t, n, "pin", "--ttl", "24h", ref)
	if out := ballast(t, n, "why", ref); !strings.Contains(out, "ballast unpin "+ref+", or in 24 hours") {
		t.Errorf("why of a pin that ends:\n%s", out)
	}
	for _, h := range v.Holders {
		for _, out := range h.ended(n) {
			if out.Err != nil {
				t.Errorf("%s: %v\n%s", h.End, out.Err, out.Output())
			}
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

// whyOf returns what "ballast why" says of a model.
func whyOf(t *testing.T, n *node.Node, ref string) (v explained) {
	t.Helper()
	if err := json.Unmarshal([]byte(ballast(t, n, "why", "-o", "json", ref)), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestWhyHolders makes each other holder of a model. "ballast why" names it, and a command that ends it.
func TestWhyHolders(t *testing.T) {
	n, cri, busybox := startPods(t, node.Options{Config: "[lazy]\nmode = \"complete\"\n[fetch]\nconnections = 2\n"})
	for i, c := range []struct {
		kind, name string // of the holder; "" is any name
		hold       func(t *testing.T, ref string)
	}{
		{"container", "why", func(t *testing.T, ref string) {
			mustPull(t, n, "ballast", ref)
			if out := n.Start("ballast", ref, "why"); out.Err != nil {
				t.Fatalf("%v\n%s", out.Err, out.Output())
			}
		}},
		{"lease", "pull", func(t *testing.T, ref string) {
			lease(t, n, pulled(t, n, ref), "pull")
		}},
		{"snapshot", "mine", func(t *testing.T, ref string) {
			if out := n.Ctr("snapshots", "--snapshotter", "ballast", "prepare", "mine", pulled(t, n, ref)); out.Err != nil {
				t.Fatalf("%v\n%s", out.Err, out.Output())
			}
		}},
		{"volume", "", func(t *testing.T, ref string) {
			id, err := cri.Pull(ref, "")
			if err != nil {
				t.Fatal(err)
			}
			pod := cri.RunPod(t, "")
			if _, err := pod.Run(busybox, node.ImageMount{Image: id, Path: "/model"}); err != nil {
				t.Fatal(err)
			}
		}},
		{"download", "", func(t *testing.T, ref string) {
			n.Registry.Wire.Add(node.Fault{Match: node.Blob(digest.FromBytes(weights(94, 16<<20))), Rate: 256 << 10})
			ballast(t, n, "prefetch", "--detach", ref)
			waitFor(t, "the download", func() error {
				if j, ok := workOf(t, n, "prefetch"); !ok || j.Completed == 0 {
					return fmt.Errorf("%+v", j)
				}
				return nil
			})
		}},
	} {
		t.Run(c.kind, func(t *testing.T) {
			b := converttest.ModelPackRaw(converttest.Files(weights(byte(90+i), 16<<20)))
			b.Name += "-" + c.kind
			ref := push(t, n, b)
			c.hold(t, ref)
			find := func() (h holder, ok bool) {
				if out := n.Ballast("why", ref); strings.Contains(out.Stderr, "no such model") { // rm removes it too
					return h, false
				}
				v := whyOf(t, n, ref)
				if v.Unknown != nil {
					t.Errorf("the holders of containerd are unknown")
				}
				i := slices.IndexFunc(v.Holders, func(h holder) bool { return h.Kind == c.kind && (c.name == "" || h.Name == c.name) })
				if i < 0 {
					h.End = fmt.Sprintf("%+v", v.Holders)
					return h, false
				}
				return v.Holders[i], true
			}
			h, ok := find()
			if !ok {
				t.Fatalf("no %s %s among %s", c.kind, c.name, h.End)
			}
			waitFor(t, h.End+" to end it", func() error {
				out := h.ended(n) // the process of a container ends after its signal was sent
				if _, ok := find(); ok {
					return fmt.Errorf("%+v", out)
				}
				return nil
			})
		})
	}
}

// pulled pulls a model and returns the key of its last snapshot.
func pulled(t *testing.T, n *node.Node, ref string) string {
	t.Helper()
	list := func() map[string]string { // parents by key
		all := map[string]string{}
		for line := range strings.Lines(n.Ctr("snapshots", "--snapshotter", "ballast", "ls").Stdout) {
			if f := strings.Fields(line); len(f) > 2 {
				all[f[0]] = f[1]
			} else if len(f) == 2 {
				all[f[0]] = ""
			}
		}
		return all
	}
	before := list()
	mustPull(t, n, "ballast", ref)
	after := list()
	parents := slices.Collect(maps.Values(after))
	for key := range after {
		if _, old := before[key]; !old && !slices.Contains(parents, key) {
			return key
		}
	}
	t.Fatalf("no snapshot for %s: %v", ref, after)
	return ""
}
