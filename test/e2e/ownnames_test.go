package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// foreignLog is the message of a daemon that finds names in its directories that it does not know.
const foreignLog = "there are files of others in the directories of ballast"

// TestOwnNames lets a node do everything that leaves files, and checks that the daemon knows all names
// in its directories as its own. It names files of others, and leaves them.
func TestOwnNames(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	known := func(t *testing.T, others ...string) {
		t.Helper()
		from := len(readFile(t, filepath.Join(n.Dir, "ballastd.log")))
		n.StartBallastd(t)
		log := readFile(t, filepath.Join(n.Dir, "ballastd.log"))[from:]
		if got := strings.Contains(log, foreignLog); got != (others != nil) {
			t.Errorf("the daemon found names of others: %v, want %v", got, others)
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, foreignLog) {
				t.Log(line)
				for _, o := range others {
					if !strings.Contains(line, o) {
						t.Errorf("it does not name %s", o)
					}
				}
			}
		}
		t.Logf("root: %q, sockets: %q", names(t, n.Root()), names(t, n.Run()))
	}
	whole := converttest.ModelPackRaw(converttest.Files(weights(244, 4<<20)))
	ref := push(t, n, whole)
	mustPull(t, n, "ballast", ref)
	n.Registry.Push(t, "busybox", "1", node.Busybox(t))
	mustPull(t, n, "ballast", n.Registry.Ref("busybox", "1"))
	m := mountLazy(t, n, 24<<20, 0)
	if err := m.read(9<<20, 4096); err != nil {
		t.Error(err)
	}
	dir := t.TempDir()
	ballast(t, n, "mount", ref, dir)
	own := strings.TrimSpace(ballast(t, n, "path", ref))
	local := filepath.Join(n.Dir, "ollama")
	if err := converttest.WriteOllamaStore(local, converttest.StoreV2Link, "ollama.com/library/own/1b", converttest.Ollama(converttest.Files(weights(245, 1<<20)), converttest.OllamaConfigNew)); err != nil {
		t.Fatal(err)
	}
	ballast(t, n, "import", "ollama", "--dir", local)
	known(t) // while a model is lazy

	spoil(t, object(n, digest.FromBytes(whole.Files["model.gguf"].Data)))
	wantError(t, n.Ballast("verify"), "verify --repair")
	known(t) // with a damaged file
	ballast(t, n, "verify", "--repair")
	for _, name := range []string{"store.db", "metadata.db"} {
		n.Ballastd.Stop(t)
		if err := os.WriteFile(filepath.Join(n.Root(), name), []byte(strings.Repeat("garbage!", 8192)), 0o600); err != nil {
			t.Fatal(err)
		}
		known(t)
	}
	n.Ballastd.Kill()
	known(t) // with what it set aside, and sockets of a killed daemon
	want := []string{"archives", "damaged", "hide", "lazy", "lazy-state", "metadata.db", "objects", "partial", "secrets", "snapshots", "store.db", "tls", "views"}
	for _, name := range want {
		if !slices.Contains(names(t, n.Root()), name) {
			t.Errorf("there is no %s; the test proves less than it should", name)
		}
	}

	theirs := []string{filepath.Join(n.Root(), "notes"), filepath.Join(n.Run(), "other")}
	for _, p := range theirs {
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.Ballastd.Stop(t)
	known(t, theirs...)
	for _, p := range theirs {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, at := range []string{dir, own} { // by the kernel: the daemon has lost their records
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	}
}

// readFile returns a file as text.
func readFile(t *testing.T, path string) string {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// names returns the names in a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
