package snapshotter

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// client has the methods of a client that containerd's package oci needs.
type client struct{ s snapshots.Snapshotter }

func (c client) SnapshotService(string) snapshots.Snapshotter { return c.s }

// containerd looks for users in the layers of a container without mounting it.
func TestUsersOfContainer(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			ctx := namespaces.WithNamespace(t.Context(), "default")
			n.commit(t, "model", n.claimBlobs(t, 2), newModel().file("w", 0o644, storetest.Random(1, 5000)))
			n.layer(t, "tool", "model", func(dir string) {
				if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(dir, "etc", "passwd"), "bob:x:123:456::/:/bin/sh\n")
				write(t, filepath.Join(dir, "etc", "group"), "some:x:789:bob\n")
			})
			for parent, opts := range map[string][]oci.SpecOpts{
				"tool":  {oci.WithUsername("bob"), oci.WithAdditionalGIDs("bob")},
				"model": {oci.WithAdditionalGIDs("root")},
			} {
				if _, err := n.Prepare(ctx, "c-"+parent, parent); err != nil {
					t.Fatal(err)
				}
				spec := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
				c := &containers.Container{ID: parent, Snapshotter: "ballast", SnapshotKey: "c-" + parent}
				for _, o := range opts {
					if err := o(ctx, client{n.Snapshotter}, c, &spec); err != nil {
						t.Errorf("%s: %v", parent, err)
					}
				}
				if u := spec.Process.User; parent == "tool" && (u.UID != 123 || u.GID != 456 || !cmp.Equal(u.AdditionalGids, []uint32{456, 789})) {
					t.Errorf("got user %v, want 123:456 and the groups 456 and 789", u)
				}
			}
		})
	}
}

// A read-only mount that containerd makes of a container shows the container's files, and no directory
// of the store.
func TestReadonlyOfContainer(t *testing.T) {
	n := newNode(t, tree.Stubs)
	n.commit(t, "model", "", newModel().file("w", 0o644, storetest.Random(1, 5000)).file("d/e", 0o600, storetest.Random(2, 5000)))
	n.commit(t, "other", "", newModel().file("secret", 0o644, storetest.Random(3, 5000)))
	n.layer(t, "above", "model", func(dir string) { write(t, filepath.Join(dir, "x"), "x") })
	for _, parent := range []string{"model", "above"} {
		mounts, err := n.Prepare(t.Context(), "c-"+parent, parent)
		if err != nil {
			t.Fatal(err)
		}
		dir, unmount := mountAll(t, mounts)
		write(t, filepath.Join(dir, "mine"), "mine")
		if err := os.Remove(filepath.Join(dir, "d/e")); err != nil {
			t.Fatal(err)
		}
		want := list(t, dir)
		unmount()
		err = mount.WithReadonlyTempMount(t.Context(), mounts, func(root string) error {
			if diff := cmp.Diff(list(t, root), want); diff != "" {
				t.Errorf("%s (-read-only +container):\n%s", parent, diff)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// Without the whiteout, such a mount shows all objects, and without its directory there is no mount. Each
// mount creates what is missing, also while others do.
func TestHide(t *testing.T) {
	n := newNode(t, tree.Stubs)
	n.commit(t, "model", "", newModel().file("w", 0o644, storetest.Random(1, 5000)))
	name := whiteout(n.hideDir())
	damages := map[string]func() error{
		"missing":   func() error { return nil },
		"nothing":   func() error { return os.RemoveAll(n.hideDir()) },
		"file":      func() error { return os.WriteFile(name, nil, 0o644) },
		"directory": func() error { return os.MkdirAll(filepath.Join(name, "d"), 0o755) },
	}
	for what, damage := range damages {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				if _, err := n.Prepare(t.Context(), fmt.Sprint(what, i), "model"); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		all.Wait()
		if !isWhiteout(name) {
			t.Errorf("%s: there is no whiteout", what)
		}
		n.container(t, what, "model") // mounts it
	}
}
