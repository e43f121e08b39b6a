package jobs

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/cmd/internal/dirs"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
)

// OpenSecrets returns the pull secrets of a node. If they must not be kept on disk, it removes
// those on disk. The directory exists afterwards in any case: see DoubtNames.
func OpenSecrets(c *config.Config, log *slog.Logger) (*pullsecret.Secrets, error) {
	dir := filepath.Join(c.Root, dirs.Secrets)
	if !c.Upstream.KeepSecrets {
		return &pullsecret.Secrets{}, errors.Join(pullsecret.Remove(dir), os.Mkdir(dir, 0o700))
	}
	return pullsecret.Open(dir, log)
}

// DoubtNames makes the names of all images private if the store was written by an earlier version
// that used the credentials of the node for all callers, and so recorded names as public that only
// the node can read: its root has no directory for secrets. Such a name is public again after it
// has been read without credentials. DoubtNames is called before OpenSecrets.
func DoubtNames(ctx context.Context, c *config.Config, s *store.Store) error {
	if _, err := os.Stat(filepath.Join(s.Dir(), dirs.Secrets)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(c.Upstream.DockerConfig); errors.Is(err, fs.ErrNotExist) {
		return nil // the node has no credentials
	}
	images, err := s.Images(ctx)
	if err != nil {
		return err
	}
	for _, im := range images {
		im.PrivateNames = slices.DeleteFunc(registry.Names(im), func(name string) bool {
			host, _, _ := strings.Cut(name, "/")
			return slices.ContainsFunc(c.Carton, func(m config.Carton) bool { return m.Registry == host }) // downloaded without credentials
		})
		if err := s.PutImage(ctx, im); err != nil {
			return err
		}
	}
	return nil
}

// SettleSecrets keeps the pull secrets of the repositories that snapshots are pulled from and
// forgets all others. Secrets of models that are shown and incomplete are also kept on disk.
func (s *Sources) SettleSecrets(ctx context.Context) {
	s.settling.Lock()
	defer s.settling.Unlock()
	refs, err := s.Store.Refs(ctx, api.SnapshotPrefix)
	if err != nil {
		s.Log.Error("cannot look which pull secrets are needed", "err", err)
		return
	}
	var held []string
	for _, r := range refs {
		held = append(held, r.Sources...)
	}
	slices.Sort(held)
	err = s.Secrets.Need(slices.Compact(held), func(name string) bool {
		return slices.ContainsFunc(refs, func(r store.Ref) bool {
			return slices.Contains(r.Sources, name) && s.Snapshotter.Shows(r) && !s.had(ctx, r)
		})
	})
	if err != nil {
		s.Log.Error("pull secrets cannot be kept; after a restart models may have to be pulled again", "err", err)
	}
}
