package daemon

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// newDaemon returns a daemon without a facade, whose admin socket belongs to another process.
func newDaemon(t *testing.T, root string) *Daemon {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.Root, c.Address, c.AdminAddress = root, filepath.Join(dir, "ballastd.sock"), filepath.Join(dir, "admin.sock")
	l, err := net.Listen("unix", c.AdminAddress)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
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

// TestForeignRoot starts a daemon at the directory of another snapshotter, and of sockets of others:
// it changes nothing there.
func TestForeignRoot(t *testing.T) {
	for key, name := range map[string]string{"root": "root/snapshots/1/fs/etc", "address": "run/other/state"} {
		dir := t.TempDir()
		theirs := filepath.Join(dir, name)
		if err := os.MkdirAll(theirs, 0o755); err != nil {
			t.Fatal(err)
		}
		c := config.Default()
		c.Root, c.Address, c.AdminAddress = filepath.Join(dir, "root"), filepath.Join(dir, "run", "ballastd.sock"), filepath.Join(dir, "run", "admin.sock")
		c.Facade.Listen, c.Snapshot.Show = "", config.ShowLinks
		d, err := New(c, slog.New(slog.DiscardHandler))
		if !errdefs.IsFailedPrecondition(err) || !strings.HasPrefix(err.Error(), key+": ") {
			t.Errorf("%s: got %v", key, err)
		}
		if err == nil {
			d.Close()
		}
		var found []string
		err = filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
			found = append(found, p)
			info, serr := os.Stat(p)
			if serr == nil && p != dir && info.Mode().Perm() != 0o755 {
				t.Errorf("%s has mode %v", p, info.Mode())
			}
			return errors.Join(err, serr)
		})
		if want := strings.Count(name, "/") + 2; err != nil || len(found) != want {
			t.Errorf("%s: %d names, want %d: %q, %v", key, len(found), want, found, err)
		}
	}
}
