package snapshotter

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// A jail is a process with its own mount namespace, as that of a container whose mounts are in no other
// namespace.
type jail struct {
	t   *testing.T
	dir string // the container's root, seen from outside
	in  io.Closer
	cmd *exec.Cmd
}

// jail mounts in a new mount namespace.
func newJail(t *testing.T, mounts []mount.Mount) *jail {
	t.Helper()
	dir, unmount := mountAll(t, mounts)
	j := &jail{t: t, cmd: exec.Command("cat")}
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	in, err := j.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := j.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.end)
	// The output was written after the namespace was made.
	if _, err := in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	j.in = in
	j.dir = filepath.Join("/proc", strconv.Itoa(j.cmd.Process.Pid), "root", dir)
	unmount()
	return j
}

// end ends the process, and with it its mounts.
func (j *jail) end() {
	if j.cmd.ProcessState == nil {
		j.in.Close()
		_ = j.cmd.Wait()
	}
}

// start opens the snapshotter and reconciles it, as a daemon does before it serves.
func (n *node) start(t *testing.T, b tree.Backend) {
	t.Helper()
	n.open(t, b)
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.Inspect(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// stop closes the snapshotter.
func (n *node) stop(t *testing.T) {
	t.Helper()
	if err := n.Snapshotter.Close(); err != nil {
		t.Fatal(err)
	}
	n.Snapshotter = nil
}

// exists reports whether there is a file.
func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// A kill between the rename of a directory and the commit of its metadata leaves a directory with the
// next id. Each start takes one.
func TestHalfMadeSnapshotsAreRemoved(t *testing.T) {
	n := newNode(t, Auto)
	n.layer(t, "plain", "", func(dir string) { write(t, filepath.Join(dir, "f"), "x") })
	root := filepath.Join(n.dir, "snapshots", "snapshots")
	for _, dir := range []string{"3/fs", "new-123/fs"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(root, dir, "f"), "half made")
	}
	n.start(t, Auto)
	if _, err := n.Prepare(t.Context(), "next", "plain"); err != nil {
		t.Errorf("prepare: %v", err)
	}
	for _, dir := range []string{"3", "new-123"} {
		if exists(t, filepath.Join(root, dir)) {
			t.Errorf("%s is left", dir)
		}
	}
	if id := n.id(t, "next"); id != "4" {
		t.Errorf("got id %s, want one that nothing had", id)
	}
}

// After the loss of metadata, directories that are mounted in any mount namespace are kept.
func TestLostMetadataKeepsWhatIsMounted(t *testing.T) {
	for name, damage := range damages {
		for _, b := range backends {
			t.Run(name+"/"+string(b), func(t *testing.T) {
				n := newNode(t, b)
				n.layer(t, "before", "", func(dir string) { write(t, filepath.Join(dir, "f"), "x") })
				older := filepath.Join(t.TempDir(), "older")
				copyFile(t, filepath.Join(n.root, metadataName), older)
				n.commit(t, "model", n.claimBlobs(t, 2), newModel().file("w", 0o644, storetest.Random(1, 50_000)))
				n.commit(t, "unused", "", newModel().file("w", 0o644, storetest.Random(2, 50_000)))
				mounts, err := n.Prepare(t.Context(), "c", "model")
				if err != nil {
					t.Fatal(err)
				}
				j := newJail(t, mounts)
				model, unused, upper := n.id(t, "model"), n.id(t, "unused"), n.id(t, "c")
				dirs := []string{n.snapshotDir(model), n.snapshotDir(upper)}
				path := filepath.Join(n.root, metadataName)
				n.stop(t)
				damage(t, path, older)

				n.start(t, b)
				if h, err := n.Health(t.Context()); err != nil || len(h.Unknown) == 0 {
					t.Errorf("health does not tell: %v, %v", h, err)
				}
				if problems, err := n.Verify(t.Context(), ""); err != nil || !slices.ContainsFunc(problems, func(p Problem) bool { return p.Snapshot == model }) {
					t.Errorf("verify does not tell: %v, %v", problems, err)
				}
				for range 2 {
					if err := n.Cleanup(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				n.gc(t)
				for _, dir := range dirs {
					if !exists(t, dir) {
						t.Errorf("%s is removed under a container", dir)
					}
				}
				if !n.names(t)[refName(model)] {
					t.Error("the reference of a mounted model is dropped")
				}
				if got := read(t, filepath.Join(j.dir, "w")); got != string(storetest.Random(1, 50_000)) {
					t.Error("the container reads other bytes")
				}
				write(t, filepath.Join(j.dir, "new"), "written")
				if n.names(t)[refName(unused)] || exists(t, n.snapshotDir(unused)) {
					t.Error("a directory without mount and metadata is left")
				}
				if _, err := n.Prepare(t.Context(), "next", ""); err != nil {
					t.Fatal(err)
				}
				if got, _ := strconv.Atoi(n.id(t, "next")); strconv.Itoa(got) <= upper && len(strconv.Itoa(got)) <= len(upper) {
					t.Errorf("id %d is used again", got)
				}
				j.end()
				if err := n.Cleanup(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, dir := range dirs {
					if exists(t, dir) {
						t.Errorf("%s is left although nothing mounts it", dir)
					}
				}
				if n.names(t)[refName(model)] {
					t.Error("the reference is left although nothing mounts the model")
				}
			})
		}
	}
}

// damages are the ways to damage a file. older is an earlier copy of it.
var damages = map[string]func(t *testing.T, path, older string){
	"deleted": func(t *testing.T, path, _ string) {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	},
	"empty": func(t *testing.T, path, _ string) {
		if err := os.Truncate(path, 0); err != nil {
			t.Fatal(err)
		}
	},
	"truncated": func(t *testing.T, path, _ string) {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, fi.Size()/2); err != nil {
			t.Fatal(err)
		}
	},
	"flipped": func(t *testing.T, path, _ string) {
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p { // all of it
			p[i] ^= 0x11
		}
		write(t, path, string(p))
	},
	"older": func(t *testing.T, path, older string) { copyFile(t, older, path) },
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	write(t, to, read(t, from))
}

// newPlainNode returns a node with a model on two blob layers, "model", and its bytes.
func newModelNode(t *testing.T, b tree.Backend) (n *node, content []byte, table digest.Digest) {
	t.Helper()
	n = newNode(t, b)
	content = storetest.Random(1, 50_000)
	table = n.commit(t, "model", n.claimBlobs(t, 2), newModel().file("w", 0o644, content).inline("empty", 0o600, ""))
	return n, content, table
}

// show returns nil if a new mount of the model shows the right bytes, and the error if it is refused.
// Other bytes fail the test.
func (n *node) mountModel(t *testing.T, content []byte) error {
	t.Helper()
	key := "check" + strconv.Itoa(rand.Int())
	mounts, err := n.Prepare(t.Context(), key, "model")
	if err != nil {
		return err
	}
	dir, unmount := mountAll(t, mounts)
	got, err := os.ReadFile(filepath.Join(dir, "w"))
	unmount()
	if rerr := n.Remove(t.Context(), key); rerr != nil {
		t.Error(rerr)
	}
	if err == nil && !bytes.Equal(got, content) {
		t.Error("a mount shows other bytes")
	}
	return err
}

// TestOlderKernel starts on a kernel that mounts no stubs: complete models become links, which the newer kernel
// mounts too.
func TestOlderKernel(t *testing.T) {
	n, content, table := newModelNode(t, tree.Stubs)
	n.stop(t)
	n.open(t, tree.Links)
	if err := n.mountModel(t, content); err != nil { // this kernel mounts both
		t.Fatal(err)
	}
	n.noStubs = unix.EINVAL
	id := n.id(t, "model")
	show := func() tree.Backend {
		m, err := readMarker(n.snapshotDir(id))
		if err != nil {
			t.Fatal(err)
		}
		return m.Show
	}
	if err := n.mountModel(t, content); err != nil || show() != tree.Links {
		t.Errorf("a mount: %v, shown as %s", err, show())
	}
	if err := writeMarker(n.snapshotDir(id), marker{Table: table, Show: tree.Stubs, Shown: true}); err != nil {
		t.Fatal(err)
	}
	if err := n.Inspect(t.Context()); err != nil || show() != tree.Links {
		t.Errorf("a start: %v, shown as %s", err, show())
	}
	if err := n.mountModel(t, content); err != nil {
		t.Error(err)
	}
	if problems, err := n.Verify(t.Context(), ""); err != nil || len(problems) > 0 {
		t.Errorf("verify: %v, %v", problems, err)
	}
	n.stop(t)
	n.start(t, tree.Stubs)
	if err := n.mountModel(t, content); err != nil {
		t.Error(err)
	}
}

// Each file of the snapshotter is damaged in each way while no daemon runs. Afterwards a new mount shows the right
// bytes, and a running container keeps its files. If the metadata is lost, the model is pulled again, and nothing of
// it is downloaded.
func TestDamageMatrix(t *testing.T) {
	things := map[string]func(n *node) string{
		"marker of a model": func(n *node) string { return filepath.Join(n.dirOf(t, "model"), "..", markerName) },
		"marker of a blob layer": func(n *node) string {
			if err := writeMarker(n.snapshotDir("2"), marker{Empty: true}); err != nil { // as a snapshot of an applied blob layer has
				t.Fatal(err)
			}
			return filepath.Join(n.snapshotDir("2"), markerName)
		},
		"stub":     func(n *node) string { return filepath.Join(n.dirOf(t, "model"), "w") },
		"whiteout": func(n *node) string { return whiteout(n.hideDir()) },
		"metadata": func(n *node) string { return filepath.Join(n.root, metadataName) },
	}
	for thing, pathOf := range things {
		for name, damage := range damages {
			t.Run(thing+"/"+name, func(t *testing.T) {
				n, content, _ := newModelNode(t, tree.Stubs)
				mounts, err := n.Prepare(t.Context(), "c", "model")
				if err != nil {
					t.Fatal(err)
				}
				j := newJail(t, mounts)
				path := pathOf(n)
				older := filepath.Join(t.TempDir(), "older")
				write(t, older, "") // an empty file, as before the first write
				if thing == "marker of a model" {
					write(t, older, `{"table":"`+digestOf("x").String()+`","show":"stubs"}`)
				}
				n.stop(t)
				if thing == "whiteout" && name != "deleted" {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
					write(t, path, "something")
				}
				damage(t, path, older)
				n.start(t, tree.Stubs)
				if thing == "metadata" {
					if err := n.mountModel(t, content); !errdefs.IsNotFound(err) {
						t.Errorf("metadata is lost: %v", err)
					}
					again := newModel().file("w", 0o644, content).inline("empty", 0o600, "")
					n.commit(t, "model", n.claimBlobs(t, 2), again)
					if sent := again.from.Sent(digest.FromBytes(content)); sent > 0 {
						t.Errorf("%d bytes were downloaded again", sent)
					}
				}
				if err := n.mountModel(t, content); err != nil {
					t.Errorf("not healed: %v", err)
				}
				if err := n.Cleanup(t.Context()); err != nil {
					t.Error(err)
				}
				n.gc(t)
				if got := read(t, filepath.Join(j.dir, "w")); got != string(content) && thing != "stub" {
					t.Error("the container reads other bytes")
				}
				if thing == "metadata" { // the directories of the container stay with it
					j.end()
					if err := n.Cleanup(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if problems, err := n.Verify(t.Context(), ""); err != nil || len(problems) != 0 {
					t.Errorf("verify: got %v, %v", problems, err)
				}
			})
		}
	}
}

// TestBucketsAreValues damages the metadata such that a snapshot, or its labels, is a value: it is set aside, because
// the name could not be used again.
func TestBucketsAreValues(t *testing.T) {
	for name, damage := range map[string]func(all *bbolt.Bucket) error{
		"snapshot": func(all *bbolt.Bucket) error {
			return errors.Join(all.DeleteBucket([]byte("model")), all.Put([]byte("model"), []byte("x")))
		},
		"labels": func(all *bbolt.Bucket) error {
			s := all.Bucket([]byte("model"))
			return errors.Join(s.DeleteBucket(keyLabels), s.Put(keyLabels, []byte("x")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, content, _ := newModelNode(t, tree.Stubs)
			path := filepath.Join(n.root, metadataName)
			n.stop(t)
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bbolt.Tx) error { return damage(tx.Bucket(bucketVersion).Bucket(bucketSnapshots)) })
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			n.start(t, tree.Stubs)
			n.commit(t, "model", "", newModel().file("w", 0o644, content))
			if err := n.mountModel(t, content); err != nil {
				t.Error(err)
			}
			if _, err := n.Update(t.Context(), snapshots.Info{Name: "model", Labels: map[string]string{"x": "y"}}, "labels.x"); err != nil {
				t.Error(err)
			}
		})
	}
}

// One bit is flipped anywhere in a marker or in the metadata.
func TestFlippedBits(t *testing.T) {
	n, content, _ := newModelNode(t, tree.Stubs)
	n.layer(t, "plain", "", func(dir string) { write(t, filepath.Join(dir, "f"), "plain") })
	n.layer(t, "child", "plain", func(dir string) { write(t, filepath.Join(dir, "g"), "child") })
	// Only committed snapshots are compared: active ones are removed with lost metadata.
	markerPath, metaPath := filepath.Join(n.dirOf(t, "model"), "..", markerName), filepath.Join(n.root, metadataName)
	n.stop(t)
	saved := filepath.Join(t.TempDir(), "root")
	copyTree(t, filepath.Join(n.dir, "snapshots"), saved, true)
	flips := map[string]int{markerPath: 40, metaPath: 80}
	var healed, refused, aside int
	for path, count := range flips {
		good := read(t, path)
		used := strings.Count(good, "") - strings.Count(good, "\x00")
		if used == 0 {
			t.Fatal("empty")
		}
		for i := range count {
			bad := []byte(good)
			off := rand.IntN(len(bad))
			for bad[off] == 0 { // in used pages
				off = rand.IntN(len(bad))
			}
			bad[off] ^= 1 << rand.IntN(8)
			write(t, path, string(bad))
			n.start(t, tree.Stubs)
			switch err := n.mountModel(t, content); {
			case err == nil:
				healed++
			case errdefs.IsNotFound(err), strings.Contains(err.Error(), "ballast verify --repair"):
				refused++
			default:
				t.Errorf("%s, flip %d at %d: %v", filepath.Base(path), i, off, err)
			}
			// Snapshots that the metadata still has keep their files.
			for name, file := range map[string]string{"plain": "f", "child": "g"} {
				if id, _, err := n.info(t.Context(), name); err == nil && exists(t, n.upperDir(id)) {
					if p, err := os.ReadFile(filepath.Join(n.upperDir(id), file)); err == nil && string(p) != name {
						t.Errorf("flip %d at %d: %s shows %q", i, off, name, p)
					} else if err != nil {
						t.Errorf("flip %d at %d: %s has the files of another: %v", i, off, name, err)
					}
				}
			}
			if left, _ := boltfile.SetAside(metaPath); len(left) > 0 {
				aside++
			}
			n.stop(t)
			if err := os.RemoveAll(filepath.Join(n.dir, "snapshots")); err != nil {
				t.Fatal(err)
			}
			copyTree(t, saved, filepath.Join(n.dir, "snapshots"), true)
		}
	}
	t.Logf("%d shown rightly, %d refused, metadata set aside %d times", healed, refused, aside)
	n.open(t, tree.Stubs)
}
