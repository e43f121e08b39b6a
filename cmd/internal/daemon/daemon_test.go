package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/opencontainers/go-digest"
)

// TestStartFails starts a daemon that cannot listen: when Run returns, background work has ended
// and none starts, as the store is closed next.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Root, c.Address, c.AdminAddress = filepath.Join(dir, "root"), filepath.Join(dir, "ballastd.sock"), filepath.Join(file, "admin.sock")
	c.Facade.Listen, c.Snapshot.Show = "", config.ShowLinks
	d, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := d.Run(t.Context()); err == nil {
		t.Fatal("it runs without an admin socket")
	}
	d.jobs.Background.Start("snapshot/1", digest.FromString("table"), nil)
	if s := d.jobs.Status(t.Context()); len(s.Jobs) > 0 {
		t.Errorf("after the end: %+v", s.Jobs)
	}
}
