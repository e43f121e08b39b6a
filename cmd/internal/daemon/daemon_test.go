package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/opencontainers/go-digest"
)

// TestStartFails has a daemon that can not listen: when Run returns, work in the background has ended and none begins,
// as the store is closed next.
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
	d.background.start("snapshot/1", digest.FromString("table"), nil)
	d.background.mu.Lock()
	defer d.background.mu.Unlock()
	if n := len(d.background.running); n > 0 {
		t.Errorf("%d tasks have begun after the end", n)
	}
}
