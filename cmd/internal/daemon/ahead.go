package daemon

import (
	"context"
	"errors"
	"os"

	"github.com/ballast-dev/ballast/cmd/internal/ahead"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/opencontainers/go-digest"
)

// buildAhead builds what reads models ahead that are mounted, unless the configuration forbids it.
func (d *Daemon) buildAhead() error {
	mode := d.config.Snapshot.ReadAhead
	if mode == config.ReadAheadOff {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.ahead = ahead.New(ahead.Options{Always: mode == config.ReadAheadOn, Command: []string{self, "read-ahead"}, Log: d.log})
	return nil
}

// mounted reads a model ahead whose complete files are mounted.
func (d *Daemon) mounted(table digest.Digest, view string) {
	if d.ahead != nil {
		d.ahead.Mounted(table.String(), func(ctx context.Context) ([]*os.File, error) { return d.largeFiles(ctx, table, view) })
	}
}

// largeFiles opens the large files of a complete model, in the order of their paths.
func (d *Daemon) largeFiles(ctx context.Context, table digest.Digest, view string) (open []*os.File, err error) {
	files, err := d.store.Files(ctx, table)
	if err != nil {
		return nil, err
	}
	seen := map[digest.Digest]bool{}
	for _, f := range files {
		if f.Size < ahead.MinSize || seen[f.Digest] {
			continue
		}
		seen[f.Digest] = true
		file, err := d.store.View(view).OpenObject(f.Digest)
		if err != nil {
			for _, f := range open {
				err = errors.Join(err, f.Close())
			}
			return nil, err
		}
		open = append(open, file)
	}
	return open, nil
}
