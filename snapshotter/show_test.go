package snapshotter

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// awkward is a model with unusual names and modes.
func awkward() *model {
	long := strings.Repeat("n", 255)
	deep := strings.Repeat("d/", 40) + "f"
	m := newModel().
		file("weights/model.gguf", 0o644, storetest.Random(1, 3<<20)).
		file("weights/part-1.bin", 0o755, storetest.Random(2, 100_001)).
		file("twin.gguf", 0o644, storetest.Random(1, 3<<20)).
		file(".wh.foo", 0o644, []byte("not a whiteout")).
		file("dir/.wh..wh..opq", 0o644, []byte("not opaque")).
		file("dir/kept", 0o644, []byte("still here")).
		file("zero-mode", 0, storetest.Random(3, 4096)).
		file("all-mode", 0o777, storetest.Random(4, 4097)).
		file(long, 0o600, []byte("long name")).
		file("模型/größe-🙂.txt", 0o640, []byte("not ASCII")).
		file("a b\\c'\"$;", 0o444, []byte("quoting")).
		file(deep, 0o644, []byte("deep")).
		inline("config.json", 0o644, "{}").
		inline("empty", 0o600, "")
	m.add(filetable.File{Path: "dir", Type: filetable.TypeDir, Mode: 0o700, ModTime: time.Unix(1_600_000_000, 0)})
	m.add(filetable.File{Path: "hollow", Type: filetable.TypeDir, Mode: 0o555})
	m.add(filetable.File{Path: "owned", Type: filetable.TypeDir, Mode: 0o750, UID: 1000, GID: 100})
	m.add(filetable.File{Path: "owned/f", Type: filetable.TypeReg, Mode: 0o600, UID: 1000, GID: 100, Size: 1, Digest: digestOf("x"), Source: &filetable.Source{Inline: []byte("x")}})
	m.add(filetable.File{Path: "owned/l", Type: filetable.TypeSymlink, Mode: 0o777, UID: 1000, GID: 100, Target: "f"})
	m.add(filetable.File{Path: "closed", Type: filetable.TypeDir, Mode: 0})
	m.add(filetable.File{Path: "closed/f", Type: filetable.TypeReg, Mode: 0o644, Size: 1, Digest: digestOf("x"), Source: &filetable.Source{Inline: []byte("x")}})
	m.add(filetable.File{Path: "latest", Type: filetable.TypeSymlink, Mode: 0o777, Target: "weights/model.gguf", ModTime: time.Unix(1_500_000_000, 0)})
	m.add(filetable.File{Path: "dir/up", Type: filetable.TypeSymlink, Mode: 0o777, Target: "../config.json"})
	return m
}

// linksCopy is the size in bytes up to which a file is copied, not linked, if its mode is not that of
// its object.
const linksCopy = 1 << 20

// objectMode is the mode of the objects of the store.
const objectMode fs.FileMode = 0o644

// want returns the result of list for the model, without the attributes of directories that the table
// does not have.
func (m *model) want(t *testing.T) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	for _, f := range m.Table().Files {
		e := entry{Mode: fs.FileMode(f.Mode), UID: f.UID, GID: f.GID, Size: f.Size, MTime: time.Unix(0, 0).UTC(), Target: f.Target}
		if !f.ModTime.IsZero() {
			e.MTime = f.ModTime.UTC()
		}
		switch f.Type {
		case filetable.TypeDir:
			e.Mode |= fs.ModeDir
		case filetable.TypeSymlink:
			e.Mode = fs.ModeSymlink | 0o777
		case filetable.TypeReg:
			p := f.Source.Inline
			if f.Source.Blob != "" {
				p = m.from.Blobs[f.Source.Blob]
			}
			s := sha256.Sum256(p)
			e.Sum = hex.EncodeToString(s[:])
		}
		for d := filepath.Dir(f.Path); d != "."; d = filepath.Dir(d) {
			if _, ok := out[d]; !ok {
				out[d] = entry{Mode: fs.ModeDir | 0o755, MTime: time.Unix(0, 0).UTC()}
			}
		}
		out[f.Path] = e
	}
	return out
}

// differences compares the entries with the model. Linked files have the mode and mtime of their
// object.
func (m *model) differences(t *testing.T, way tree.Backend, dir string) string {
	t.Helper()
	got, want := list(t, dir), m.want(t)
	delete(got, ".")
	if way == tree.Stubs {
		return cmp.Diff(got, want)
	}
	for p, w := range want {
		g, ok := got[p]
		if !ok || !w.Mode.IsRegular() || w.Size == 0 {
			continue
		}
		switch {
		case w.Size > linksCopy:
			w.Mode, w.MTime = g.Mode, g.MTime
		case w.Mode == objectMode:
			w.MTime = g.MTime
		}
		want[p] = w
	}
	return cmp.Diff(got, want)
}

func TestShow(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := awkward()
			n.commit(t, "model", "", m)

			t.Run("view", func(t *testing.T) {
				dir := n.view(t, "model")
				if diff := m.differences(t, way, dir); diff != "" {
					t.Errorf("(-got +want):\n%s", diff)
				}
				if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); !isErrno(err, unix.EROFS) {
					t.Errorf("write to a view: got %v, want a read-only file system", err)
				}
			})
			t.Run("container", func(t *testing.T) {
				dir := n.container(t, "c", "model")
				if diff := m.differences(t, way, dir); diff != "" {
					t.Errorf("(-got +want):\n%s", diff)
				}
			})
			t.Run("reopened", func(t *testing.T) {
				n.open(t, way)
				if diff := m.differences(t, way, n.view(t, "model")); diff != "" {
					t.Errorf("(-got +want):\n%s", diff)
				}
			})
		})
	}
}

// TestShowBelow shows a model below the prefix of its table, finds it there after a restart, and repairs it there.
func TestShowBelow(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := newModel().file("sub/w.bin", 0o644, storetest.Random(1, 2<<20)).inline("config.json", 0o644, "{}")
			m.add(filetable.File{Path: "latest", Type: filetable.TypeSymlink, Mode: 0o777, Target: "sub/w.bin"})
			m.Table().Origin.Prefix = "models/chat"
			table := n.commit(t, "model", "", m)
			check := func() {
				t.Helper()
				dir := n.view(t, "model")
				if diff := m.differences(t, way, filepath.Join(dir, "models/chat")); diff != "" {
					t.Errorf("below the prefix (-got +want):\n%s", diff)
				}
				if got := list(t, dir); len(got) != len(m.want(t))+3 { // the root, models and models/chat
					t.Errorf("the mount has other files: %v", got)
				}
			}
			check()
			n.open(t, way)
			if err := n.Inspect(t.Context()); err != nil {
				t.Error(err)
			}
			if problems, err := n.Verify(t.Context(), table); err != nil || len(problems) > 0 {
				t.Errorf("after a restart: %+v, %v", problems, err)
			}
			id, _, err := n.info(t.Context(), "model")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(n.upperDir(id), "models/chat/config.json")); err != nil {
				t.Fatal(err)
			}
			if problems, err := n.Verify(t.Context(), table); err != nil || len(problems) != 2 || problems[1].Path != "models/chat/config.json" {
				t.Errorf("a file is missing: %+v, %v", problems, err)
			}
			if err := n.Refresh(t.Context(), table); err != nil {
				t.Error(err)
			}
			check()
		})
	}
}

func isErrno(err error, want unix.Errno) bool {
	pe, ok := err.(*fs.PathError)
	return ok && pe.Err == syscall.Errno(want)
}

// Each case leaves an incomplete tree; showing the model again must repair it.
func TestShowAgain(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := awkward()
			mounts, err := n.Prepare(t.Context(), "key", "")
			if err != nil {
				t.Fatal(err)
			}
			id, err := n.Locate(t.Context(), mounts)
			if err != nil {
				t.Fatal(err)
			}
			table := n.apply(t, "key", m)
			at := func(p string) string { return filepath.Join(n.upperDir(id), p) }
			for _, p := range []string{"dir/kept", "latest", "twin.gguf"} {
				if err := os.Remove(at(p)); err != nil {
					t.Fatal(err)
				}
			}
			// replaced, not written to, because a link shares the inode of the object
			for _, p := range []string{"weights/model.gguf", "config.json", "empty", "dir/up"} {
				if err := os.Remove(at(p)); err != nil {
					t.Fatal(err)
				}
				write(t, at(p), "wrong")
			}
			if err := os.Chmod(at("hollow"), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := n.Show(t.Context(), id, table); err != nil {
				t.Fatal(err)
			}
			if err := n.Commit(t.Context(), "model", "key"); err != nil {
				t.Fatal(err)
			}
			if diff := m.differences(t, way, n.view(t, "model")); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

func TestShowRefused(t *testing.T) {
	n := newNode(t, Auto)
	ctx := t.Context()
	mounts, err := n.Prepare(ctx, "key", "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(ctx, mounts)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel().file("f", 0o644, storetest.Random(1, 5000))
	table := m.Put(t, n.store)
	if err := n.Show(ctx, id, table); !errdefs.IsUnavailable(err) {
		t.Errorf("not hydrated: got %v, want unavailable", err)
	}
	if err := n.Show(ctx, "4711", table); !errdefs.IsNotFound(err) {
		t.Errorf("unknown snapshot: got %v, want not found", err)
	}
	n.apply(t, "key", m)
	other := newModel().inline("g", 0o644, "g").Put(t, n.store)
	if err := n.store.Hydrate(ctx, other, store.HydrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := n.Show(ctx, id, other); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("second table: got %v, want failed precondition", err)
	}
	if err := n.Commit(ctx, "model", "key"); err != nil {
		t.Fatal(err)
	}
	if err := n.Show(ctx, id, table); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("committed: got %v, want failed precondition", err)
	}
}

// A model with only its marker, as after a crash, cannot be committed.
func TestCommitIncomplete(t *testing.T) {
	n := newNode(t, Auto)
	mounts, err := n.Prepare(t.Context(), "key", "")
	if err != nil {
		t.Fatal(err)
	}
	id, err := n.Locate(t.Context(), mounts)
	if err != nil {
		t.Fatal(err)
	}
	table := newModel().inline("f", 0o644, "f").Put(t, n.store)
	if err := writeMarker(n.snapshotDir(id), marker{Table: table, Show: tree.Stubs}); err != nil {
		t.Fatal(err)
	}
	if err := n.Commit(t.Context(), "model", "key"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want failed precondition", err)
	}
}

// After the store has repaired an object, links to the damaged file are replaced.
func TestRefresh(t *testing.T) {
	for _, way := range backends {
		t.Run(string(way), func(t *testing.T) {
			n := newNode(t, way)
			m := newModel().file("big", 0o644, storetest.Random(1, 2<<20)).file("small", 0o640, storetest.Random(2, 3000))
			table := n.commit(t, "model", "", m)
			n.commit(t, "other", "", newModel().file("x", 0o644, storetest.Random(3, 3000)))

			for _, f := range m.Table().Files {
				object := filepath.Join(n.store.ObjectsDir(), store.ObjectName(f.Digest))
				if err := damage(object); err != nil {
					t.Fatal(err)
				}
			}
			if diff := m.differences(t, way, n.view(t, "model")); diff == "" {
				t.Fatal("the damage is not seen, so the test shows nothing")
			}
			bad, err := n.store.Check(t.Context(), table, nil)
			if err != nil || len(bad) != 2 {
				t.Fatalf("check: got %v, %v, want two bad objects", bad, err)
			}
			if err := n.store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(m.from)}); err != nil {
				t.Fatal(err)
			}
			if err := n.Refresh(t.Context(), table); err != nil {
				t.Fatal(err)
			}
			if diff := m.differences(t, way, n.view(t, "model")); diff != "" {
				t.Errorf("after refresh (-got +want):\n%s", diff)
			}
		})
	}
}

// damage flips a byte in the middle of a file.
func damage(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, 1000); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b, 1000)
	return err
}

// With hard links, a file has the mode and the owner of the table if it is a copy.
func TestLinksModes(t *testing.T) {
	n := newNode(t, tree.Links)
	small, large := storetest.Random(1, 1000), storetest.Random(2, linksCopy+1)
	n.commit(t, "model", "", newModel().file("same", 0o644, small).file("small", 0o755, small).file("large", 0o755, large))
	dir := n.view(t, "model")
	inode := func(p string) uint64 {
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Sys().(*syscall.Stat_t).Ino
	}
	object := func(p []byte) string {
		return filepath.Join(n.store.ObjectsDir(), store.ObjectName(digestOf(string(p))))
	}
	if fi, err := os.Stat(object(small)); err != nil || fi.Mode() != objectMode {
		t.Fatalf("object: got %v, %v, want mode %v", fi, err, objectMode)
	}
	if inode(filepath.Join(dir, "same")) != inode(object(small)) {
		t.Error("a file with the mode of its object is not linked")
	}
	if inode(filepath.Join(dir, "large")) != inode(object(large)) {
		t.Error("a large file is not linked")
	}
	if inode(filepath.Join(dir, "small")) == inode(object(small)) {
		t.Error("a small file with another mode is linked")
	}
	if got, err := os.Stat(filepath.Join(dir, "small")); err != nil || got.Mode() != 0o755 {
		t.Errorf("small: got %v, %v, want mode 0755", got, err)
	}
}

func TestMarker(t *testing.T) {
	dir := t.TempDir()
	if got, err := readMarker(dir); err != nil || got != (marker{}) {
		t.Errorf("none: got %v, %v, want the zero marker", got, err)
	}
	for _, m := range []marker{{Empty: true}, {Table: digestOf("t"), Show: tree.Links}, {Table: digestOf("t"), Show: tree.Stubs, Shown: true, Size: 1 << 50, Inodes: 1 << 30}} {
		if err := writeMarker(dir, m); err != nil {
			t.Fatal(err)
		}
		if got, err := readMarker(dir); err != nil || got != m {
			t.Errorf("got %v, %v, want %v", got, err, m)
		}
	}
	for _, bad := range []string{"", "{}", `{"empty":true,"table":"` + string(digestOf("t")) + `"}`, `{"table":"x","show":"stubs"}`,
		`{"table":"` + string(digestOf("t")) + `"}`, `{"table":"` + string(digestOf("t")) + `","show":"auto"}`, `{"empty":true`,
		`{"empty":true}` + strings.Repeat(" ", maxMarker)} {
		write(t, filepath.Join(dir, markerName), bad)
		if got, err := readMarker(dir); !errdefs.IsDataLoss(err) && len(bad) <= maxMarker {
			t.Errorf("%q: got %v, %v, want data loss", bad, got, err)
		}
	}
}

func FuzzMarker(f *testing.F) {
	f.Add([]byte(`{"empty":true}`))
	f.Add([]byte(`{"table":"` + string(digestOf("t")) + `","show":"stubs","shown":true,"size":4096,"inodes":3}`))
	f.Add([]byte(`{"table":"sha256:x","show":"links"}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := decodeMarker(p)
		if err != nil {
			return
		}
		dir := t.TempDir()
		if err := writeMarker(dir, m); err != nil {
			t.Fatal(err)
		}
		if got, err := readMarker(dir); err != nil || got != m {
			t.Errorf("%q: got %v, %v, want %v", bytes.TrimSpace(p), got, err, m)
		}
	})
}

func TestShowMany(t *testing.T) {
	n := newNode(t, Auto)
	m := newModel()
	for i := range 500 {
		m.inline(fmt.Sprintf("d%02d/f%04d", i%20, i), 0o644, fmt.Sprint("content ", i))
	}
	n.commit(t, "model", "", m)
	if diff := m.differences(t, n.Backend(), n.view(t, "model")); diff != "" {
		t.Errorf("(-got +want):\n%s", diff)
	}
}
