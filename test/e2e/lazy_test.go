package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// slow limits the link to that between a node and a registry of the same region.
func slow(n *node.Node) { n.Registry.Wire.Link(50<<20, 20*time.Millisecond) }

// convertedModel pushes a model and converts it within the registry, with digests of chunks.
func convertedModel(t *testing.T, n *node.Node, b *converttest.Built, flags ...string) string {
	t.Helper()
	src := push(t, n, b)
	dst := n.Registry.Ref("lazy/"+strings.ToLower(filepath.Base(t.Name())), "1")
	if out := n.Ballast(append([]string{"convert", src, dst}, flags...)...); out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	n.Registry.Wire.Reset()
	return dst
}

// rootOf starts a container of an image and returns the path of its root.
func rootOf(t *testing.T, n *node.Node, ref string) string {
	t.Helper()
	containers++
	id := fmt.Sprintf("reader%d", containers)
	if out := n.Start("ballast", ref, id); out.Err != nil {
		t.Fatalf("start: %v\n%s", out.Err, out.Output())
	}
	t.Cleanup(func() {
		n.Ctr("tasks", "rm", "-f", id)
		n.Ctr("containers", "rm", id)
	})
	for line := range strings.Lines(n.Ctr("tasks", "ls").Stdout) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == id {
			return filepath.Join("/proc", f[1], "root")
		}
	}
	t.Fatalf("container %s has no process", id)
	return ""
}

var containers int

// complete reports whether an object is on the node.
func complete(n *node.Node, p []byte) bool {
	_, err := os.Stat(object(n, digest.FromBytes(p)))
	return err == nil
}

// The end of the largest file is read long before the file is complete, then all of it; it becomes an
// object that is mounted without the daemon.
func TestLazyPull(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	big := weights(120, 96<<20+5)
	ref := convertedModel(t, n, converttest.ModelPackRaw(converttest.Files(big)))
	slow(n)
	pause(t, n)
	start := time.Now()
	mustPull(t, n, "ballast", ref)
	pulled := time.Since(start)
	dir := rootOf(t, n, ref)
	started := time.Since(start)
	f, err := os.Open(filepath.Join(dir, "model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tail := make([]byte, 1000)
	if _, err := f.ReadAt(tail, int64(len(big)-len(tail))); err != nil || !bytes.Equal(tail, big[len(big)-len(tail):]) {
		t.Fatalf("end of the file: %v", err)
	}
	t.Logf("pulled after %v, started after %v, end read after %v", pulled, started, time.Since(start))
	if complete(n, big) {
		t.Error("the file was complete before its end was read")
	}
	resume(t, n)
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil || hex.EncodeToString(h.Sum(nil)) != digest.FromBytes(big).Encoded() {
		t.Errorf("whole file: %v, or other bytes", err)
	}
	t.Logf("all read after %v", time.Since(start))
	waitFor(t, "the model to be complete", func() error {
		if !complete(n, big) {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	if sent := n.Registry.Wire.BlobBytes()[digest.FromBytes(big)]; sent > int64(len(big))+8<<20 {
		t.Errorf("%d bytes crossed the wire for %d", sent, len(big))
	}
	if _, err := f.ReadAt(tail, 12345); err != nil || !bytes.Equal(tail, big[12345:][:len(tail)]) {
		t.Errorf("the file that is open: %v", err)
	}
	wantFiles(t, n, ref, states(converttest.ModelPackRaw(converttest.Files(big))))
}

// patience is how long a test waits for a condition, even on a busy machine.
const patience = 8 * time.Minute

// pause stops background downloads until resume or a restart of the daemon: models stay incomplete,
// however slow the machine is. Reads continue.
func pause(t *testing.T, n *node.Node) {
	t.Helper()
	ballast(t, n, "pause")
}

func resume(t *testing.T, n *node.Node) {
	t.Helper()
	ballast(t, n, "resume")
}

// pullRest downloads the rest of a model by the digest by which the node knows it: its tag is not resolved again.
func pullRest(n *node.Node, ref string) error {
	var all []struct {
		Refs  []string
		Table string
	}
	out := n.Ballast("ls", "-o", "json")
	if err := json.Unmarshal([]byte(out.Stdout), &all); err != nil {
		return fmt.Errorf("ls: %w: %s", err, out.Output())
	}
	for _, im := range all {
		if slices.Contains(im.Refs, ref) {
			if out := n.Ballast("pull", im.Table); out.Err != nil {
				return fmt.Errorf("pull %s: %w: %s", im.Table, out.Err, out.Output())
			}
			return nil
		}
	}
	return fmt.Errorf("the node does not know %s", ref)
}

// slowBackground is a configuration that limits background downloads, also after a restart: models
// of tens of MiB stay incomplete for minutes. Reads are as fast as the link.
const slowBackground = "[lazy]\nrate = \"256KiB\"\n"

// waitFor waits until ready returns nil.
func waitFor(t *testing.T, what string, ready func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = ready(); err == nil {
			return
		}
	}
	t.Fatalf("waited %v for %s: %v", patience, what, err)
}
