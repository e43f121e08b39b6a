package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/opencontainers/go-digest"
)

// newDaemon returns a daemon without a facade, whose admin socket cannot be created.
func newDaemon(t *testing.T, root string) *Daemon {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Root, c.Address, c.AdminAddress = root, filepath.Join(dir, "ballastd.sock"), filepath.Join(file, "admin.sock")
	c.Facade.Listen, c.Snapshot.Show = "", config.ShowLinks
	d, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestOldTempDirRemoved starts a daemon at the root of an earlier version: the temporary directory of
// that version is removed if it is empty.
func TestOldTempDirRemoved(t *testing.T) {
	for name, files := range map[string][]string{"empty": nil, "used": {"model"}} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			old := filepath.Join(root, "carton")
			if err := os.Mkdir(old, 0o700); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if err := os.WriteFile(filepath.Join(old, f), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			newDaemon(t, root)
			if _, err := os.Stat(old); os.IsNotExist(err) != (files == nil) {
				t.Errorf("with the files %q: %v", files, err)
			}
		})
	}
}

// TestStartFails starts a daemon that cannot listen: when Run returns, background work has ended
// and none starts, as the store is closed next.
func TestStartFails(t *testing.T) {
	d := newDaemon(t, filepath.Join(t.TempDir(), "root"))
	if err := d.Run(t.Context()); err == nil {
		t.Fatal("it runs without an admin socket")
	}
	d.jobs.Background.Start("snapshot/1", digest.FromString("table"), nil)
	if s := d.jobs.Status(t.Context()); len(s.Jobs) > 0 {
		t.Errorf("after the end: %+v", s.Jobs)
	}
}
