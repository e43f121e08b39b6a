package admin_test

import (
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestModelWithoutImage has a model without an image that a snapshot shows before it is complete: it is
// listed, found by the digest of its table, and removed with its snapshot.
func TestModelWithoutImage(t *testing.T) {
	r := newRig(t)
	p := storetest.Random(41, 9<<20)
	f := storetest.NewFetcher(p)
	table := storetest.NewBuilder("ahead").RawChunks("model.bin", p, 0o644, filetable.MaxChunk).Put(t, r.store)
	if err := r.store.AddRef(t.Context(), "snapshot/1", table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.SetRefSources(t.Context(), "snapshot/1", []string{"reg.example/team/ahead"}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.View("").ReadAt(t.Context(), digest.FromBytes(p), make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	r.store.Pause()
	shown := func() *api.Image {
		all, err := r.client.Images(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range all {
			if im.Table == table {
				return &im
			}
		}
		return nil
	}
	got := shown()
	if got == nil {
		t.Fatal("it is not listed")
	}
	if got.State != api.StateLazy || !got.Paused || got.Completed != filetable.MaxChunk || got.Total != int64(len(p)) || got.Snapshots != 1 ||
		got.ID() != table || !cmp.Equal(got.Sources, []string{"reg.example/team/ahead"}) {
		t.Errorf("got %+v", got)
	}
	d, err := r.client.Image(t.Context(), table.Encoded()[:12])
	if err != nil || d.Table != table || d.State != api.StateLazy || d.Chunks == nil || d.Chunks.Chunks != 3 {
		t.Errorf("by digest: %+v, %v", d, err)
	}
	if _, err := r.client.RemoveImage(t.Context(), table.String()); !errdefs.IsNotFound(err) {
		t.Errorf("rm: got %v, want ErrNotFound: a snapshot has it, not we", err)
	}
	if err := r.store.RemoveRef(t.Context(), "snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if got := shown(); got != nil {
		t.Errorf("without a snapshot: %+v", got)
	}
	if _, err := r.client.Image(t.Context(), table.String()); !errdefs.IsNotFound(err) {
		t.Errorf("without a snapshot: got %v, want ErrNotFound", err)
	}
}

func TestNoDaemon(t *testing.T) {
	c := api.NewClient(filepath.Join(t.TempDir(), "s"))
	if _, err := c.Version(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

func TestUnknownPath(t *testing.T) {
	c := serve(t, http.NotFoundHandler()) // a daemon of another version
	if _, err := c.Version(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("got %v, want ErrNotImplemented", err)
	}
}
