package snapshotter

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// copyTree copies a directory, with or without extended attributes.
func copyTree(t *testing.T, from, to string, xattrs bool) {
	t.Helper()
	preserve := "--preserve=mode,ownership,timestamps,links"
	if xattrs {
		preserve += ",xattr"
	}
	if out, err := exec.Command("cp", "-r", preserve, from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// A root that was copied without extended attributes has files of the right size that contain zeros.
func TestCopiedRoot(t *testing.T) {
	n, content, _ := newModelNode(t, tree.Stubs)
	n.stop(t)
	old := filepath.Join(n.dir, "old")
	if err := os.Rename(filepath.Join(n.dir, "snapshots"), old); err != nil {
		t.Fatal(err)
	}
	copyTree(t, old, filepath.Join(n.dir, "snapshots"), false)
	n.start(t, tree.Stubs)
	if err := n.mountModel(t, content); err != nil {
		t.Errorf("not healed: %v", err)
	}
	if problems, err := n.Verify(t.Context(), ""); err != nil || len(problems) != 0 {
		t.Errorf("verify: got %v, %v", problems, err)
	}

	// With a store that has lost the table, the snapshot is refused.
	n.stop(t)
	if err := os.RemoveAll(filepath.Join(n.dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	copyTree(t, old, filepath.Join(n.dir, "snapshots"), false)
	if err := n.store.Close(); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(n.dir, "other"), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	n.store = st
	var log bytes.Buffer
	s, err := New(filepath.Join(n.dir, "snapshots"), st, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(s.Reconcile(t.Context()), s.Inspect(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := s.View(t.Context(), "v", "model"); !errdefs.IsUnavailable(err) && !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "ballast verify --repair") {
		t.Errorf("got %v, want a refusal with a cure", err)
	}
	if !strings.Contains(log.String(), "ballast verify --repair") {
		t.Errorf("the log does not say what to do:\n%s", log.String())
	}
}

// If the marker is removed or changed while the daemon runs, the snapshot is refused until it is
// repaired.
func TestLostMarkerIsRefused(t *testing.T) {
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			n, content, table := newModelNode(t, tree.Stubs)
			path := filepath.Join(n.dirOf(t, "model"), "..", markerName)
			older := filepath.Join(t.TempDir(), "older")
			write(t, older, `{"empty":true}`)
			damage(t, path, older)
			if err := n.mountModel(t, content); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "ballast verify --repair") {
				t.Errorf("got %v, want data loss and a cure", err)
			}
			if problems, err := n.Verify(t.Context(), table); err != nil || len(problems) == 0 {
				t.Errorf("verify: got %v, %v", problems, err)
			}
			if err := n.Refresh(t.Context(), table); err != nil {
				t.Fatal(err)
			}
			if err := n.mountModel(t, content); err != nil {
				t.Errorf("after refresh: %v", err)
			}
		})
	}
}

// Models that lost their label get it again; a model without marker is found by its reference.
func TestInspectLabels(t *testing.T) {
	n, content, table := newModelNode(t, tree.Stubs)
	unlabel := func() {
		t.Helper()
		if _, err := n.overlay.Update(t.Context(), snapshots.Info{Name: "model"}, "labels."+labelShows); err != nil {
			t.Fatal(err)
		}
	}
	for _, lost := range []bool{false, true} {
		unlabel()
		if lost {
			if err := os.Remove(filepath.Join(n.dirOf(t, "model"), "..", markerName)); err != nil {
				t.Fatal(err)
			}
		}
		n.start(t, tree.Stubs)
		info, err := n.Stat(t.Context(), "model")
		if err != nil || info.Labels[labelShows] != table.String() {
			t.Errorf("marker lost %t: got labels %v, %v", lost, info.Labels, err)
		}
		if err := n.mountModel(t, content); err != nil {
			t.Errorf("marker lost %t: %v", lost, err)
		}
	}
	// No other caller can change it.
	for _, paths := range [][]string{nil, {"labels"}, {"labels." + labelShows}, {"labels.x"}} {
		if _, err := n.Update(t.Context(), snapshots.Info{Name: "model", Labels: map[string]string{labelShows: "other", "x": "y"}}, paths...); err != nil {
			t.Fatal(err)
		}
		if info, err := n.Stat(t.Context(), "model"); err != nil || info.Labels[labelShows] != table.String() {
			t.Errorf("update %q: got labels %v, %v", paths, info.Labels, err)
		}
	}
}

// Verify reports a changed file, and Refresh repairs it.
func TestVerify(t *testing.T) {
	for _, b := range backends {
		t.Run(string(b), func(t *testing.T) {
			n := newNode(t, b)
			m := awkward()
			table := n.commit(t, "model", "", m)
			if problems, err := n.Verify(t.Context(), ""); err != nil || len(problems) != 0 {
				t.Fatalf("of an intact tree: got %v, %v", problems, err)
			}
			at := func(p string) string { return filepath.Join(n.dirOf(t, "model"), p) }
			if err := errors.Join(os.Remove(at("dir/kept")), os.Remove(at("config.json")), os.Chmod(at("hollow"), 0o700)); err != nil {
				t.Fatal(err)
			}
			write(t, at("config.json"), "{}")
			write(t, at("dir/surplus"), "surplus")
			problems, err := n.Verify(t.Context(), table)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, p := range problems {
				got[p.Path] = true
				if p.Snapshot != n.id(t, "model") || p.Table != table {
					t.Errorf("got %+v", p)
				}
			}
			for _, want := range []string{"dir/kept", "config.json", "hollow", "dir/surplus"} {
				if !got[want] {
					t.Errorf("%s is not named in %v", want, problems)
				}
			}
			if other, err := n.Verify(t.Context(), digestOf("other table")); err != nil || len(other) != 0 {
				t.Errorf("of another table: got %v, %v", other, err)
			}
			if err := n.Refresh(t.Context(), table); err != nil {
				t.Fatal(err)
			}
			if problems, err := n.Verify(t.Context(), table); err != nil || len(problems) != 0 {
				t.Errorf("after refresh: got %v, %v", problems, err)
			}
			if diff := m.differences(t, b, n.view(t, "model")); diff != "" {
				t.Errorf("(-got +want):\n%s", diff)
			}
		})
	}
}

// TestOneDoesNotBecomeLinks: a snapshot that cannot become links, because its directory is gone, stops neither a start
// nor the mounts of another of the same model.
func TestOneDoesNotBecomeLinks(t *testing.T) {
	for _, start := range []bool{true, false} {
		t.Run(fmt.Sprintf("at a start %t", start), func(t *testing.T) {
			n, content, _ := newModelNode(t, tree.Stubs)
			first := n.id(t, "model")
			n.commit(t, "again", "", newModel().file("w", 0o644, content).inline("empty", 0o600, ""))
			if err := os.RemoveAll(n.upperDir(first)); err != nil {
				t.Fatal(err)
			}
			n.open(t, tree.Links)
			n.noStubs = unix.EINVAL
			if start {
				if err := n.Inspect(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if got := read(t, filepath.Join(n.view(t, "again"), "w")); got != string(content) {
				t.Error("the mount shows other bytes")
			}
			if err := n.mountModel(t, content); err == nil {
				t.Error("what could not become links is mounted")
			}
		})
	}
}
