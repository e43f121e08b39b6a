package kubelet

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// weights returns size incompressible bytes, the same for the same seed.
func weights(seed byte, size int) []byte {
	p := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func artifact(b *converttest.Built) node.Artifact {
	return node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs}
}

// push pushes a model to models/<its name>:1 and returns the reference.
func push(t *testing.T, k *kubelet, b *converttest.Built) string {
	t.Helper()
	k.node.Registry.Push(t, "models/"+b.Name, "1", artifact(b))
	return k.node.Registry.Ref("models/"+b.Name, "1")
}

// states returns the files of a model as a container must see them.
func states(b *converttest.Built) map[string]node.FileState { return statesOf(b.Files) }

func statesOf(files map[string]converttest.File) map[string]node.FileState {
	m := map[string]node.FileState{}
	for _, f := range files {
		m[f.Path] = node.FileState{Mode: fmt.Sprintf("%o", f.Mode), Size: int64(len(f.Data)), SHA256: digest.FromBytes(f.Data).Encoded()}
	}
	return m
}

// convert converts a model of the registry into converted/<name>:1 and returns the reference.
func (k *kubelet) convert(t *testing.T, ref, name string) string {
	t.Helper()
	dst := k.node.Registry.Ref("converted/"+name, "1")
	if out := k.node.Ballast("convert", ref, dst); out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	return dst
}

// wantMessage checks that a message contains each of words exactly once.
func wantMessage(t *testing.T, message string, words ...string) {
	t.Helper()
	for _, w := range words {
		if n := strings.Count(message, w); n != 1 {
			t.Errorf("the message has %q %d times, want once:\n%s", w, n, message)
		}
	}
}

// page is the documentation of pods.
const page = "../../contrib/docs/kubernetes.md"

// documented returns a part of a message, and fails the test if the documentation does not explain it.
func documented(t *testing.T, part string) string {
	t.Helper()
	p, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(p), "## What messages mean")
	table, _, _ = strings.Cut(table, "\n## ")
	if !strings.Contains(table, part) {
		t.Errorf("%s does not explain %q", page, part)
	}
	return part
}
