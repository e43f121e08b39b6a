package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestOrder: a container of one node reads a model in an order of its own, which that node writes beside the model.
// Another node downloads the model in it.
func TestOrder(t *testing.T) {
	const chunk, begin = 4 << 20, 256 << 10
	first := node.StartNode(t, node.Options{Config: slowBackground})
	files := []converttest.File{
		{Path: "config.json", Data: []byte("{}"), Mode: 0o644},
		{Path: "one.bin", Data: weights(130, 6*chunk), Mode: 0o644}, {Path: "two.bin", Data: weights(131, 6*chunk), Mode: 0o644},
	}
	names := map[digest.Digest]string{}
	for _, f := range files[1:] {
		names[digest.FromBytes(f.Data)] = f.Path
	}
	ref := convertedModel(t, first, converttest.ModelPackRaw(files))
	mustPull(t, first, "ballast", ref)
	dir := rootOf(t, first, ref)

	wantError(t, first.Ballast("record", ref), "no read of the model is known")
	type part struct {
		Path         string
		Offset, Size int64
	}
	var order []part
	for _, p := range []part{{"two.bin", 5, 1}, {"one.bin", 3, 1}, {"two.bin", 1, 1}, {"one.bin", 0, 1}, {"two.bin", 4, 1}} {
		p.Offset, p.Size = p.Offset*chunk, chunk
		if p.Offset == 0 { // the beginning is a chunk by itself
			p.Offset, p.Size = begin, chunk-begin
		}
		f, err := os.Open(filepath.Join(dir, p.Path))
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.ReadAt(make([]byte, 100), p.Offset+1<<20)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, p)
	}
	recorded := func(n *node.Node) {
		t.Helper()
		var r struct{ Order struct{ Ranges []part } }
		if err := json.Unmarshal(n.Admin(t, "/v1/order?name="+ref), &r); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(order, r.Order.Ranges); diff != "" {
			t.Errorf("recorded: %s", diff)
		}
	}
	recorded(first)
	if out := ballast(t, first, "record", ref); !strings.Contains(out, "  5 ranges, beside sha256:") {
		t.Errorf("record: %q", out)
	}

	// inOrder returns the parts of the model in the order in which they are requested.
	inOrder := func(n *node.Node) (asked []string) {
		waitFor(t, "the model is complete", func() error {
			for _, f := range files {
				if !complete(n, f.Data) {
					return fmt.Errorf("%s is not complete", f.Path)
				}
			}
			return nil
		})
		for _, r := range n.Registry.Wire.Requests() {
			var from, to int64
			if k, _ := fmt.Sscanf(r.Range, "bytes=%d-%d", &from, &to); k == 2 && names[r.Blob()] != "" && to > from && to >= begin { // neither one byte to try the registry nor a beginning
				asked = append(asked, fmt.Sprint(names[r.Blob()], " ", from/chunk))
			}
		}
		return asked
	}
	first.Ballastd.Stop(t) // its requests would be among those of the other
	second := node.StartNode(t, node.Options{Registry: first.Registry, Config: "[fetch]\nconnections = 1\n"})
	first.Registry.Wire.Reset()
	mustPull(t, second, "ballast", ref)
	asked := inOrder(second)
	if len(asked) != 12 {
		t.Errorf("%d requests, want 12: %v", len(asked), asked)
	}
	for i, p := range order { // one connection, and two buffers
		want := fmt.Sprint(p.Path, " ", p.Offset/chunk)
		if at := slices.Index(asked, want); at < i-1 || at > i+1 {
			t.Errorf("%s is request %d, not %d: %v", want, at, i, asked)
		}
	}
	recorded(second)
}
