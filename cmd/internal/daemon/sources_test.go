package daemon

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

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/config"
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
	d := &Daemon{log: log, store: s, snapshotter: snap, remote: r, facade: &registry.Handler{Resolver: resolve.Resolver{Upstream: r}, Store: s}}
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

// sameNames compares the places, whoever sees them.
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

// TestSourceIdentity has a private model that a caller pulled and the node pinned: what is fetched for the
// snapshot is fetched with the caller's credentials, what is fetched for the pin with those of the node.
func TestSourceIdentity(t *testing.T) {
	d, table := newSourcesRig(t, tree.Links)
	d.facade.Secrets = &pullsecret.Secrets{}
	d.secrets = d.facade.Secrets
	const name = "good.example/team/m"
	err := d.store.PutImage(t.Context(), store.Image{
		Manifest: digest.FromString("manifest"), Config: digest.FromString("config"), Table: table, Refs: []string{name + ":1"},
		Origin: filetable.Origin{Format: "test", Digest: digest.FromString("origin"), Mapping: 1}, PrivateNames: []string{name},
	})
	if err != nil {
		t.Fatal(err)
	}
	from := []differ.Repository{{Host: "good.example", Name: "team/m"}}
	sameKeys(t, "pulled without a secret", d.pulled(t.Context(), table, from), name+" ")
	d.secrets.Keep(name, remote.Credentials{Username: "alice", Secret: "s3cr3t"})
	sameKeys(t, "pulled", d.pulled(t.Context(), table, from), name+" pull secret 1", name+" ")

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
	if err := d.store.AddRef(t.Context(), admin.PinName(name+":1"), table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := d.store.SetRefSources(t.Context(), admin.PinName(name+":1"), []string{name}); err != nil {
		t.Fatal(err)
	}
	sameKeys(t, "the rest, for a snapshot and a pin", recorded(false), name+" pull secret 1", name+" ", name+" node")
}

// TestSecretsOfComplete has a model that is complete: its pull secret is not on the disk, where it is kept
// of models that are not, and nothing is there if that is not wanted.
func TestSecretsOfComplete(t *testing.T) {
	d, table := newSourcesRig(t, tree.Links)
	c := config.Default()
	c.Root = d.store.Dir()
	left := func() (names []string) {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(c.Root, secretsDir, "*"))
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
		if d.secrets, err = openSecrets(c, d.log); err != nil {
			t.Fatal(err)
		}
		secrets := d.secrets
		t.Cleanup(func() {
			if err := secrets.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	open()
	const name = "good.example/team/m"
	d.secrets.Keep(name, remote.Credentials{Username: "alice", Secret: "s3cr3t"})
	d.pull(t, table, true, name)
	d.settleSecrets(t.Context())
	if d := cmp.Diff(left(), []string{"key"}); d != "" {
		t.Errorf("files (-got +want):\n%s", d)
	}
	c.Upstream.KeepSecrets = false
	open()
	if got := left(); got != nil {
		t.Errorf("keep_secrets = false: %v, want nothing", got)
	}
	d.secrets.Keep(name, remote.Credentials{Username: "alice", Secret: "s3cr3t"})
	d.settleSecrets(t.Context())
	if l := d.secrets.Of(name); len(l) != 1 {
		t.Errorf("in memory: %v", l)
	}
}

// TestDoubtNames opens a root of a version that took for public what it read with the credentials of the
// node. It is doubted once.
func TestDoubtNames(t *testing.T) {
	d, table := newSourcesRig(t, tree.Links)
	d.resolved(t, table, "carton.example/team/m:1", "good.example/team/m:1", "other.example/m:1")
	c := config.Default()
	c.Root = d.store.Dir()
	c.Carton = []config.Carton{{Registry: "carton.example", URL: "https://models.example/{repository}/{tag}"}}
	private := func() []string {
		t.Helper()
		if err := doubtNames(t.Context(), c, d.store); err != nil {
			t.Fatal(err)
		}
		im, err := d.store.Image(t.Context(), digest.FromString("manifest"))
		if err != nil {
			t.Fatal(err)
		}
		return im.PrivateNames
	}
	want := []string{"good.example/team/m", "other.example/m"}
	c.Upstream.DockerConfig = filepath.Join(t.TempDir(), "config.json")
	if l := private(); l != nil {
		t.Errorf("a node without credentials: private names %v", l)
	}
	if err := os.WriteFile(c.Upstream.DockerConfig, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(private(), want); diff != "" {
		t.Errorf("private names (-got +want):\n%s", diff)
	}
	for _, keep := range []bool{false, true} {
		c.Upstream.KeepSecrets = keep
		s, err := openSecrets(c, d.log)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := d.store.SetPublic(t.Context(), digest.FromString("manifest"), "good.example/team/m"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(private(), want[1:]); diff != "" {
			t.Errorf("private names, after a name was seen to be public (-got +want):\n%s", diff)
		}
	}
}

// TestSourcesOfStrangers has snapshots that show a table before it is complete: each gets the rest from its
// own sources, and what is asked for by no name does not mix them.
func TestSourcesOfStrangers(t *testing.T) {
	d, _ := newSourcesRig(t, tree.Stubs)
	if err := d.snapshotter.UseLazy(t.TempDir(), nil); err != nil {
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
		l, err := d.recorded(t.Context(), table, false)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, what, l, want...)
	}
	c := config.Default()
	c.Root = d.store.Dir()
	var err error
	if d.secrets, err = openSecrets(c, d.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.secrets.Close(); err != nil {
			t.Error(err)
		}
	})
	views := map[string]string{}
	for _, name := range []string{"aaa.evil/x", "good.example/m"} {
		views[name] = early(name)
		d.secrets.Keep(name, remote.Credentials{Username: "of", Secret: name})
	}
	for name, view := range views {
		l, err := d.shownFrom(t.Context(), view, table)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, "for a view", l, name)
	}
	check("nobody had all of it", "aaa.evil/x")
	err = d.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.FromRepository("good.example/m", privately{storetest.NewFetcher(p)})})
	if err != nil {
		t.Fatal(err)
	}
	check("one had all of it", "good.example/m")
	d.settleSecrets(t.Context())
	files, err := os.ReadDir(filepath.Join(c.Root, secretsDir))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 2 { // the key, and those of the one who lacks files that others brought
		t.Errorf("sealed: %v, want the secrets of one name", files)
	}
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
