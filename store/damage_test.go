package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A node is a store with models that snapshots show: one complete from raw files, one from an archive,
// one partly staged, and one that is read before it is complete.
type node struct {
	dir      string
	builders map[string]*storetest.Builder // by snapshot
	files    map[string]map[string][]byte  // by snapshot and path
	whole    map[string]bool               // snapshots whose model was complete
	fetcher  *storetest.Fetcher
	older    string // a copy of the directory, made before the last models were added
}

func (n *node) table(t *testing.T, name string) digest.Digest {
	t.Helper()
	p, err := n.builders[name].Table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	return digest.FromBytes(p)
}

// newNode makes a node in a new directory and closes its store.
func newNode(t *testing.T) *node {
	t.Helper()
	raw, member, part, lazy := storetest.Random(1, 1<<20+1), storetest.Random(2, 1<<20), storetest.Random(3, 6<<20), storetest.Random(4, 6<<20)
	archive := storetest.Tar(t, []tar.Header{{Name: "m.bin", Mode: 0o644}}, [][]byte{member})
	n := &node{
		dir: t.TempDir(), older: filepath.Join(t.TempDir(), "older"), fetcher: storetest.NewFetcher(raw, archive, part, lazy),
		builders: map[string]*storetest.Builder{
			"raw":  storetest.NewBuilder("raw").Raw("r.bin", raw, 0o644).Inline("config", []byte("{}"), 0o644),
			"tar":  storetest.NewBuilder("tar").Tar(t, archive),
			"part": storetest.NewBuilder("part").Raw("p.bin", part, 0o644),
			"lazy": storetest.NewBuilder("lazy").RawChunks("l.bin", lazy, 0o644, 1<<20),
		},
		files: map[string]map[string][]byte{
			"raw": {"r.bin": raw, "config": []byte("{}")}, "tar": {"m.bin": member}, "part": {"p.bin": part}, "lazy": {"l.bin": lazy},
		},
		whole: map[string]bool{"raw": true, "tar": true},
	}
	s, err := store.Open(n.dir, store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	broken := storetest.NewFetcher(raw, archive, part, lazy) // has only the beginning of each blob
	broken.Allow = func(off, _ int64) bool { return off < 4<<20 }
	copied := false
	for _, name := range []string{"raw", "tar", "part", "lazy"} {
		table := n.builders[name].Put(t, s)
		if err := s.AddRef("snapshot/"+name, table, time.Time{}); err != nil {
			t.Fatal(err)
		}
		switch {
		case n.whole[name]:
			err = s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(n.fetcher)})
		case name == "part":
			ctx, cancel := context.WithCancel(t.Context())
			err := s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(broken), Progress: func(p []store.Progress) {
				if p[0].Done == 4<<20 {
					cancel()
				}
			}})
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		default:
			err = s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(broken)})
			if err == nil {
				_, err = s.Views.View("").ReadAt(t.Context(), digest.FromBytes(lazy), make([]byte, 100), 100)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if !copied {
			copied = true
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("cp", "-a", n.dir, n.older).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if s, err = store.Open(n.dir, store.Options{Reserve: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return n
}

// copy returns a node that can be damaged.
func (n *node) copy(t *testing.T) *node {
	t.Helper()
	c := *n
	c.dir = filepath.Join(t.TempDir(), "node")
	if out, err := exec.Command("cp", "-a", n.dir, c.dir).CombinedOutput(); err != nil { // with extended attributes
		t.Fatalf("%v: %s", err, out)
	}
	return &c
}

// start opens the store and adds the references of the snapshots, as the daemon does.
func (n *node) start(t *testing.T) *store.Store {
	t.Helper()
	s := storetest.Open(t, n.dir, store.Options{})
	for name := range n.builders {
		err := s.AddRef("snapshot/"+name, n.table(t, name), time.Time{})
		if err != nil && !errdefs.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	return s
}

// look reads and compares everything that can be read.
func (n *node) look(t *testing.T, s *store.Store, when string) {
	t.Helper()
	for name, files := range n.files {
		for path, want := range files {
			d := digest.FromBytes(want)
			f, err := s.OpenObject(d, nil)
			if err == nil {
				if got := readAll(t, f); !bytes.Equal(got, want) {
					t.Errorf("%s: %s of %s: %d bytes, not the %d it has", when, path, name, len(got), len(want))
				}
			} else if !errdefs.IsNotFound(err) {
				t.Errorf("%s: %s of %s: %v", when, path, name, err)
			}
		}
	}
}

func readAll(t *testing.T, f *os.File) []byte {
	t.Helper()
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, info.Size())
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// inPlace returns the right files at the paths of objects; wrong files are an error unless allowed,
// because overlayfs shows them.
func (n *node) inPlace(t *testing.T, noneWrong bool) map[string]bool {
	t.Helper()
	right := map[string]bool{}
	err := filepath.WalkDir(filepath.Join(n.dir, "objects"), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		if right[p] = hex.EncodeToString(sum[:]) == e.Name(); !right[p] {
			delete(right, p)
			if noneWrong {
				t.Errorf("%s is in service with other bytes", p)
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return right
}

// collect runs a garbage collection and checks that no right file is removed: all of them are needed.
func (n *node) collect(t *testing.T, s *store.Store, when string) {
	t.Helper()
	before := n.inPlace(t, false)
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil && !errdefs.IsFailedPrecondition(err) {
		t.Fatal(err)
	}
	after := n.inPlace(t, false)
	for p := range before {
		if !after[p] {
			t.Errorf("%s: %s was collected", when, filepath.Base(p))
		}
	}
}

// readEarly reads a model before it is complete.
func (n *node) readEarly(t *testing.T, s *store.Store) {
	t.Helper()
	table, p := n.table(t, "lazy"), n.files["lazy"]["l.bin"]
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(n.fetcher)}); err != nil {
		return // the table is missing
	}
	got := make([]byte, len(p))
	if _, err := s.Views.View("").ReadAt(t.Context(), digest.FromBytes(p), got, 0); err != nil || !bytes.Equal(got, p) {
		t.Errorf("read early: %v, or wrong bytes", err)
	}
}

// damages are the ways to damage a file.
var damages = map[string]func(n *node, path string) error{
	"deleted":   func(n *node, path string) error { return os.Remove(path) },
	"truncated": func(n *node, path string) error { return change(path, func(p []byte) []byte { return p[:len(p)/2] }) },
	"empty":     func(n *node, path string) error { return os.Truncate(path, 0) },
	"flipped": func(n *node, path string) error {
		return change(path, func(p []byte) []byte {
			for at := 0; at < len(p); at += 1 + len(p)/7 {
				p[at] ^= 0x10
			}
			return p
		})
	},
	"older": func(n *node, path string) error {
		rel, err := filepath.Rel(n.dir, path)
		if err != nil {
			return err
		}
		p, err := os.ReadFile(filepath.Join(n.older, rel))
		if errors.Is(err, fs.ErrNotExist) { // it was another file
			return change(path, func(p []byte) []byte { return bytes.Repeat([]byte{0xAA}, len(p)) })
		}
		return errors.Join(err, os.WriteFile(path, p, 0o600))
	},
}

func change(path string, f func([]byte) []byte) error {
	p, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, f(p), 0o600)
}

// TestDamageMatrix damages each kind of file of a closed store in each way. Afterwards no wrong byte is
// read, no object of a snapshot is collected, and a pull repairs the store.
func TestDamageMatrix(t *testing.T) {
	one := func(pattern string) func(*testing.T, *node) string {
		return func(t *testing.T, n *node) string {
			t.Helper()
			found, err := filepath.Glob(filepath.Join(n.dir, pattern))
			if err != nil || len(found) != 1 {
				t.Fatalf("%s: %v, %v", pattern, found, err)
			}
			return found[0]
		}
	}
	object := func(d func(*testing.T, *node) digest.Digest) func(*testing.T, *node) string {
		return func(t *testing.T, n *node) string {
			return filepath.Join(n.dir, "objects", store.ObjectName(d(t, n)))
		}
	}
	kinds := map[string]func(*testing.T, *node) string{
		"database":   one("store.db"),
		"object":     object(func(_ *testing.T, n *node) digest.Digest { return digest.FromBytes(n.files["raw"]["r.bin"]) }),
		"member":     object(func(_ *testing.T, n *node) digest.Digest { return digest.FromBytes(n.files["tar"]["m.bin"]) }),
		"table":      object(func(t *testing.T, n *node) digest.Digest { return n.table(t, "raw") }),
		"tar table":  object(func(t *testing.T, n *node) digest.Digest { return n.table(t, "tar") }),
		"lazy table": object(func(t *testing.T, n *node) digest.Digest { return n.table(t, "lazy") }),
	}
	for name, file := range map[string]string{"partial": "part", "chunks": "lazy"} {
		for _, part := range []string{"marks", "data"} {
			kinds[name+" "+part] = func(t *testing.T, n *node) string {
				for _, p := range n.files[file] {
					if found, err := filepath.Glob(filepath.Join(n.dir, "partial", digest.FromBytes(p).Encoded()+"-*", part)); err == nil && len(found) == 1 {
						return found[0]
					}
				}
				t.Fatalf("nothing of %s is staged", file)
				return ""
			}
		}
	}
	whole := newNode(t)
	for kind, path := range kinds {
		for damage, do := range damages {
			t.Run(kind+" "+damage, func(t *testing.T) {
				t.Parallel()
				n := whole.copy(t)
				if err := do(n, path(t, n)); err != nil {
					t.Fatal(err)
				}
				n.survive(t)
			})
		}
	}
	t.Run("everything but objects deleted", func(t *testing.T) {
		t.Parallel()
		n := whole.copy(t)
		if err := errors.Join(os.RemoveAll(filepath.Join(n.dir, "partial")), os.Remove(filepath.Join(n.dir, "store.db"))); err != nil {
			t.Fatal(err)
		}
		n.survive(t)
	})
	t.Run("everything but the database deleted", func(t *testing.T) {
		t.Parallel()
		n := whole.copy(t)
		if err := errors.Join(os.RemoveAll(filepath.Join(n.dir, "partial")), os.RemoveAll(filepath.Join(n.dir, "objects"))); err != nil {
			t.Fatal(err)
		}
		n.survive(t)
	})
}

// survive opens a damaged node twice and repairs it.
func (n *node) survive(t *testing.T) {
	t.Helper()
	s := n.start(t)
	n.collect(t, s, "after the start")
	compareFiles(t, s)
	n.collect(t, s, "after the comparison")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = n.start(t) // the second start must not take the state after the first one as right
	n.collect(t, s, "after the second start")
	if _, err := s.Check(t.Context(), "", nil); err != nil {
		t.Fatal(err)
	}
	n.look(t, s, "after the check")
	n.inPlace(t, true)
	n.collect(t, s, "after the check")
	n.readEarly(t, s)
	for name, b := range n.builders { // a pull
		table := b.Put(t, s)
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(n.fetcher)}); err != nil {
			t.Fatalf("pull of %s: %v", name, err)
		}
		got := content(t, s, table)
		for path, want := range n.files[name] {
			if got[path] != string(want) {
				t.Errorf("%s of %s is not healed", path, name)
			}
		}
	}
	bad, err := s.Check(t.Context(), "", nil)
	if len(bad) > 0 || err != nil {
		t.Errorf("after the pull: %+v, %v", bad, err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
		t.Errorf("after the pull: %v", err)
	}
	n.look(t, s, "after the pull")
	for name := range n.builders {
		if _, err := s.Views.Files(n.table(t, name)); err != nil {
			t.Errorf("after the pull: %s: %v", name, err)
		}
	}
	d, err := s.Health()
	if err != nil || len(d.Unresolved)+len(d.Damaged) > 0 || d.Unrecorded > 0 {
		t.Errorf("after the pull: %+v, %v", d, err)
	}
	for _, p := range d.SetAside {
		if !strings.HasPrefix(filepath.Base(p), "store.db.damaged-") {
			t.Errorf("set aside as %s", p)
		}
	}
}
