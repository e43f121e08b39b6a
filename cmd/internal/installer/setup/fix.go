package setup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
)

// NewFix returns what can be repaired in a set-up without a choice: files of ours that are missing
// or have the content of an older version, the import, units that are not enabled, a daemon that
// does not run, containerd that has not read its configuration, permissions that are too wide.
// Programs stay as they are, and so do edited files. No registry is opened or closed.
//
// It returns errdefs.ErrNotFound if ballast is not set up on the host.
func NewFix(ctx context.Context, o Options) (*Plan, error) {
	want, err := Recorded(o.Host)
	if err != nil {
		return nil, err
	}
	want.Host, want.NoRestart = o.Host, o.NoRestart
	v, err := recorded(ctx, &want)
	if err != nil {
		return nil, err
	}
	if p := v.unfinished(); p != nil {
		return p, nil
	}
	if v.record.Removing {
		return nil, fmt.Errorf("a removal was not completed: run ballast setup --remove to complete it: %w", errdefs.ErrFailedPrecondition)
	}
	b := v.builder(&want, "")
	b.old, b.fixing = v.record.Files, true
	if b.plan, err = b.build(ctx); err != nil {
		return nil, err
	}
	return b.plan, b.modes()
}

// private returns the directories of ballast, which only root may access. A directory that is shared with
// others is refused before, so none of these is.
func (b *builder) private() []string {
	return []string{b.Config.Root, filepath.Dir(b.Config.Address), stateDir}
}

// modes adds the removal of permissions of other users.
func (b *builder) modes() error {
	for _, p := range b.private() {
		name, err := b.Follow(p)
		if err != nil {
			return err
		}
		info, err := os.Stat(name)
		if err != nil || !info.IsDir() || slices.Contains([]fs.FileMode{0o700, 0o711}, info.Mode().Perm()) {
			continue // it is missing, or correct
		}
		b.add(Step{Action: Chmod, Target: p, Why: fmt.Sprintf("other users can list it: mode %o", info.Mode().Perm()), mode: 0o700})
	}
	for _, p := range []string{configFile, b.Config.Upstream.DockerConfig} {
		name, err := b.Follow(p)
		if err != nil {
			return err
		}
		info, err := os.Stat(name)
		if err != nil {
			continue // it is missing
		}
		if mode := info.Mode().Perm(); mode&0o022 != 0 || p != configFile && mode&0o077 != 0 {
			b.add(Step{Action: Chmod, Target: p, Why: fmt.Sprintf("other users can read or change it: mode %o", mode), mode: mode &^ 0o077})
		}
	}
	return nil
}
