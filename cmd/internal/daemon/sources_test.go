package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// newSourcesRig returns the parts of a daemon that know where things come from, and a table.
func newSourcesRig(t *testing.T, show tree.Backend) (*Daemon, digest.Digest) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	r, err := remote.New(remote.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	snap, err := snapshotter.New(dir, s, snapshotter.Options{Show: show})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := snap.Close(); err != nil {
			t.Error(err)
		}
	})
	d := &Daemon{log: log, store: s, snapshotter: snap, remote: r, facade: &registry.Handler{Upstream: r, Store: s}}
	return d, storetest.NewBuilder("m").Inline("LICENSE", []byte("do as you like"), 0o644).Put(t, s)
}

// resolved records an image of a table as resolved from references, as the facade does.
func (d *Daemon) resolved(t *testing.T, table digest.Digest, refs ...string) {
	t.Helper()
	err := d.store.PutImage(t.Context(), store.Image{
		Manifest: digest.FromString("manifest"), Config: digest.FromString("config"), Table: table, Refs: refs,
		Origin: filetable.Origin{Format: "test", Digest: digest.FromString("origin"), Mapping: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pull makes a snapshot hold a table that it got from names, and show it if the pull has ended.
func (d *Daemon) pull(t *testing.T, table digest.Digest, ended bool, names ...string) {
	t.Helper()
	mounts, err := d.snapshotter.Prepare(t.Context(), fmt.Sprint("key", time.Now().UnixNano()), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := d.snapshotter.Locate(t.Context(), mounts)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.snapshotter.Hold(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
	if err := d.snapshotter.GotFrom(t.Context(), id, names); err != nil {
		t.Fatal(err)
	}
	if !ended {
		return
	}
	if err := d.store.Hydrate(t.Context(), table, store.HydrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := d.snapshotter.Show(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
}

func sameNames(t *testing.T, what string, got []transfer.Source, want ...string) {
	t.Helper()
	var names []string
	for _, s := range got {
		names = append(names, s.Name)
	}
	if diff := cmp.Diff(names, want); diff != "" {
		t.Errorf("%s: sources (-got +want):\n%s", what, diff)
	}
}

// TestSourceOrder has a stranger who resolved the model of others from a registry of his own: it is
// asked by nobody but him.
func TestSourceOrder(t *testing.T) {
	d, table := newSourcesRig(t, tree.Links)
	d.resolved(t, table, "aaa.evil/x:1", "good.example:5000/team/m:1")
	sameNames(t, "pulled", d.pulled(t.Context(), table, []differ.Repository{{Host: "good.example:5000", Name: "team/m"}}), "good.example:5000/team/m")
	sameNames(t, "pulled, port not known", d.pulled(t.Context(), table, []differ.Repository{{Host: "good.example", Name: "team/m"}}), "good.example:5000/team/m")
	sameNames(t, "pulled from elsewhere", d.pulled(t.Context(), table, []differ.Repository{{Host: "good.example", Name: "team/other"}}), "good.example/team/other")
	sameNames(t, "pulled by the stranger", d.pulled(t.Context(), table, []differ.Repository{{Host: "aaa.evil", Name: "x"}}), "aaa.evil/x")

	wanted := func(name string) []transfer.Source {
		t.Helper()
		l, err := d.wanted(t.Context(), table, name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	sameNames(t, "wanted by name", wanted("good.example:5000/team/m:1"), "good.example:5000/team/m")
	sameNames(t, "wanted by digest, nobody has it", wanted(table.Encoded()), "aaa.evil/x", "good.example:5000/team/m")

	d.pull(t, table, false, "aaa.evil/x")
	sameNames(t, "only a pull that goes on", wanted(""))
	d.pull(t, table, true, "good.example:5000/team/m", "mirror.example/m")
	sameNames(t, "a snapshot, and a pull that goes on", wanted(""), "good.example:5000/team/m", "mirror.example/m")
	d.pull(t, table, true, "other.example/m", "good.example:5000/team/m")
	sameNames(t, "two snapshots, the older first", wanted(""), "good.example:5000/team/m", "mirror.example/m", "other.example/m")
}

// TestSourcesOfStrangers has snapshots that show a table before it is complete: each gets the rest from its
// own sources, and what is asked for by no name does not mix them.
func TestSourcesOfStrangers(t *testing.T) {
	d, _ := newSourcesRig(t, tree.Stubs)
	if err := d.snapshotter.UseLazy(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	p := storetest.Random(1, 3<<20)
	b := storetest.NewBuilder("early").RawChunks("w", p, 0o644, 1<<20)
	table := b.Put(t, d.store)
	early := func(name string) (view string) {
		t.Helper()
		mounts, err := d.snapshotter.Prepare(t.Context(), "key of "+name, "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := d.snapshotter.Locate(t.Context(), mounts)
		if err != nil {
			t.Fatal(err)
		}
		view = snapshotter.ViewName(id)
		for _, err := range []error{
			d.snapshotter.Hold(t.Context(), id, table),
			d.snapshotter.GotFrom(t.Context(), id, []string{name}),
			d.store.Expose(t.Context(), table, store.ExposeOptions{View: view, Sources: storetest.FromRepository(name, privately{storetest.NewFetcher(p)})}),
			d.snapshotter.Show(t.Context(), id, table),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return view
	}
	check := func(what string, want ...string) {
		t.Helper()
		l, err := d.recorded(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, what, l, want...)
	}
	views := map[string]string{}
	for _, name := range []string{"aaa.evil/x", "good.example/m"} {
		views[name] = early(name)
	}
	for name, view := range views {
		l, err := d.shownFrom(t.Context(), view, table)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, "for a view", l, name)
	}
	check("nobody had all of it", "aaa.evil/x")
	err := d.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.FromRepository("good.example/m", privately{storetest.NewFetcher(p)})})
	if err != nil {
		t.Fatal(err)
	}
	check("one had all of it", "good.example/m")
}

// privately makes the bytes of a fetcher come with credentials.
type privately struct{ *storetest.Fetcher }

// Fetch implements transfer.Fetcher.
func (f privately) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, at, err := f.Fetcher.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	return transfer.NewBody(ctx, body, true), at, nil
}
