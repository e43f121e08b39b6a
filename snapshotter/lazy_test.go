package snapshotter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A model that is shown before it is complete has one more data-only layer, which mounts made after its
// completion do not have. It uses the view of its snapshot; a model shown by an earlier version uses
// the common view.
func TestShowBeforeComplete(t *testing.T) {
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("own view %t", own), func(t *testing.T) { testShowBeforeComplete(t, own) })
	}
}

func testShowBeforeComplete(t *testing.T, own bool) {
	n := newNode(t, tree.Stubs)
	p := storetest.Random(7, 3<<20)
	m := newModel().file("model.bin", 0o640, p).inline("config.json", 0o644, "{}")
	for i := range m.Table().Files {
		if src := m.Table().Files[i].Source; src.Blob != "" {
			src.Chunks = []filetable.Chunk{{Size: 1 << 20, Digest: digest.FromBytes(p[:1<<20])}, {Offset: 1 << 20, Size: 2 << 20, Digest: digest.FromBytes(p[1<<20:])}}
		}
	}
	table := m.Put(t, n.store)
	mounts, err := n.Prepare(t.Context(), "layer", "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(t.Context(), mounts)
	if err != nil {
		t.Fatal(err)
	}
	view, sources, data := "", storetest.From(m.from), n.store.ObjectsDir()
	if own {
		view, data = ViewName(id), n.store.Views.View(ViewName(id)).Dir()
	}
	if err := n.Hold(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Views.Expose(t.Context(), table, store.ExposeOptions{View: view, Sources: sources}); err != nil {
		t.Fatal(err)
	}
	if err := n.Show(t.Context(), id, table); !errdefs.IsUnavailable(err) {
		t.Errorf("show without a lazy mount: got %v, want unavailable", err)
	}
	lazy := filepath.Join(t.TempDir(), "lazy")
	if err := n.UseLazy(lazy+":x", nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a directory that cannot be in mount options: %v", err)
	}
	if err := n.UseLazy(lazy, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.Show(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
	if err := n.Commit(t.Context(), "model", "layer"); err != nil {
		t.Fatal(err)
	}
	// The content of the file in the lazy mount.
	shows := lazy
	if own {
		shows = filepath.Join(lazy, id)
	}
	name := filepath.Join(shows, store.ObjectName(digest.FromBytes(p)))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, p, 0o644); err != nil {
		t.Fatal(err)
	}
	told := 0
	n.told = func(name string, d digest.Digest, v string) {
		if told++; name != "late" || d != table || v != view {
			t.Errorf("told of %s in view %q, for %q, want %s in %q for late", d, v, name, table, view)
		}
	}
	for _, key := range []string{"early", "extract-late", "late"} {
		told = 0
		mounts, err := n.View(t.Context(), key, "model")
		if err != nil {
			t.Fatal(err)
		}
		if told > 0 != (key == "late") {
			t.Errorf("%s: told of %d complete models", key, told)
		}
		options := strings.Join(mounts[0].Options, ",")
		if !strings.Contains(options, "::"+data) {
			t.Errorf("%s: no layer %s in %q", key, data, options)
		}
		if has := strings.Contains(options, "::"+shows); has != (key == "early") {
			t.Errorf("%s: lazy layer in %q: %t", key, mounts[0].Options, has)
		}
		dir, unmount := mountAll(t, mounts)
		if got := read(t, filepath.Join(dir, "model.bin")); got != string(p) {
			t.Errorf("%s: other bytes", key)
		}
		unmount()
		if err := n.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(lazy); err != nil {
			t.Fatal(err)
		}
	}
}
