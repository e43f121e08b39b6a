package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// infos returns the id and the record of every snapshot in the metadata, by name.
func (n *node) infos(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	err := n.overlay.Walk(t.Context(), func(ctx context.Context, info snapshots.Info) error {
		id, rec, err := n.overlay.record(ctx, info.Name)
		all[info.Name] = []any{id, rec}
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return all
}

// newVaried returns a node with snapshots of all kinds, and the running container "c" of a model in a
// namespace of its own.
func newVaried(t *testing.T, b tree.Backend) (n *node, content []byte, c *jail) {
	t.Helper()
	n, content, _ = newModelNode(t, b)
	n.layer(t, "base", "", func(dir string) { write(t, filepath.Join(dir, "f"), "base") })
	n.layer(t, "above", "base", func(dir string) { write(t, filepath.Join(dir, "g"), "above") })
	for key, parent := range map[string]string{"plain": "above", "unpacking": "above"} {
		if _, err := n.Prepare(t.Context(), key, parent, snapshots.WithLabels(map[string]string{"containerd.io/snapshot/x": key})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.View(t.Context(), "view", "model"); err != nil {
		t.Fatal(err)
	}
	mounts, err := n.Prepare(t.Context(), "c", "model")
	if err != nil {
		t.Fatal(err)
	}
	c = newJail(t, mounts)
	write(t, filepath.Join(c.dir, "own"), "written")
	if _, err := n.Update(t.Context(), snapshots.Info{Name: "base", Labels: map[string]string{"a": "b"}}, "labels.a"); err != nil {
		t.Fatal(err)
	}
	return n, content, c
}

// TestHealthBesideCleanup: the directory of a removed snapshot is not unknown while a cleanup removes it.
func TestHealthBesideCleanup(t *testing.T) {
	n := newNode(t, backends[0])
	for i := range 20 {
		name := fmt.Sprint("layer ", i)
		n.layer(t, name, "", func(dir string) {
			for k := range 100 {
				write(t, filepath.Join(dir, fmt.Sprint(k)), "x")
			}
		})
		if err := n.Remove(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	cleaned := make(chan error, 1)
	go func() { cleaned <- n.Cleanup(t.Context()) }()
	for {
		if h, err := n.Health(t.Context()); err != nil || len(h.Unknown) > 0 {
			t.Errorf("unknown: %v, %v", h.Unknown, err)
		}
		select {
		case err := <-cleaned:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}

// Lost or damaged metadata is rebuilt from the records: every snapshot is as before, new models can be
// shown, and nothing is left when all snapshots are removed.
func TestLostMetadataIsRebuilt(t *testing.T) {
	for name, damage := range damages {
		for _, b := range backends {
			t.Run(name+"/"+string(b), func(t *testing.T) {
				older := filepath.Join(t.TempDir(), "older")
				n, content, c := newVaried(t, b)
				copyFile(t, filepath.Join(n.root, metadataName), older)
				n.layer(t, "late", "above", func(dir string) { write(t, filepath.Join(dir, "h"), "late") })
				n.commit(t, "late model", n.claimBlobs(t, 2), newModel().file("v", 0o644, storetest.Random(9, 10_000)))
				if err := n.Remove(t.Context(), "plain"); err != nil { // its directory is not removed yet
					t.Fatal(err)
				}
				if h, err := n.Health(t.Context()); err != nil || len(h.Unknown) > 0 {
					t.Errorf("a removed snapshot is reported as unknown: %v, %v", h.Unknown, err)
				}
				before, path := n.infos(t), filepath.Join(n.root, metadataName)
				if name == "older" { // which does not know that it was removed
					before = nil
				}
				n.stop(t)
				damage(t, path, older)

				n.start(t, b)
				after := n.infos(t)
				if before != nil {
					if diff := cmp.Diff(after, before); diff != "" {
						t.Errorf("snapshots (-got +want):\n%s", diff)
					}
				}
				for _, name := range []string{"late", "late model"} {
					if after[name] == nil {
						t.Errorf("%s is lost", name)
					}
				}
				if h, err := n.Health(t.Context()); err != nil || len(h.Unknown)+len(h.Problems) > 0 {
					t.Errorf("health: %+v, %v", h, err)
				}
				if problems, err := n.Verify(t.Context(), ""); err != nil || len(problems) > 0 {
					t.Errorf("verify: %v, %v", problems, err)
				}
				if err := n.mountModel(t, content); err != nil {
					t.Error(err)
				}
				mounts, err := n.Mounts(t.Context(), "c")
				if err != nil {
					t.Fatal(err)
				}
				dir, unmount := mountAll(t, mounts)
				if got := read(t, filepath.Join(dir, "own")); got != "written" {
					t.Errorf("the container has %q", got)
				}
				unmount()
				n.commit(t, "new model", "", newModel().file("u", 0o644, storetest.Random(8, 10_000)))
				c.end()
				for range after { // children first
					for name := range n.infos(t) {
						if err := n.Remove(t.Context(), name); err != nil && !errdefs.IsFailedPrecondition(err) {
							t.Error(err)
						}
					}
				}
				if err := n.Cleanup(t.Context()); err != nil {
					t.Error(err)
				}
				left, err := filepath.Glob(filepath.Join(n.root, "snapshots", "*"))
				if err != nil || len(left)+len(n.infos(t))+len(n.names(t)) > 0 {
					t.Errorf("left: %v, %v, %v, %v", left, n.infos(t), n.names(t), err)
				}
			})
		}
	}
}

// A record that is missing, damaged or outdated is written again at the next start. Without it, only its
// snapshot and those above it are lost with the metadata.
func TestRecords(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			n, content, _ := newVaried(t, Auto)
			before := n.infos(t)
			path := filepath.Join(n.dirOf(t, "base"), "..", recordName)
			older := filepath.Join(t.TempDir(), "older")
			copyFile(t, path, older)
			if _, err := n.Update(t.Context(), snapshots.Info{Name: "base", Labels: map[string]string{"a": "c"}}, "labels.a"); err != nil {
				t.Fatal(err)
			}
			want := n.infos(t)
			n.stop(t)
			damage(t, path, older)
			n.start(t, Auto)
			if diff := cmp.Diff(n.infos(t), want); diff != "" {
				t.Errorf("sound metadata was changed (-got +want):\n%s", diff)
			}
			if rec, err := readRecord(filepath.Dir(path)); err != nil || rec.Labels["a"] != "c" {
				t.Errorf("not written again: %v, %v", rec, err)
			}
			n.stop(t)
			damage(t, path, older)
			damages["deleted"](t, filepath.Join(n.dir, "snapshots", metadataName), "")
			n.start(t, Auto)
			if name == "older" { // and intact
				want = before
			} else {
				for _, lost := range []string{"base", "above", "plain", "unpacking"} {
					delete(want, lost)
				}
			}
			if diff := cmp.Diff(n.infos(t), want); diff != "" {
				t.Errorf("rebuilt (-got +want):\n%s", diff)
			}
			if err := n.mountModel(t, content); err != nil {
				t.Error(err)
			}
		})
	}
}

// A snapshot does not depend on its record.
func TestRecordCannotBeWritten(t *testing.T) {
	n := newNode(t, Auto)
	n.layer(t, "base", "", func(dir string) { write(t, filepath.Join(dir, "f"), "x") })
	path := filepath.Join(n.dirOf(t, "base"), "..", recordName)
	if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "in the way"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Update(t.Context(), snapshots.Info{Name: "base", Labels: map[string]string{"a": "b"}}, "labels.a"); err != nil {
		t.Error(err)
	}
	if err := n.Remove(t.Context(), "base"); err != nil {
		t.Error(err)
	}
	if err := n.Cleanup(t.Context()); err != nil || exists(t, path) {
		t.Errorf("left: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	for _, r := range []record{{Name: "a", Kind: snapshots.KindActive}, {Name: "b", Parent: "a", Kind: snapshots.KindCommitted, Size: 3}, {Removed: true}} {
		p, err := r.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p[9:])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		r, err := decodeRecord(append(fmt.Appendf(nil, "%08x\n", crc32.Checksum(p, castagnoli)), p...))
		if err != nil {
			return
		}
		q, err := r.encode()
		if err != nil { // a time that JSON cannot express
			t.Fatal(err)
		}
		if again, err := decodeRecord(q); err != nil || !cmp.Equal(again, r, cmpopts.EquateEmpty()) {
			t.Errorf("%q: got %v, %v, want %v", p, again, err, r)
		}
	})
}
