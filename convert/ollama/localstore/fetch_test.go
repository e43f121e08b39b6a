package localstore_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestFetch reads ranges, and returns a permanent error for a file of another size.
func TestFetch(t *testing.T) {
	t.Parallel()
	_, s := write(t, converttest.StoreV2Link, map[string]*converttest.Built{"ollama.com/library/x/latest": gguf("GGUF weights")})
	d := digest.FromString("GGUF weights")
	body, start, err := s.Fetch(t.Context(), d, 12, 5, 4)
	if err != nil || start != 5 {
		t.Fatalf("got start %d, %v", start, err)
	}
	p, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil || string(p) != "weig" {
		t.Errorf("got %q, %v", p, err)
	}
	if _, _, err := s.Fetch(t.Context(), d, 13, 0, 13); !errdefs.IsDataLoss(err) || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another size: %v", err)
	}
	if _, _, err := s.Fetch(t.Context(), digest.FromString("other"), 1, 0, 1); !errdefs.IsNotFound(err) {
		t.Errorf("another blob: %v", err)
	}
}

// TestListParser parses a list of a store whose entries have no sizes, and one with a damaged
// child.
func TestListParser(t *testing.T) {
	t.Parallel()
	child := gguf("GGUF weights")
	b := converttest.OllamaList(0, converttest.ListEntry{Built: child, Runner: "llamacpp", Format: "gguf"})
	dir, s := write(t, converttest.StoreV2Link, map[string]*converttest.Built{"ollama.com/library/x/1b": b})
	a, err := s.Artifact("x:1b")
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Name().Short(); got != "x:1b" {
		t.Errorf("name %q", got)
	}
	parsers := formats.All()
	m, err := parsers.Parse(t.Context(), a)
	if err != nil || m.Table.Origin.Digest != b.Digest() {
		t.Errorf("got %v, %v", m, err)
	}
	if err := os.WriteFile(dir+"/blobs/sha256-"+child.Digest().Encoded(), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := parsers.Parse(t.Context(), a); !errdefs.IsDataLoss(err) {
		t.Errorf("damaged child: %v", err)
	}
}

// TestWords checks messages.
func TestWords(t *testing.T) {
	t.Parallel()
	models := map[string]*converttest.Built{}
	for i := range 23 {
		models[fmt.Sprintf("ollama.com/library/m%02d/latest", i)] = gguf("GGUF weights")
	}
	dir, s := write(t, converttest.StoreV2Copy, models)
	_, err := s.Artifact("me/x")
	for _, w := range []string{"model registry.ollama.ai/me/x:latest is not in " + dir, "which has m00:latest, m01:latest", "and 3 more"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in %v", w, err)
		}
	}
	bare := t.TempDir()
	if err := os.Mkdir(bare+"/blobs", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, bare).Artifact("x"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "no models") {
		t.Errorf("empty store: %v", err)
	}
	for in, want := range map[string]string{"x": "x:latest", "me/x:1": "me/x:1", "hf.co/a/b:q": "hf.co/a/b:q", "hf.co/library/b:q": "hf.co/library/b:q"} {
		n, err := localstore.ParseName(in)
		if err != nil || n.Short() != want || n.Official() != (in == "x") {
			t.Errorf("%s: %q, %v, official %v", in, n.Short(), err, n.Official())
		}
	}
	n, _ := localstore.ParseName("me/x")
	wrong := &verify.Error{Want: digest.FromString("GGUF weights"), Got: digest.FromString("other")}
	if err := s.Explain(n, wrong); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "blobs/sha256-"+wrong.Want.Encoded()+" is damaged") ||
		!strings.Contains(err.Error(), `"ollama pull me/x:latest"`) {
		t.Errorf("damaged: %v", err)
	}
	if err := s.Explain(n, io.ErrClosedPipe); err != io.ErrClosedPipe {
		t.Errorf("another error: %v", err)
	}
}
