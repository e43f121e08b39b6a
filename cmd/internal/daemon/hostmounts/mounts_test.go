package hostmounts

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// newRig returns a Mounts and a complete model.
func newRig(t *testing.T) (*Mounts, store.Image) {
	t.Helper()
	log, dir := slog.New(slog.DiscardHandler), t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	r, err := remote.New(remote.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	snap, err := snapshotter.New(dir, s, snapshotter.Options{Show: tree.Links})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := snap.Close(); err != nil {
			t.Error(err)
		}
	})
	facade := &registry.Handler{Resolver: resolve.Resolver{Upstream: r}, Store: s}
	h := New(Options{
		Dir: t.TempDir(), Store: s, Facade: facade, Snapshotter: snap, Log: log,
		Sources: &jobs.Sources{Store: s, Facade: facade, Snapshotter: snap, Log: log},
		Differ:  differ.New(differ.Options{Snapshotter: snap, Store: s}),
	})
	table := storetest.NewBuilder("m").Inline("LICENSE", []byte("do as you like"), 0o644).Put(t, s)
	im := store.Image{
		Manifest: digest.FromString("manifest"), Config: digest.FromString("config"), Table: table, Refs: []string{mountRef},
		Origin: filetable.Origin{Format: "test", Digest: digest.FromString("origin"), Mapping: 1},
	}
	if err := s.PutImage(im); err != nil {
		t.Fatal(err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{}); err != nil {
		t.Fatal(err)
	}
	return h, im
}

const mountRef = "good.example/team/m:1"

// prepare prepares a mount of the model with the reference name.
func (h *Mounts) prepare(t *testing.T, im store.Image, name, dir string) (wire.Mount, error) {
	t.Helper()
	ref, err := remote.ParseRef(name)
	if err != nil {
		t.Fatal(err)
	}
	return h.Prepare(t.Context(), im, ref, wire.MountRequest{Name: name, Dir: dir})
}

// TestMountsSettle releases models whose mounts are gone, but not those that are mounted or about
// to be mounted.
func TestMountsSettle(t *testing.T) {
	h, im := newRig(t)
	dirs := map[string]string{"mounted": t.TempDir(), "gone": t.TempDir(), "new": t.TempDir(), "busy": t.TempDir()}
	for what, dir := range dirs {
		m, err := h.prepare(t, im, mountRef, dir)
		if err != nil {
			t.Fatal(err)
		}
		if what != "new" {
			h.hand(dir, time.Now().Add(-2*mountGrace))
		}
		if what != "mounted" {
			continue
		}
		made := mount.Mount{Type: m.Type, Source: m.Source, Options: m.Options}
		if err := made.Mount(dir); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		}()
	}
	if err := h.begin(t.Context(), dirs["busy"]); err != nil {
		t.Fatal(err)
	}
	if err := h.ReleaseUnneeded(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := h.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, m := range all {
		left[m.Dir] = m.Mounted
	}
	if len(left) != 3 || !left[dirs["mounted"]] || left[dirs["new"]] || left[dirs["busy"]] {
		t.Errorf("left: %v of %v", left, dirs)
	}
	if err := h.Release(t.Context(), dirs["mounted"]); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("release what is mounted: %v", err)
	}
	if err := h.Release(t.Context(), dirs["gone"]); !errdefs.IsNotFound(err) {
		t.Errorf("release what is gone: %v", err)
	}
}

// TestMountsOverdue: what is about to be released is not given to a client, and what was just given is not released.
func TestMountsOverdue(t *testing.T) {
	h, im := newRig(t)
	dir := t.TempDir()
	if _, err := h.prepare(t, im, mountRef, dir); err != nil {
		t.Fatal(err)
	}
	all, err := h.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("mounts: %v, %v", all, err)
	}
	m := snapshotter.HostMount{Dir: dir, Created: all[0].Created}
	if h.beginOverdue(m) {
		t.Fatal("a mount that was just given is overdue")
	}
	h.hand(dir, time.Now().Add(-2*mountGrace))
	if !h.beginOverdue(m) {
		t.Fatal("a mount that nobody made is not overdue")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.begin(gone, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("prepared during the release: %v", err)
	}
	if err := h.release(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := h.prepare(t, im, mountRef, dir); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

// TestMountsIncomplete refuses a model that cannot be read before it is complete, and leaves
// nothing behind.
func TestMountsIncomplete(t *testing.T) {
	h, _ := newRig(t)
	p := storetest.Random(40, 1<<20)
	table := storetest.NewBuilder("other").Raw("model.bin", p, 0o644).Put(t, h.Store)
	im := store.Image{Manifest: digest.FromString("other"), Table: table, Refs: []string{"good.example/team/other:1"}}
	_, err := h.prepare(t, im, im.Refs[0], "")
	if !errdefs.IsFailedPrecondition(err) || !strings.HasSuffix(wire.Text(err), "; download it first: ballast prefetch good.example/team/other:1") {
		t.Errorf("got %v, want failed precondition, and what to do", err)
	}
	im.Refs = nil
	_, err = h.Prepare(t.Context(), im, remote.Ref{}, wire.MountRequest{Name: im.Manifest.String()})
	if !errdefs.IsFailedPrecondition(err) || !strings.HasSuffix(wire.Text(err), "; download it first: ballast prefetch "+im.Manifest.String()) {
		t.Errorf("by a digest: got %v", err)
	}
	if all, err := h.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("mounts: %v, %v", all, err)
	}
}

// TestMountsSources downloads the rest of models mounted on the host with the credentials of the
// node.
func TestMountsSources(t *testing.T) {
	h, im := newRig(t)
	im.PrivateNames = []string{"good.example/team/m"}
	if err := h.Store.PutImage(im); err != nil {
		t.Fatal(err)
	}
	m, err := h.prepare(t, im, mountRef, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.Sources.Shown(t.Context(), modelname.SnapshotPrefix+m.Snapshot, im.Table)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, s := range got {
		keys = append(keys, s.Key())
	}
	const name = "good.example/team/m"
	if diff := cmp.Diff(keys, []string{name + " ", name + " node"}); diff != "" {
		t.Errorf("sources (-got +want):\n%s", diff)
	}
}

// TestMountPrivate mounts a private file by the name of its repository only, whatever other repositories say they have.
func TestMountPrivate(t *testing.T) {
	h, _ := newRig(t)
	p := storetest.Random(41, 1<<20)
	for i, name := range []string{"good.example/team/secret", "evil.example/m"} {
		table := storetest.NewBuilder(name).Raw("model.bin", p, 0o644).Put(t, h.Store)
		im := store.Image{Manifest: digest.FromString(name), Config: digest.FromString("config"), Table: table, Refs: []string{name + ":1"}}
		if err := h.Store.PutImage(im); err != nil {
			t.Fatal(err)
		}
		from := storetest.FromRepository(name, storetest.Private{Fetcher: storetest.NewFetcher([][]byte{p}[i:]...)})
		if err := h.Store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}); errdefs.IsNotFound(err) != (i > 0) {
			t.Fatalf("%s: download: %v", name, err)
		}
		_, err := h.prepare(t, im, im.Refs[0], "")
		if i == 0 && err != nil {
			t.Errorf("by its own name: %v", err)
		}
		if i > 0 && (!errdefs.IsFailedPrecondition(err) || !strings.HasSuffix(wire.Text(err), "; download it first: ballast prefetch evil.example/m:1")) {
			t.Errorf("by the name of a stranger: got %v, want failed precondition, and what to do", err)
		}
	}
	if all, err := h.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("mounts: %v, %v", all, err)
	}
}
