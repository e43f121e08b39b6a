package admin_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
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
	if err := r.store.AddRef("snapshot/1", table, time.Time{}, "reg.example/team/ahead"); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.store.Views.View("").ReadAt(t.Context(), digest.FromBytes(p), make([]byte, 10), 0); err != nil {
		t.Fatal(err)
	}
	r.store.Pause()
	shown := func() *wire.Image {
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
	if got.State != wire.StateLazy || !got.Paused || got.Completed != filetable.MaxChunk || got.Total != int64(len(p)) || got.Snapshots != 1 ||
		got.ID() != table || !cmp.Equal(got.Sources, []string{"reg.example/team/ahead"}) {
		t.Errorf("got %+v", got)
	}
	d, err := r.client.Image(t.Context(), table.Encoded()[:12])
	if err != nil || d.Table != table || d.State != wire.StateLazy || d.Chunks == nil || d.Chunks.Chunks != 3 {
		t.Errorf("by digest: %+v, %v", d, err)
	}
	if _, err := r.client.RemoveImage(t.Context(), table.String(), false); !errdefs.IsNotFound(err) {
		t.Errorf("rm: got %v, want ErrNotFound: a snapshot has it, not we", err)
	}
	pin := "pin/" + table.String() // of a prefetch by digest
	if err := r.store.AddRef(pin, table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.RemoveRef("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if pins, err := r.client.Unpin(t.Context(), table.String()); err != nil || len(pins) != 1 {
		t.Errorf("unpin what nothing shows: %v, %v", pins, err)
	}
	if _, err := r.client.Unpin(t.Context(), table.String()); !errdefs.IsNotFound(err) {
		t.Errorf("unpin it again: %v, want ErrNotFound", err)
	}
	if got := shown(); got != nil {
		t.Errorf("without a snapshot: %+v", got)
	}
	if _, err := r.client.Image(t.Context(), table.String()); !errdefs.IsNotFound(err) {
		t.Errorf("without a snapshot: got %v, want ErrNotFound", err)
	}
}

func TestNoDaemon(t *testing.T) {
	c := wire.NewClient(filepath.Join(t.TempDir(), "s"))
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

// TestAbandonedWithoutImage abandons a download, and removes its image: that stops it. One that began
// without an image is listed with the reference that it had, and stopped by its digest or by a GC.
func TestAbandonedWithoutImage(t *testing.T) {
	r := newRig(t)
	r.fetcher.Delay = func(ctx context.Context) { <-ctx.Done() }
	abandon := func() {
		t.Helper()
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- r.store.Hydrate(ctx, r.image.Table, store.HydrateOptions{Sources: storetest.From(r.fetcher)})
		}()
		for len(r.store.Work()) == 0 {
			time.Sleep(time.Millisecond)
		}
		leave()
		<-ended
	}
	abandon()
	removed, err := r.client.RemoveImage(t.Context(), testRef, false)
	if err != nil || removed.Stopped != 1 || len(removed.Manifests) != 1 || len(r.store.Work()) != 0 {
		t.Errorf("rm: %+v, %v, %+v", removed, err, r.store.Work())
	}

	listed := func() (found []string) {
		t.Helper()
		all, err := r.client.Images(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, im := range all {
			found = append(found, string(im.State)+" "+im.ID().String()+" "+strings.Join(im.Sources, " "))
		}
		return found
	}
	want := []string{"pulling " + r.image.Table.String() + " " + testRef}
	for what, stop := range map[string]func() (int, error){
		"rm": func() (int, error) {
			removed, err := r.client.RemoveImage(t.Context(), r.image.Table.String(), false)
			return removed.Stopped, err
		},
		"gc": func() (int, error) {
			if res, err := r.client.GC(t.Context(), wire.GCOptions{DryRun: true}); err != nil || res.Downloads != 1 || len(r.store.Work()) != 1 {
				t.Errorf("dry run: %+v, %v", res, err)
			}
			res, err := r.client.GC(t.Context(), wire.GCOptions{})
			return res.Downloads, err
		},
	} {
		r.status.Jobs = nil
		abandon()
		r.status.Jobs = []wire.Job{{Kind: wire.KindAbandoned, Table: r.image.Table, Ref: testRef}}
		if diff := cmp.Diff(listed(), want); diff != "" {
			t.Errorf("%s: listed (got, want):\n%s", what, diff)
		}
		if d, err := r.client.Image(t.Context(), r.image.Table.Encoded()[:12]); err != nil || d.Table != r.image.Table {
			t.Errorf("%s: by digest: %+v, %v", what, d, err)
		}
		if n, err := stop(); n != 1 || err != nil || len(r.store.Work()) != 0 {
			t.Errorf("%s: %d stopped, %v, %+v", what, n, err, r.store.Work())
		}
		if _, err := r.client.RemoveImage(t.Context(), r.image.Table.String(), false); !errdefs.IsNotFound(err) {
			t.Errorf("%s: a second rm: %v, want ErrNotFound", what, err)
		}
	}
}
