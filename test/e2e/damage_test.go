package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// A held model is complete, and a container uses it.
type held struct {
	n    *node.Node
	b    *converttest.Built
	ref  string
	file string // seen from the container
}

// look reads the file of the model through the container, without the page cache. It may fail, but not
// return wrong bytes.
func (h *held) look(t *testing.T) error {
	t.Helper()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(h.file)
	if err == nil && !bytes.Equal(got, h.want()) {
		t.Error("a container reads other bytes than the model has")
	}
	return err
}

func (h *held) want() []byte { return h.b.Files["model.gguf"].Data }

func (h *held) object() string { return object(h.n, digest.FromBytes(h.want())) }

// healed checks that running and new containers see the model.
func (h *held) healed(t *testing.T) {
	t.Helper()
	waitFor(t, "the container to read the model", func() error { return h.look(t) })
	wantFiles(t, h.n, h.ref, states(h.b))
	if out := h.n.Ballast("verify"); out.Err != nil {
		t.Errorf("verify: %v\n%s", out.Err, out.Output())
	}
	if out := h.n.Ballast("gc", "--yes"); out.Err != nil {
		t.Errorf("gc: %v\n%s", out.Err, out.Output())
	}
	if err := h.look(t); err != nil {
		t.Errorf("after gc: %v", err)
	}
}

// spoil changes a byte of a file.
func spoil(t *testing.T, path string) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p[len(p)/2] ^= 1
	if err := os.WriteFile(path, p, 0o644); err != nil {
		t.Fatal(err)
	}
}

// spoilDocuments damages all small objects: the tables, manifests and configs.
func spoilDocuments(t *testing.T, n *node.Node) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(n.Root(), "objects"), func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if b, err := os.ReadFile(p); err == nil && len(b) < 1<<20 && (bytes.Contains(b, []byte(`"mode"`)) || bytes.Contains(b, []byte(`ediaType"`)) || bytes.Contains(b, []byte(`"architecture"`))) {
			spoil(t, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamage damages or removes a part of the root of a node whose models are in use. A container never
// reads other bytes than those of the model, a garbage collection removes nothing of it, and the
// commands that the tools print repair it.
func TestDamage(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[gc]\ninterval = \"1s\"\nhigh = 1\nlow = 1\n"})
	database := filepath.Join(n.Root(), "store.db")
	restarted := func(damage func()) {
		n.Ballastd.Stop(t)
		damage()
		n.StartBallastd(t) // its clean-up is at the end of all cases
	}
	collected := func(t *testing.T, h *held) {
		t.Helper()
		if out := n.Ballast("gc", "--yes"); out.Err != nil {
			t.Errorf("gc: %v\n%s", out.Err, out.Output())
		}
		if err := h.look(t); err != nil {
			t.Errorf("after a collection: %v", err)
		}
	}
	for i, c := range []struct {
		name string
		do   func(t *testing.T, h *held)
	}{
		{"database deleted", func(t *testing.T, h *held) {
			restarted(func() {
				if err := os.Remove(database); err != nil {
					t.Fatal(err)
				}
			})
			collected(t, h)
		}},
		{"database damaged", func(t *testing.T, h *held) {
			restarted(func() {
				if err := os.WriteFile(database, bytes.Repeat([]byte("garbage!"), 8192), 0o600); err != nil {
					t.Fatal(err)
				}
			})
			collected(t, h)
			if out := doctor(n); !strings.Contains(out.Output(), "store.db.damaged-") {
				t.Errorf("doctor says nothing of the database:\n%s", out.Output())
			}
		}},
		{"object damaged, pulled again", func(t *testing.T, h *held) {
			spoil(t, h.object())
			wantError(t, n.Ballast("verify"), "verify --repair")
			_ = h.look(t)
			mustPull(t, n, "ballast", h.ref)
		}},
		{"object damaged, repaired", func(t *testing.T, h *held) {
			spoil(t, h.object())
			if out := n.Ballast("verify", "--repair"); out.Err != nil {
				t.Errorf("%v\n%s", out.Err, out.Output())
			}
		}},
		{"object deleted, pulled again", func(t *testing.T, h *held) {
			if err := os.Remove(h.object()); err != nil {
				t.Fatal(err)
			}
			mustPull(t, n, "ballast", h.ref)
		}},
		{"object truncated, restarted twice", func(t *testing.T, h *held) {
			if err := os.Truncate(h.object(), 1<<20); err != nil {
				t.Fatal(err)
			}
			remove := n.Registry.Wire.Add(node.Fault{Status: 503})
			for range 2 {
				restarted(func() {})
			}
			if out := n.Ballast("verify"); out.Err == nil {
				t.Error("verify reports no problem")
			}
			remove()
			mustPull(t, n, "ballast", h.ref)
		}},
		{"documents damaged, repaired", func(t *testing.T, h *held) {
			spoilDocuments(t, n)
			if out := n.Ballast("verify", "--repair"); out.Err != nil {
				t.Errorf("%v\n%s", out.Err, out.Output())
			}
		}},
		{"documents and database, pulled again", func(t *testing.T, h *held) {
			restarted(func() {
				spoilDocuments(t, n)
				if err := os.Remove(database); err != nil {
					t.Fatal(err)
				}
			})
			wantError(t, n.Ballast("gc", "--yes"), "nothing is removed")
			if err := h.look(t); err != nil {
				t.Errorf("after gc: %v", err)
			}
			for _, ref := range imageNames(t, n) {
				if strings.Contains(ref, "/models/") {
					mustPull(t, n, "ballast", ref)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := converttest.ModelPackRaw(converttest.Files(weights(byte(150+i), 8<<20)))
			b.Name += fmt.Sprint("-damage-", i)
			h := &held{n: n, b: b, ref: push(t, n, b)}
			mustPull(t, n, "ballast", h.ref)
			h.file = filepath.Join(rootOf(t, n, h.ref), "model.gguf")
			waitFor(t, "the model to be complete", func() error {
				if !complete(n, h.want()) {
					return fmt.Errorf("it is not")
				}
				return nil
			})
			c.do(t, h)
			h.healed(t)
		})
	}
}

// TestScrub flips a bit of a file that a container shows. The daemon finds and repairs it in the background, without
// a command.
func TestScrub(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: "[scrub]\ninterval = \"1s\"\nrate = \"1GiB\"\n"})
	b := converttest.ModelPackRaw(converttest.Files(weights(170, 8<<20)))
	h := &held{n: n, b: b, ref: push(t, n, b)}
	mustPull(t, n, "ballast", h.ref)
	h.file = filepath.Join(rootOf(t, n, h.ref), "model.gguf")
	waitFor(t, "the model to be complete", func() error {
		if !complete(n, h.want()) {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	spoil(t, h.object())
	waitFor(t, "the repair", func() error {
		if !strings.Contains(n.Metrics(), "\nballast_damaged_objects_total 1\n") || !complete(n, h.want()) {
			return fmt.Errorf("it is not repaired")
		}
		return nil
	})
	h.healed(t)
}
