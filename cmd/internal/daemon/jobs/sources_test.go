package jobs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
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

// newSources returns sources of a store, and a table in it.
func newSources(t *testing.T, show tree.Backend) (*Sources, digest.Digest) {
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
	d := &Sources{Log: log, Store: s, Snapshotter: snap, Facade: &registry.Handler{Resolver: resolve.Resolver{Upstream: r}, Store: s}}
	return d, storetest.NewBuilder("m").Inline("LICENSE", []byte("do as you like"), 0o644).Put(t, s)
}

// resolved records that an image of a table was resolved from references, as the facade does.
func (d *Sources) resolved(t *testing.T, table digest.Digest, refs ...string) {
	t.Helper()
	err := d.Store.PutImage(store.Image{
		Manifest: digest.FromString("manifest"), Config: digest.FromString("config"), Table: table, Refs: refs,
		Origin: filetable.Origin{Format: "test", Digest: digest.FromString("origin"), Mapping: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPulledNames gives a repository one name, whatever containerd recorded.
func TestPulledNames(t *testing.T) {
	t.Parallel()
	d, table := newSources(t, tree.Links)
	d.resolved(t, table, "127.0.0.1:5000/team/m:1", "hf.co/Qwen/m:1")
	got := d.PulledNames(table, []differ.Repository{{Host: "index.docker.io", Name: "ai/m"}, {Host: "huggingface.co", Name: "Qwen/m"}, {Host: "127.0.0.1", Name: "team/m"}})
	if diff := cmp.Diff(got, []string{"docker.io/ai/m", "hf.co/Qwen/m", "127.0.0.1:5000/team/m"}); diff != "" {
		t.Errorf("names (-got +want):\n%s", diff)
	}
}

// TestKnownPorts: containerd records hosts without ports, so it cannot be asked for a repository if the facade knows
// the same one at another port.
func TestKnownPorts(t *testing.T) {
	t.Parallel()
	d, table := newSources(t, tree.Links)
	d.resolved(t, table, "registry.example:5000/team/m:1", "registry.example:6000/team/m:1", "registry.example:5000/team/one:1",
		"[::1]:5000/team/m:1", "registry.example/team/own:1", "registry.example:5000/team/own:1")
	for _, tt := range []struct {
		host, repository, name string
		several                bool
	}{
		{"registry.example:5000", "team/m", "registry.example:5000/team/m", true},
		{"registry.example:06000", "team/m", "registry.example:6000/team/m", true},
		{"registry.example:7000", "team/one", "registry.example:7000/team/one", true},
		{"registry.example:5000", "team/one", "registry.example:5000/team/one", false},
		{"registry.example", "team/one", "registry.example:5000/team/one", false},
		{"registry.example", "team/own", "registry.example/team/own", true},
		{"registry.example:443", "team/other", "registry.example/team/other", false},
		{"::1", "team/m", "[::1]:5000/team/m", false},
		{"[0::1]:6000", "team/m", "[::1]:6000/team/m", true},
	} {
		name, several := d.Known(table, differ.Repository{Host: tt.host, Name: tt.repository})
		if name != tt.name || several != tt.several {
			t.Errorf("%s/%s: %s, %t, want %s, %t", tt.host, tt.repository, name, several, tt.name, tt.several)
		}
	}
}

// pull makes a snapshot hold a table that it got from names, and show it if the pull has ended.
func (d *Sources) pull(t *testing.T, table digest.Digest, ended bool, names ...string) {
	t.Helper()
	mounts, err := d.Snapshotter.Prepare(t.Context(), fmt.Sprint("key", time.Now().UnixNano()), "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := d.Snapshotter.Locate(t.Context(), mounts)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Snapshotter.Hold(t.Context(), id, table, names...); err != nil {
		t.Fatal(err)
	}
	if !ended {
		return
	}
	if err := d.Store.Hydrate(t.Context(), table, store.HydrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := d.Snapshotter.Show(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
}

// sameNames compares the names of sources, whatever their credentials.
func sameNames(t *testing.T, what string, got []transfer.Source, want ...string) {
	t.Helper()
	var names []string
	for _, s := range got {
		names = append(names, s.Name)
	}
	names = slices.Compact(names)
	if diff := cmp.Diff(names, want); diff != "" {
		t.Errorf("%s: sources (-got +want):\n%s", what, diff)
	}
}

// TestSourceOrder has another client that resolved the same model from its own registry: only pulls
// of that client use that registry.
func TestSourceOrder(t *testing.T) {
	d, table := newSources(t, tree.Links)
	d.resolved(t, table, "aaa.evil/x:1", "good.example:5000/team/m:1")
	sameNames(t, "pulled", d.Pulled(table, []differ.Repository{{Host: "good.example:5000", Name: "team/m"}}), "good.example:5000/team/m")
	sameNames(t, "pulled, port not known", d.Pulled(table, []differ.Repository{{Host: "good.example", Name: "team/m"}}), "good.example:5000/team/m")
	sameNames(t, "pulled from elsewhere", d.Pulled(table, []differ.Repository{{Host: "good.example", Name: "team/other"}}), "good.example/team/other")
	sameNames(t, "pulled by the stranger", d.Pulled(table, []differ.Repository{{Host: "aaa.evil", Name: "x"}}), "aaa.evil/x")

	wanted := func(ref remote.Ref) []transfer.Source {
		t.Helper()
		l, err := d.Wanted(t.Context(), table, ref)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	sameNames(t, "wanted by name", wanted(parse(t, "good.example:5000/team/m:1")), "good.example:5000/team/m")
	sameNames(t, "wanted by digest, nobody has it", wanted(remote.Ref{}), "aaa.evil/x", "good.example:5000/team/m")

	d.pull(t, table, false, "aaa.evil/x")
	sameNames(t, "only a pull that goes on", wanted(remote.Ref{}))
	d.pull(t, table, true, "good.example:5000/team/m", "mirror.example/m")
	sameNames(t, "a snapshot, and a pull that goes on", wanted(remote.Ref{}), "good.example:5000/team/m", "mirror.example/m")
	d.pull(t, table, true, "other.example/m", "good.example:5000/team/m")
	sameNames(t, "two snapshots, the older first", wanted(remote.Ref{}), "good.example:5000/team/m", "mirror.example/m", "other.example/m")
}

// sameKeys compares names and identities.
func sameKeys(t *testing.T, what string, got []transfer.Source, want ...string) {
	t.Helper()
	var keys []string
	for _, s := range got {
		keys = append(keys, s.Key())
	}
	if diff := cmp.Diff(keys, want); diff != "" {
		t.Errorf("%s: sources (-got +want):\n%s", what, diff)
	}
}

// TestSourceIdentity has a private model that a caller pulled and the node pinned: downloads for
// the snapshot use the caller's credentials, downloads for the pin those of the node.
func TestSourceIdentity(t *testing.T) {
	d, table := newSources(t, tree.Links)
	d.Facade.Secrets = &pullsecret.Secrets{}
	d.Secrets = d.Facade.Secrets
	const name = "good.example/team/m"
	err := d.Store.PutImage(store.Image{
		Manifest: digest.FromString("manifest"), Config: digest.FromString("config"), Table: table, Refs: []string{name + ":1"},
		Origin: filetable.Origin{Format: "test", Digest: digest.FromString("origin"), Mapping: 1}, PrivateNames: []string{name},
	})
	if err != nil {
		t.Fatal(err)
	}
	from := []differ.Repository{{Host: "good.example", Name: "team/m"}}
	sameKeys(t, "pulled without a secret", d.Pulled(table, from), name+" ")
	d.Secrets.Keep(name, remote.Credentials{Username: "alice", Secret: "s3cr3t"})
	sameKeys(t, "pulled", d.Pulled(table, from), name+" pull secret 1", name+" ")

	recorded := func(asNode bool) []transfer.Source {
		t.Helper()
		l, err := d.recorded(t.Context(), table, asNode)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	d.pull(t, table, true, name)
	sameKeys(t, "the rest, for a snapshot", recorded(false), name+" pull secret 1", name+" ")
	sameKeys(t, "the rest, as the administrator asks", recorded(true), name+" pull secret 1", name+" ", name+" node")
	if err := d.Store.AddRef(modelname.Pin(name+":1"), table, time.Time{}, name); err != nil {
		t.Fatal(err)
	}
	sameKeys(t, "the rest, for a snapshot and a pin", recorded(false), name+" pull secret 1", name+" ", name+" node")
}

// The pull secret of a complete model is not on disk. The secret of an incomplete one is, unless
// the configuration forbids it.
func TestSecretsOnDisk(t *testing.T) {
	d, table := newSources(t, tree.Links)
	c := config.Default()
	c.Root = d.Store.Dir()
	left := func() (names []string) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(c.Root, dirs.Secrets, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			names = append(names, filepath.Base(f))
		}
		return names
	}
	open := func() {
		t.Helper()
		var err error
		if d.Secrets, err = OpenSecrets(c, d.Log); err != nil {
			t.Fatal(err)
		}
		secrets := d.Secrets
		t.Cleanup(func() {
			if err := secrets.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	open()
	const name = "good.example/team/m"
	d.Secrets.Keep(name, remote.Credentials{Username: "alice", Secret: "s3cr3t"})
	d.pull(t, table, true, name)
	d.PruneSecrets()
	if d := cmp.Diff(left(), []string{"key"}); d != "" {
		t.Errorf("files (-got +want):\n%s", d)
	}
	c.Upstream.KeepSecrets = false
	open()
	if got := left(); got != nil {
		t.Errorf("keep_secrets = false: %v, want nothing", got)
	}
	d.Secrets.Keep(name, remote.Credentials{Username: "alice", Secret: "s3cr3t"})
	d.PruneSecrets()
	if l := d.Secrets.Of(name); len(l) != 1 {
		t.Errorf("in memory: %v", l)
	}
}

// TestSourcesOfStrangers has snapshots that show a table before it is complete: each gets the rest
// from its own sources, and a request without a name does not mix them.
func TestSourcesOfStrangers(t *testing.T) {
	d, _ := newSources(t, tree.Stubs)
	if err := d.Snapshotter.UseLazy(t.TempDir(), nil); err != nil {
		t.Fatal(err)
	}
	p := storetest.Random(1, 3<<20)
	b := storetest.NewBuilder("early").RawChunks("w", p, 0o644, 1<<20)
	table := b.Put(t, d.Store)
	early := func(name string) (view string) {
		t.Helper()
		mounts, err := d.Snapshotter.Prepare(t.Context(), "key of "+name, "")
		if err != nil {
			t.Fatal(err)
		}
		id, err := d.Snapshotter.Locate(t.Context(), mounts)
		if err != nil {
			t.Fatal(err)
		}
		view = snapshotter.ViewName(id)
		for _, err := range []error{
			d.Snapshotter.Hold(t.Context(), id, table, name),
			d.Store.Views.Expose(t.Context(), table, store.ExposeOptions{View: view, Sources: storetest.FromRepository(name, privately{storetest.NewFetcher(p)})}),
			d.Snapshotter.Show(t.Context(), id, table),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return view
	}
	check := func(what string, want ...string) {
		t.Helper()
		l, err := d.recorded(t.Context(), table, false)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, what, l, want...)
	}
	c := config.Default()
	c.Root = d.Store.Dir()
	var err error
	if d.Secrets, err = OpenSecrets(c, d.Log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Secrets.Close(); err != nil {
			t.Error(err)
		}
	})
	views := map[string]string{}
	for _, name := range []string{"aaa.evil/x", "good.example/m"} {
		views[name] = early(name)
		d.Secrets.Keep(name, remote.Credentials{Username: "of", Secret: name})
	}
	for name, view := range views {
		l, err := d.Shown(t.Context(), view, table)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, "for a view", l, name)
	}
	if l, err := d.Shown(t.Context(), snapshotter.ViewName("gone"), table); err != nil || len(l) > 0 {
		t.Errorf("for a snapshot that is gone: %v, %v", l, err)
	}
	check("nobody had all of it", "aaa.evil/x")
	err = d.Store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.FromRepository("good.example/m", privately{storetest.NewFetcher(p)})})
	if err != nil {
		t.Fatal(err)
	}
	check("one had all of it", "good.example/m")
	d.PruneSecrets()
	files, err := os.ReadDir(filepath.Join(c.Root, dirs.Secrets))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 { // the key, and the secrets of the one that lacks files of others
		t.Errorf("sealed: %v, want the secrets of one name", files)
	}
}

// privately makes the bytes of a fetcher private.
type privately struct{ *storetest.Fetcher }

// Fetch implements transfer.Fetcher.
func (f privately) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, at, err := f.Fetcher.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	return transfer.NewBody(ctx, body, true), at, nil
}
