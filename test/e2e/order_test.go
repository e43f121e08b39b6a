package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestOrder: a container of one node reads a model in an order of its own. Another node that gets the order from the
// registry, and one that gets it as a file, download the model in it.
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
	recorded := func(n *node.Node) []byte {
		t.Helper()
		out := n.Ballast("record", ref)
		var o struct {
			Version int
			Ranges  []part
		}
		if err := json.Unmarshal([]byte(out.Stdout), &o); err != nil || o.Version != 1 {
			t.Fatalf("record: %v\n%s", err, out.Output())
		}
		if diff := cmp.Diff(order, o.Ranges); diff != "" {
			t.Errorf("recorded: %s", diff)
		}
		return []byte(out.Stdout)
	}
	file := filepath.Join(t.TempDir(), "order.json")
	if err := os.WriteFile(file, recorded(first), 0o644); err != nil {
		t.Fatal(err)
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
	check := func(how string, asked []string) {
		t.Helper()
		if len(asked) != 12 {
			t.Errorf("%s: %d requests, want 12: %v", how, len(asked), asked)
		}
		for i, p := range order { // one connection, and two buffers
			want := fmt.Sprint(p.Path, " ", p.Offset/chunk)
			if at := slices.Index(asked, want); at < i-1 || at > i+1 {
				t.Errorf("%s: %s is request %d, not %d: %v", how, want, at, i, asked)
			}
		}
	}
	ballast(t, first, "record", "--push", ref)
	first.Ballastd.Stop(t) // its requests would be among those of the others
	one := "[fetch]\nconnections = 1\n"
	third := node.StartNode(t, node.Options{Registry: first.Registry, Config: one})
	first.Registry.Wire.Reset()
	ballast(t, third, "prefetch", "--order", file, ref)
	check("from a file", inOrder(third))
	recorded(third)

	second := node.StartNode(t, node.Options{Registry: first.Registry, Config: one})
	first.Registry.Wire.Reset()
	mustPull(t, second, "ballast", ref)
	check("from the registry", inOrder(second))
	recorded(second)
}
