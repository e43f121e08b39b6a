package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// A workLine is a job of "ballast status -o json".
type workLine struct {
	Kind, Ref        string
	Total, Completed int64
	Ended            time.Time
	Error            *struct{ Code, Message string }
}

// workOf returns the job of a kind; false if there is none.
func workOf(t *testing.T, n *node.Node, kind string) (workLine, bool) {
	t.Helper()
	var s struct{ Jobs []workLine }
	if err := json.Unmarshal([]byte(ballast(t, n, "status", "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	for _, j := range s.Jobs {
		if j.Kind == kind {
			return j, true
		}
	}
	return workLine{}, false
}

// TestStatus prefetches a model without waiting, and pulls it with containerd meanwhile: the status
// lists both while they run, and their results.
func TestStatus(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[lazy]\nmode = \"complete\"\n[fetch]\nconnections = 2\n"})
	w := weights(77, 48<<20)
	ref := push(t, n, converttest.ModelPackRaw(converttest.Files(w)))
	n.Registry.Wire.Add(node.Fault{Match: node.Blob(digest.FromBytes(w)), Rate: 1 << 20})

	if out := ballast(t, n, "prefetch", "--detach", ref); !strings.Contains(out, "started") {
		t.Errorf("prefetch --detach: %s", out)
	}
	pulled := make(chan node.Result, 1)
	go func() { pulled <- n.Pull("ballast", ref) }()
	for _, kind := range []string{"prefetch", "containerd"} {
		waitFor(t, kind+" to run", func() error {
			j, ok := workOf(t, n, kind)
			if !ok || j.Completed == 0 || j.Total < int64(len(w)) || j.Ref != ref {
				return fmt.Errorf("%+v", j)
			}
			if !j.Ended.IsZero() {
				t.Fatalf("it has ended before it was seen to run: %+v", j)
			}
			return nil
		})
	}
	waitFor(t, "a rate of both", func() error {
		if out := ballast(t, n, "status"); strings.Count(out, "B/s") != 2 {
			return fmt.Errorf("status:\n%s", out)
		}
		return nil
	})
	if res := <-pulled; res.Err != nil {
		t.Fatalf("pull: %v\n%s", res.Err, res.Output())
	}
	for _, kind := range []string{"prefetch", "containerd"} {
		waitFor(t, kind+" to end", func() error {
			if j, ok := workOf(t, n, kind); !ok || j.Ended.IsZero() || j.Error != nil {
				return fmt.Errorf("%+v", j)
			}
			return nil
		})
	}
	// Both share one download, of which slow ranges may have been requested again.
	if got, most := n.Registry.Wire.BlobBytes()[digest.FromBytes(w)], int64(len(w))*3/2; got > most {
		t.Errorf("bytes of the weights downloaded: got %d, want at most %d", got, most)
	}
	if out := ballast(t, n, "pin", "ls"); !strings.Contains(out, ref) {
		t.Errorf("the prefetched model is not pinned:\n%s", out)
	}
}

// TestCommandsOfAlerts runs what alerts say.
func TestCommandsOfAlerts(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	mustPull(t, n, "ballast", push(t, n, converttest.ModelPackRaw(converttest.Files(weights(63, 1<<20)))))
	for _, command := range node.OfAlerts(t, "ballast") {
		args := strings.Fields(command)[1:]
		if args[0] == "top" { // does not end
			args = append(args, "--help")
		}
		if out := n.Ballast(args...); out.Err != nil {
			t.Errorf("%s: %v\n%s", command, out.Err, out.Output())
		}
	}
}
