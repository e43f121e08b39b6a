package daemon

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/store"
)

// secretsDir is the directory below the root for sealed pull secrets.
const secretsDir = "secrets"

// openSecrets returns where pull secrets are kept, and removes what is on the disk if that is not wanted
// any more.
func openSecrets(c *config.Config, log *slog.Logger) (*pullsecret.Secrets, error) {
	dir := filepath.Join(c.Root, secretsDir)
	if !c.Upstream.KeepSecrets {
		return &pullsecret.Secrets{}, pullsecret.Remove(dir)
	}
	return pullsecret.Open(dir, log)
}

// settleSecrets keeps the pull secrets of the repositories that snapshots are got from, those of models
// that are shown and not complete also on the disk, and lets go of others.
func (d *Daemon) settleSecrets(ctx context.Context) {
	d.settling.Lock()
	defer d.settling.Unlock()
	refs, err := d.store.Refs(ctx, "snapshot/")
	if err != nil {
		d.log.Error("look which pull secrets are needed", "err", err)
		return
	}
	var held []string
	for _, r := range refs {
		held = append(held, r.Sources...)
	}
	slices.Sort(held)
	err = d.secrets.Need(slices.Compact(held), func(name string) bool {
		return slices.ContainsFunc(refs, func(r store.Ref) bool {
			if !slices.Contains(r.Sources, name) || !d.snapshotter.Shows(r) {
				return false
			}
			_, err := d.store.Files(ctx, r.Table)
			return err != nil
		})
	})
	if err != nil {
		d.log.Error("pull secrets are not kept as they should be; after a restart models may have to be pulled again", "err", err)
	}
}
