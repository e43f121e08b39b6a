package snapshotter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// claimBlobs claims n blob layers and returns the name of the last.
func (n *node) claimBlobs(t *testing.T, count int) string {
	t.Helper()
	if err := n.claimChain(t, "k8s.io", count); err != nil {
		t.Fatal(err)
	}
	var chain digest.Digest
	for i := range count {
		diffID := filetable.BlobDiffID(digest.FromString(fmt.Sprint("blob ", i)))
		if chain == "" {
			chain = diffID
		} else {
			chain = chainID(chain, diffID)
		}
	}
	return chain.String()
}

// A model of many blobs is one mount of two directories.
func TestManyBlobs(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := awkward()
			n.commit(t, "model", n.claimBlobs(t, 130), m)

			mounts, err := n.Prepare(t.Context(), "c", "model")
			if err != nil {
				t.Fatal(err)
			}
			lower := n.dirOf(t, "model")
			if way == tree.Stubs {
				lower += "::" + n.store.ObjectsDir()
			}
			if got := lowerdir(mounts); got != lower {
				t.Errorf("got lowerdir %q, want %q", got, lower)
			}
			again, err := n.Mounts(t.Context(), "c")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(again, mounts); diff != "" {
				t.Errorf("Mounts and Prepare differ (-got +want):\n%s", diff)
			}
			dir, _ := mountAll(t, mounts)
			if diff := m.differences(t, way, dir); diff != "" {
				t.Errorf("container (-got +want):\n%s", diff)
			}
			if diff := m.differences(t, way, n.view(t, "model")); diff != "" {
				t.Errorf("view (-got +want):\n%s", diff)
			}
		})
	}
}

// lowerdir returns the list that the kernel uses: the last one.
func lowerdir(mounts []mount.Mount) (list string) {
	for _, m := range mounts {
		for o := range strings.SplitSeq(strings.Join(m.Options, ","), ",") {
			if v, ok := strings.CutPrefix(o, "lowerdir="); ok {
				list = v
			}
		}
	}
	return list
}

// dirOf returns the directory that the snapshot with key shows.
func (n *node) dirOf(t *testing.T, key string) string {
	t.Helper()
	id, _, err := n.info(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return n.upperDir(id)
}

// The mounts of a chain without model or empty snapshots must be exactly overlay's.
func TestPlainMounts(t *testing.T) {
	n := newNode(t, Auto)
	n.layer(t, "a", "", func(dir string) { write(t, filepath.Join(dir, "a"), "a") })
	n.layer(t, "b", "a", func(dir string) { write(t, filepath.Join(dir, "b"), "b") })
	for _, parent := range []string{"", "a", "b"} {
		for name, create := range map[string]createFunc{"active": n.Prepare, "view": n.View} {
			key := name + "-on-" + parent
			got, err := create(t.Context(), key, parent)
			if err != nil {
				t.Fatal(err)
			}
			want, err := n.overlay.Mounts(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("%s (-got +overlay's):\n%s", key, diff)
			}
		}
	}
}

// The chains that contain model or empty snapshots.
func TestMountShapes(t *testing.T) {
	n := newNode(t, Auto)
	if n.Backend() != tree.Stubs {
		t.Fatalf("models are shown as %s; the tests need a kernel with data-only layers", n.Backend())
	}
	blobs := n.claimBlobs(t, 3)
	n.commit(t, "model", blobs, newModel().file("w", 0o644, storetest.Random(1, 9000)))
	n.layer(t, "above", "model", func(dir string) { write(t, filepath.Join(dir, "x"), "x") })
	n.layer(t, "base", "", func(dir string) { write(t, filepath.Join(dir, "y"), "y") })
	n.commit(t, "on-base", "base", newModel().file("w", 0o644, storetest.Random(1, 9000)))
	objects := "::" + n.store.ObjectsDir()
	fs := func(names ...string) string {
		for i := range names {
			names[i] = n.dirOf(t, names[i])
		}
		return strings.Join(names, ":")
	}
	tests := []struct {
		name, parent string
		view         bool
		kind, lower  string
		files        []string
	}{
		{name: "blobs", parent: blobs, kind: "bind"},
		{name: "blobs", parent: blobs, view: true, kind: "bind"},
		{name: "model", parent: "model", kind: "overlay", lower: fs("model") + objects, files: []string{"w"}},
		{name: "model", parent: "model", view: true, kind: "overlay", lower: fs("model") + objects, files: []string{"w"}},
		{name: "layer on a model", parent: "above", kind: "overlay", lower: fs("above", "model") + objects, files: []string{"w", "x"}},
		{name: "layer on a model", parent: "above", view: true, kind: "overlay", lower: fs("above", "model") + objects, files: []string{"w", "x"}},
		{name: "model on a layer", parent: "on-base", kind: "overlay", lower: fs("on-base", "base") + objects, files: []string{"w", "y"}},
	}
	for i, test := range tests {
		t.Run(fmt.Sprintf("%s view=%v", test.name, test.view), func(t *testing.T) {
			create := n.Prepare
			if test.view {
				create = n.View
			}
			mounts, err := create(t.Context(), fmt.Sprint("key", i), test.parent)
			if err != nil {
				t.Fatal(err)
			}
			if len(mounts) != 1 || mounts[0].Type != test.kind || lowerdir(mounts) != test.lower || mounts[0].ReadOnly() != test.view {
				t.Fatalf("got %v, want one %s of %q", mounts, test.kind, test.lower)
			}
			if test.kind == "overlay" && !test.view {
				// The CRI plugin does this for an image volume.
				mounts[0].Options = append(mounts[0].Options, "volatile")
			}
			dir, _ := mountAll(t, mounts)
			var got []string
			for p := range list(t, dir) {
				if p != "." {
					got = append(got, p)
				}
			}
			if diff := cmp.Diff(toSet(got), toSet(test.files)); diff != "" {
				t.Errorf("files (-got +want):\n%s", diff)
			}
		})
	}
}

func toSet(list []string) map[string]bool {
	set := map[string]bool{}
	for _, s := range list {
		set[s] = true
	}
	return set
}

// A container that writes to a file of a model gets a private copy.
func TestContainerWrites(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			content := storetest.Random(1, 1<<20)
			m := newModel().file("a", 0o644, content).file("b", 0o644, storetest.Random(2, 5000)).file("c", 0o644, storetest.Random(3, 5000)).file("d/e", 0o644, storetest.Random(4, 5000))
			n.commit(t, "model", "", m)
			before := list(t, n.store.ObjectsDir())
			one, two := n.container(t, "one", "model"), n.container(t, "two", "model")

			f, err := os.OpenFile(filepath.Join(one, "a"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("mine"), 10); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			want := bytes.Clone(content)
			copy(want[10:], "mine")
			if got := read(t, filepath.Join(one, "a")); got != string(want) {
				t.Error("the container does not see its own write")
			}
			if err := os.Chmod(filepath.Join(one, "b"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, want := read(t, filepath.Join(one, "b")), string(storetest.Random(2, 5000)); got != want {
				t.Error("content changed with the mode")
			}
			if err := os.Remove(filepath.Join(one, "c")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(one, "c"), "new")
			if got, want := read(t, filepath.Join(one, "c")), "new"; got != want {
				t.Errorf("recreated file: got %q, want %q", got, want)
			}
			if err := os.Rename(filepath.Join(one, "d"), filepath.Join(one, "moved")); err != nil && !errors.Is(err, unix.EXDEV) {
				t.Errorf("rename a directory: %v", err)
			}
			if diff := m.differences(t, way, two); diff != "" {
				t.Errorf("the other container (-got +want):\n%s", diff)
			}
			if diff := cmp.Diff(list(t, n.store.ObjectsDir()), before); diff != "" {
				t.Errorf("objects changed (-got +want):\n%s", diff)
			}
		})
	}
}

// A container that changed files of a model is committed as an image.
func TestCommitContainer(t *testing.T) {
	n := newNode(t, tree.Stubs)
	n.commit(t, "model", "", newModel().file("a", 0o644, storetest.Random(1, 5000)).file("b", 0o644, storetest.Random(2, 5000)))
	mounts, err := n.Prepare(t.Context(), "c", "model")
	if err != nil {
		t.Fatal(err)
	}
	dir, unmount := mountAll(t, mounts)
	if err := os.Chmod(filepath.Join(dir, "a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	unmount()
	if err := n.Commit(t.Context(), "image", "c"); err != nil {
		t.Fatal(err)
	}
	got := n.view(t, "image")
	if fi, err := os.Stat(filepath.Join(got, "a")); err != nil || fi.Mode() != 0o600 {
		t.Errorf("got %v, %v, want mode 0600", fi, err)
	}
	if read(t, filepath.Join(got, "a")) != string(storetest.Random(1, 5000)) {
		t.Error("content is lost")
	}
	if _, err := os.Stat(filepath.Join(got, "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("removed file: got %v, want not exist", err)
	}
}

// Reads need only the kernel: all processes of ballast have ended.
func TestReadWithoutDaemon(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			content := storetest.Random(1, 2<<20)
			m := newModel().file("w", 0o644, content)
			n.commit(t, "model", "", m)
			view, container := n.view(t, "model"), n.container(t, "c", "model")
			if err := errors.Join(n.Close(), n.store.Close()); err != nil {
				t.Fatal(err)
			}
			for _, dir := range []string{view, container} {
				f, err := os.Open(filepath.Join(dir, "w"))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				p, err := unix.Mmap(int(f.Fd()), 0, len(content), unix.PROT_READ, unix.MAP_SHARED)
				if err != nil {
					t.Fatalf("mmap: %v", err)
				}
				if !bytes.Equal(p, content) {
					t.Error("mmap shows other bytes")
				}
				if err := unix.Munmap(p); err != nil {
					t.Error(err)
				}
				if got := read(t, filepath.Join(dir, "w")); got != string(content) {
					t.Error("read shows other bytes")
				}
			}
		})
	}
}

// Models with hard links have mounts that containerd can shorten, for any number of layers.
func TestManyLayersOnLinks(t *testing.T) {
	n := newNode(t, tree.Links)
	n.commit(t, "layer0", n.claimBlobs(t, 2), newModel().file("w", 0o644, storetest.Random(1, 100)))
	const layers = 110
	for i := 1; i <= layers; i++ {
		n.layer(t, fmt.Sprint("layer", i), fmt.Sprint("layer", i-1), func(dir string) { write(t, filepath.Join(dir, fmt.Sprint(i)), "x") })
	}
	if got := len(list(t, n.view(t, fmt.Sprint("layer", layers)))); got != layers+2 {
		t.Errorf("got %d entries, want %d, the model's and the root", got, layers)
	}
	n.mapUsers(t, fmt.Sprint("layer", layers))
}

// A chain whose options do not fit into mount(2) is refused with an error that says so, and leaves no
// snapshot.
func TestTooManyLayers(t *testing.T) {
	n := newNode(t, tree.Stubs)
	n.commit(t, "layer0", "", newModel().file("w", 0o644, storetest.Random(1, 100)))
	layers := os.Getpagesize()/len(n.dirOf(t, "layer0")) + 2
	var err error
	made := 0
	for i := 1; i <= layers; i++ {
		key, parent := fmt.Sprint("extract", i), fmt.Sprint("layer", i-1)
		var mounts []mount.Mount
		if mounts, err = n.Prepare(t.Context(), key, parent); err != nil {
			if _, serr := n.Stat(t.Context(), key); !errdefs.IsNotFound(serr) {
				t.Errorf("refused snapshot: got %v, want not found", serr)
			}
			break
		}
		_, unmount := mountAll(t, mounts) // every snapshot that is not refused can be mounted
		unmount()
		n.mapUsers(t, parent)
		if err := n.Commit(t.Context(), fmt.Sprint("layer", i), key); err != nil {
			t.Fatal(err)
		}
		made = i
	}
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("after %d layers: got %v, want resource exhausted", made, err)
	}
	if made < 10 {
		t.Errorf("only %d layers fit", made)
	}
}

func TestImageVolume(t *testing.T) {
	n := newNode(t, Auto)
	key := func(s string) string {
		return "k8s.io/12/run/containerd/io.containerd.grpc.v1.cri/image-volumes/" + s + "/" + digest.FromString(s).Encoded()
	}
	_, err := n.Prepare(t.Context(), key("unconverted"), "")
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "pulled by tag") {
		t.Errorf("no layers: got %v, want failed precondition that says what to do", err)
	}
	_, err = n.Prepare(t.Context(), key("blobs"), n.claimBlobs(t, 2))
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("blob layers alone: got %v, want failed precondition", err)
	}
	for k := range n.keys(t) {
		if strings.Contains(k, imageVolumes) {
			t.Errorf("snapshot %q was left", k)
		}
	}
	m := newModel().file("w", 0o644, storetest.Random(1, 5000))
	n.commit(t, "model", "", m)
	if diff := m.differences(t, n.Backend(), n.container(t, key("model"), "model")); diff != "" {
		t.Errorf("model (-got +want):\n%s", diff)
	}
}

func TestRootRefused(t *testing.T) {
	for _, name := range []string{"a:b", "a,b", `a\b`} {
		st, err := store.Open(t.TempDir(), store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(filepath.Join(t.TempDir(), name), st, Options{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("root %q: got %v, want invalid argument", name, err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A snapshotter below a symbolic link finds its snapshots.
func TestRootSymlink(t *testing.T) {
	n := newNode(t, Auto)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(n.dir, link); err != nil {
		t.Fatal(err)
	}
	s, err := New(filepath.Join(link, "other"), n.store, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mounts, err := s.Prepare(t.Context(), "key", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Locate(t.Context(), mounts); err != nil {
		t.Error(err)
	}
}

func TestLocate(t *testing.T) {
	n := newNode(t, Auto)
	if _, err := n.Prepare(t.Context(), "key", ""); err != nil {
		t.Fatal(err)
	}
	n.layer(t, "done", "", func(string) {})
	dir, done := n.dirOf(t, "key"), n.dirOf(t, "done")
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	bind := func(dir string) []mount.Mount { return bind(dir, nil, "rw") }
	tests := []struct {
		name   string
		mounts []mount.Mount
		ok     bool
	}{
		{name: "bind", mounts: bind(dir), ok: true},
		{name: "overlay", mounts: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=/x", "upperdir=" + dir}}}, ok: true},
		{name: "none"},
		{name: "two", mounts: append(bind(dir), bind(dir)...)},
		{name: "staged", mounts: []mount.Mount{{Type: "bind", Source: dir, Options: []string{"ro"}}}, ok: true},
		{name: "read-only", mounts: []mount.Mount{{Type: "bind", Source: done, Options: []string{"ro"}}}},
		{name: "view", mounts: []mount.Mount{{Type: "overlay", Options: []string{"lowerdir=" + dir}}}},
		{name: "another type", mounts: []mount.Mount{{Type: "erofs", Source: dir}}},
		{name: "elsewhere", mounts: bind(elsewhere)},
		{name: "dots", mounts: bind(dir + "/../../../..")},
		{name: "below", mounts: bind(filepath.Join(dir, "link"))},
		{name: "work", mounts: bind(filepath.Join(filepath.Dir(dir), "work"))},
		{name: "missing", mounts: bind(filepath.Join(n.root, "snapshots", "99", "fs"))},
		{name: "committed", mounts: bind(done)},
		{name: "empty", mounts: bind("")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			id, err := n.Locate(t.Context(), test.mounts)
			if test.ok != (err == nil) || !test.ok && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got %q, %v, want ok %v", id, err, test.ok)
			}
			if test.ok && n.upperDir(id) != dir {
				t.Errorf("got %q, want the id of %q", id, dir)
			}
		})
	}
}

// A model with a damaged marker must not be mounted as an ordinary, apparently empty image.
func TestDamagedMarker(t *testing.T) {
	n := newNode(t, Auto)
	n.commit(t, "model", "", newModel().file("w", 0o644, storetest.Random(1, 5000)))
	write(t, filepath.Join(filepath.Dir(n.dirOf(t, "model")), markerName), "{")
	if _, err := n.Prepare(t.Context(), "c", "model"); !errdefs.IsDataLoss(err) {
		t.Errorf("got %v, want data loss", err)
	}
	if _, err := n.Stat(t.Context(), "c"); !errdefs.IsNotFound(err) {
		t.Errorf("refused snapshot: got %v, want not found", err)
	}
	var _ snapshots.Cleaner = n.Snapshotter
}
