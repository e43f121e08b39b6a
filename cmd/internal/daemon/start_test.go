package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/config"
)

// TestStartFails ends all that has begun when a part can not be started: the store is closed next.
func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 1\nroot = %q\naddress = %q\nadmin_address = %q\n[containerd]\naddress = %q\n[facade]\nlisten = \"\"\n[lazy]\nholder = \"none\"\n",
		dir+"/root", dir+"/ballastd.sock", dir+"/taken/admin.sock", dir+"/containerd.sock")
	for name, p := range map[string]string{file: text, dir + "/taken": "a file"} {
		if err := os.WriteFile(name, []byte(p), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Run(t.Context()); err == nil {
		t.Fatal("a daemon without its socket runs")
	}
	if d.background.ctx.Err() == nil || !d.background.over {
		t.Error("what brings the rest of models goes on")
	}
}
