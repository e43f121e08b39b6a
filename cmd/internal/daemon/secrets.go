package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
)

// secretsDir is the directory below the root for sealed pull secrets.
const secretsDir = "secrets"

// openSecrets returns where pull secrets are kept, and removes what is on the disk if that is not wanted
// any more. The directory is there in any case.
func openSecrets(c *config.Config, log *slog.Logger) (*pullsecret.Secrets, error) {
	dir := filepath.Join(c.Root, secretsDir)
	if !c.Upstream.KeepSecrets {
		return &pullsecret.Secrets{}, errors.Join(pullsecret.Remove(dir), os.Mkdir(dir, privateMode))
	}
	return pullsecret.Open(dir, log)
}

// doubtNames makes the names of all images private if the root is of a version that used the credentials of
// the node for everybody, and so took for public what only the node can read: such a root has no directory
// for secrets. Who asks by such a name has to be let in by the registry again, until the name has been read
// without credentials.
func doubtNames(ctx context.Context, c *config.Config, s *store.Store) error {
	if _, err := os.Stat(filepath.Join(s.Dir(), secretsDir)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(c.Upstream.DockerConfig); errors.Is(err, fs.ErrNotExist) {
		return nil // there were none
	}
	images, err := s.Images(ctx)
	if err != nil {
		return err
	}
	for _, im := range images {
		im.PrivateNames = slices.DeleteFunc(registry.Names(im), func(name string) bool {
			host, _, _ := strings.Cut(name, "/")
			return slices.ContainsFunc(c.Carton, func(m config.Carton) bool { return m.Registry == host }) // fetched without any
		})
		if err := s.PutImage(ctx, im); err != nil {
			return err
		}
	}
	return nil
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
			return slices.Contains(r.Sources, name) && d.snapshotter.Shows(r) && !d.had(ctx, r)
		})
	})
	if err != nil {
		d.log.Error("pull secrets are not kept as they should be; after a restart models may have to be pulled again", "err", err)
	}
}
