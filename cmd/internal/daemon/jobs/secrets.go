package jobs

import (
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/store"
)

// OpenSecrets returns the pull secrets of a node. If they must not be kept on disk, it removes
// those on disk.
func OpenSecrets(c *config.Config, log *slog.Logger) (*pullsecret.Secrets, error) {
	dir := filepath.Join(c.Root, dirs.Secrets)
	if !c.Upstream.KeepSecrets {
		return &pullsecret.Secrets{}, pullsecret.Remove(dir)
	}
	return pullsecret.Open(dir, log)
}

// PruneSecrets keeps the pull secrets of the repositories that snapshots are pulled from and
// forgets all others. Secrets of models that are shown and incomplete are also kept on disk.
func (s *Sources) PruneSecrets() {
	s.pruning.Lock()
	defer s.pruning.Unlock()
	refs := s.Store.Catalog.Refs(modelname.SnapshotPrefix)
	var held []string
	for _, r := range refs {
		held = append(held, r.Sources...)
	}
	slices.Sort(held)
	err := s.Secrets.Need(slices.Compact(held), func(name string) bool {
		return slices.ContainsFunc(refs, func(r store.Ref) bool {
			return slices.Contains(r.Sources, name) && s.Snapshotter.Shows(r) && !s.had(r)
		})
	})
	if err != nil {
		s.Log.Error("pull secrets cannot be kept; after a restart models may have to be pulled again", "err", err)
	}
}
