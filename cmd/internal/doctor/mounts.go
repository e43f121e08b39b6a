package doctor

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// Time limits for a mount: the daemon releases a mount that is gone within a minute or two, and
// files of a working mount open at once.
const (
	releaseTimeout = 3 * time.Minute
	openTimeout    = 5 * time.Second
)

// maxOpened limits the number of files opened in a mount.
const maxOpened = 100

// mounts checks the mounts of "ballast mount" and "ballast path".
func (d *Doctor) mounts(ctx context.Context, h *wire.Health) {
	const check = "mounts"
	if h == nil {
		return
	}
	all, err := d.Client.Mounts(ctx)
	if err != nil {
		d.Warn(check, "see the log of ballastd", "the mounts on the host are not known: %s", wire.Text(err))
		return
	}
	before := len(d.Findings)
	for _, m := range all {
		if !m.Mounted && time.Since(m.Created) > releaseTimeout {
			d.Warn(check, "ballast unmount "+m.Dir, "%s is not mounted, but still keeps %s on the node", m.Dir, m.Name)
		}
		if !m.Mounted {
			continue
		}
		if err := opens(m.Dir); err != nil {
			d.Fail(check, "ballast unmount "+m.Dir+" && ballast mount "+m.Name+" "+m.Dir, "%s at %s cannot be read: %v", m.Name, m.Dir, err)
		}
	}
	if len(all) > 0 && len(d.Findings) == before {
		d.OK(check, "%d models are mounted on the host, and their files can be opened", len(all))
	}
}

// opens returns why a file below dir cannot be opened. It does not read, because a read could wait
// for a download.
func opens(dir string) error {
	result := make(chan error, 1) // a mount without a server can block the goroutine until the process ends
	go func() {
		left := maxOpened
		result <- filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if left--; left < 0 {
				return fs.SkipAll
			}
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			return f.Close()
		})
	}()
	select {
	case err := <-result:
		return err
	case <-time.After(openTimeout):
		return os.ErrDeadlineExceeded
	}
}
