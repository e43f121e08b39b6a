package snapshotter

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// users are the labels of a snapshot for a user namespace with user 0 mapped to host.
func users(host string) snapshots.Opt {
	return snapshots.WithLabels(map[string]string{
		snapshots.LabelSnapshotUIDMapping: "0:" + host + ":65536",
		snapshots.LabelSnapshotGIDMapping: "0:" + host + ":65536",
	})
}

// inside runs a shell script as root of a user namespace with user 0 mapped to host.
func inside(t *testing.T, host int, dir, script string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = dir
	ids := []syscall.SysProcIDMap{{HostID: host, Size: 65536}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{NoSetGroups: true},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// reachable lets other users reach the directories of the test, as they reach /var/lib.
func reachable(t *testing.T) {
	t.Helper()
	for dir := t.TempDir(); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// mapUsers mounts a committed snapshot for a user namespace, unless its options are refused for their
// length. containerd puts longer paths into them.
func (n *node) mapUsers(t *testing.T, name string) {
	t.Helper()
	location := filepath.Join(t.TempDir(), strings.Repeat("long", 20))
	if err := mount.SetTempMountLocation(location); err != nil {
		t.Fatal(err)
	}
	defer mount.SetTempMountLocation(os.TempDir())
	t.Cleanup(func() {
		// On a busy machine containerd gives up unmounting its own mounts.
		left, _ := filepath.Glob(filepath.Join(location, "*"))
		for _, dir := range left {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	mounts, err := n.Prepare(t.Context(), "users of "+name, name, users("100000"))
	if errdefs.IsResourceExhausted(err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, unmount := mountAll(t, mounts)
	if e := list(t, dir)["w"]; e.UID != 100000 {
		t.Errorf("%s: w belongs to %d", name, e.UID)
	}
	unmount()
}

// In a user namespace all files belong to its own users, and its writes are private. No file is copied.
func TestUserNamespace(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			reachable(t)
			n := newNode(t, way)
			m := newModel().file("secret.bin", 0o640, storetest.Random(1, 1<<20)).file("d/open.bin", 0o644, storetest.Random(2, 5000))
			n.commit(t, "model", n.claimBlobs(t, 2), m)
			n.layer(t, "above", "model", func(dir string) { write(t, filepath.Join(dir, "x"), "x") })
			n.layer(t, "plain", "", func(dir string) { write(t, filepath.Join(dir, "d"), "d") })
			n.layer(t, "plain2", "plain", func(dir string) { write(t, filepath.Join(dir, "e"), "e") })
			for parent, file := range map[string]string{"model": "secret.bin", "above": "secret.bin", "plain": "d", "plain2": "e"} {
				for _, host := range []string{"100000", "200000"} {
					mounts, err := n.Prepare(t.Context(), parent+host, parent, users(host))
					if err != nil {
						t.Fatal(err)
					}
					// The CRI plugin does this for an image volume.
					mounts[0].Options = append(mounts[0].Options, "volatile")
					dir, _ := mountAll(t, mounts)
					id := map[string]int{"100000": 100000, "200000": 200000}[host]
					got := inside(t, id, dir, "stat -c '%u:%g' . "+file+" && sha256sum <"+file+" && echo mine >>"+file+" && touch new && chown 1:1 new && stat -c %u:%g new")
					want := "0:0\n0:0\n" + sum(t, filepath.Join(n.view(t, parent), file)) + "  -\n1:1\n"
					if diff := cmp.Diff(got, want); diff != "" {
						t.Errorf("%s for %s (-got +want):\n%s", parent, host, diff)
					}
					id2 := n.dirOf(t, parent+host)
					if e := list(t, id2)["new"]; e.UID != uint32(id+1) {
						t.Errorf("%s for %s: a new file belongs to %d on the disk", parent, host, e.UID)
					}
				}
			}
			if diff := m.differences(t, way, n.view(t, "model")); diff != "" {
				t.Errorf("the model itself (-got +want):\n%s", diff)
			}
		})
	}
}

// All mounts of a snapshot for a user namespace have the options of the mapping, and no others have
// them.
func TestMappedOptions(t *testing.T) {
	n := newNode(t, tree.Stubs)
	n.commit(t, "model", n.claimBlobs(t, 1), newModel().file("w", 0o644, storetest.Random(1, 9000)))
	n.layer(t, "plain", "", func(dir string) { write(t, filepath.Join(dir, "x"), "x") })
	want := []string{"uidmap=0:100000:65536", "gidmap=0:100000:65536"}
	for _, parent := range []string{"", "model", "plain", n.claimBlobs(t, 1)} {
		for name, create := range map[string]createFunc{"active": n.Prepare, "view": n.View} {
			mounts, err := create(t.Context(), name+parent, parent, users("100000"))
			if err != nil {
				t.Fatal(err)
			}
			if got := mapping(mounts); !cmp.Equal(got, want) {
				t.Errorf("%s on %q: got %q, want %q", name, parent, got, want)
			}
			mounts, err = create(t.Context(), name+parent+"-host", parent)
			if err != nil || mapping(mounts) != nil {
				t.Errorf("%s on %q without users: got %v, %v", name, parent, mounts, err)
			}
		}
	}
}

// Annotations of an image become labels of its layers. They must not set an ID mapping.
func TestLayerLabelsHostile(t *testing.T) {
	n := newNode(t, tree.Stubs)
	ref := map[string]string{snapshots.LabelSnapshotRef: digestOf("layer").String()}
	blob := blobLabels(digest.FromString("blob"))
	hostile := users("4242")
	mounts, err := n.Prepare(t.Context(), "layer", "", snapshots.WithLabels(ref), hostile)
	if err != nil {
		t.Fatal(err)
	}
	if got := mapping(mounts); got != nil {
		t.Errorf("the layer is mounted with %q", got)
	}
	if _, err := n.View(t.Context(), "view", "", hostile, snapshots.WithLabels(ref)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(t.Context(), "blob", "", hostile, snapshots.WithLabels(blob)); !errdefs.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, key := range []string{"layer", "view", blob[snapshots.LabelSnapshotRef]} {
		info, err := n.Stat(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		for k := range maps.Keys(info.Labels) {
			if strings.HasSuffix(k, "idmapping") {
				t.Errorf("%s has the label %s", key, k)
			}
		}
		if e := list(t, n.dirOf(t, key))["."]; e.UID != 0 || e.GID != 0 {
			t.Errorf("%s belongs to %d:%d", key, e.UID, e.GID)
		}
	}
}

// A containerd without the capability "remap-ids" changes the owner of all files in a copy. These are
// not mapped again.
func TestChownedByContainerd(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			n.commit(t, "model", "", newModel().file("w", 0o640, storetest.Random(1, 9000)))
			n.layer(t, "copy", "model", func(dir string) {
				err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
					if err != nil {
						return err
					}
					return os.Lchown(path, 100000, 100000)
				})
				if err != nil {
					t.Fatal(err)
				}
			})
			for host, mapped := range map[string]bool{"100000": false, "200000": true} {
				mounts, err := n.Prepare(t.Context(), host, "copy", users(host))
				if err != nil {
					t.Fatal(err)
				}
				if got := len(mapping(mounts)) > 0; got != mapped {
					t.Errorf("users from %s are mapped: %t, want %t", host, got, mapped)
				}
				if mapped {
					continue // owners without a mapping are unknown there
				}
				dir, _ := mountAll(t, mounts)
				if e := list(t, dir)["w"]; e.UID != 100000 {
					t.Errorf("w belongs to %d", e.UID)
				}
			}
		})
	}
}

// A layer of an image that looks like such a copy is mapped nevertheless.
func TestLayerOwnedByOthers(t *testing.T) {
	n := newNode(t, tree.Stubs)
	ref := digestOf("layer").String()
	if _, err := n.Prepare(t.Context(), "extract", "", snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: ref})); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(n.dirOf(t, "extract"), 100000, 100000); err != nil {
		t.Fatal(err)
	}
	if err := n.Commit(t.Context(), ref, "extract", snapshots.WithLabels(map[string]string{snapshots.LabelSnapshotRef: ref})); err != nil {
		t.Fatal(err)
	}
	mounts, err := n.Prepare(t.Context(), "c", ref, users("100000"))
	if err != nil || len(mapping(mounts)) != 2 {
		t.Errorf("got %v, %v, want mapped users", mounts, err)
	}
}

// Images with files that mounts for user namespaces would hide are refused there, and mounted
// elsewhere.
func TestMappedHides(t *testing.T) {
	n := newNode(t, tree.Stubs)
	n.commit(t, "model", "", newModel().file("sha256/w", 0o644, storetest.Random(1, 9000)))
	if _, err := n.Prepare(t.Context(), "c", "model", users("100000")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want failed precondition", err)
	}
	if got := list(t, n.view(t, "model")); got["sha256/w"].Size != 9000 {
		t.Errorf("others see %v", got)
	}
}

// An incomplete model is mounted for a user namespace only if the lazy mount can be id-mapped.
func TestMappedBeforeComplete(t *testing.T) {
	n := newNode(t, tree.Stubs)
	p := storetest.Random(7, 2<<20)
	m := newModel().file("model.bin", 0o640, p)
	m.Table().Files[0].Source.Chunks = []filetable.Chunk{{Size: 2 << 20, Digest: digest.FromBytes(p)}}
	table := m.Put(t, n.store)
	mounts, err := n.Prepare(t.Context(), "layer", "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(t.Context(), mounts)
	if err != nil {
		t.Fatal(err)
	}
	sources := storetest.From(m.from)
	if err := n.Hold(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
	if err := n.store.Views.Expose(t.Context(), table, store.ExposeOptions{View: ViewName(id), Sources: sources}); err != nil {
		t.Fatal(err)
	}
	lazy := filepath.Join(t.TempDir(), "lazy")
	why := errors.New("the kernel is too old")
	if err := n.UseLazy(lazy, func(context.Context) error { return why }); err != nil {
		t.Fatal(err)
	}
	if err := n.Show(t.Context(), id, table); err != nil {
		t.Fatal(err)
	}
	if err := n.Commit(t.Context(), "model", "layer"); err != nil {
		t.Fatal(err)
	}
	prepare := func(key string, opts ...snapshots.Opt) ([]mount.Mount, error) {
		return n.Prepare(t.Context(), key, "model", opts...)
	}
	if _, err := prepare("a", users("100000")); !errdefs.IsUnavailable(err) || !errors.Is(err, why) {
		t.Errorf("users cannot be mapped: got %v, want unavailable", err)
	}
	if _, err := prepare("b"); err != nil {
		t.Errorf("without users: %v", err)
	}
	why = nil
	if mounts, err := prepare("a", users("100000")); err != nil || !strings.Contains(strings.Join(mounts[0].Options, ","), lazy) {
		t.Errorf("users can be mapped: got %v, %v", mounts, err)
	}
	why = errors.New("the kernel is too old")
	if err := n.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}); err != nil {
		t.Fatal(err)
	}
	if _, err := prepare("c", users("100000")); err != nil {
		t.Errorf("complete: %v", err)
	}
}

// ProbeUsers succeeds here, and reports a file system that cannot be id-mapped.
func TestProbeUsers(t *testing.T) {
	if err := ProbeUsers(t.TempDir()); err != nil {
		t.Error(err)
	}
	// overlayfs itself can not be id-mapped.
	n := newNode(t, tree.Links)
	n.layer(t, "layer", "", func(string) {})
	if err := ProbeUsers(n.container(t, "c", "layer")); !errors.Is(err, unix.EINVAL) {
		t.Errorf("on overlayfs: got %v, want an invalid argument", err)
	}
}
