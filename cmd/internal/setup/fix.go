package setup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/containerdversion"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// NewFix returns what can be repaired in a set-up without a choice: files of ours that are missing
// or have the content of an older version, the import, units that are not enabled, a daemon that
// does not run, containerd that has not read its configuration, permissions that are too wide.
// Programs stay as they are, and so do edited files. No registry is opened or closed.
//
// It returns errdefs.ErrNotFound if ballast is not set up on the host.
func NewFix(ctx context.Context, o Options) (*Plan, error) {
	v, r, err := find(ctx, &o)
	if err != nil {
		return nil, err
	}
	if r.Removing {
		return nil, fmt.Errorf("a removal was not completed: run ballast setup --remove to complete it: %w", errdefs.ErrFailedPrecondition)
	}
	if len(r.Files) == 0 {
		return nil, fmt.Errorf("ballast is not set up on this node; run ballast setup: %w", errdefs.ErrNotFound)
	}
	want := r.Options
	want.Host, want.NoRestart = o.Host, o.NoRestart
	want.complete()
	if v.record == nil {
		if err := v.guess(&want, r); err != nil {
			return nil, err
		}
	}
	b := v.builder(&want, "")
	b.old, b.fixing = r.Files, true
	if b.plan, err = b.build(); err != nil {
		return nil, err
	}
	return b.plan, b.modes()
}

// guess derives the choices from a drop-in that was written by hand.
func (v *view) guess(o *Options, r *record) error {
	for p := range r.Files {
		if filepath.Base(p) != dropInName {
			continue
		}
		text, err := v.text(p)
		if err != nil {
			return err
		}
		drop := view{}
		if err := toml.Unmarshal([]byte(text), &drop.parsed); err != nil {
			return fmt.Errorf("%s: %w: %w", p, err, errdefs.ErrFailedPrecondition)
		}
		for name := range containerdversion.Runtimes(drop.plugins()) {
			o.RuntimeHandler = name
		}
		all, _ := containerdversion.ImageSetting(drop.plugins(), "snapshotter").(string)
		o.SnapshotterOnly = all == "" && o.RuntimeHandler == ""
	}
	return nil
}

// private returns the paths that only root may access.
func (b *builder) private() []string {
	return []string{b.config.Root, filepath.Dir(b.config.Address), stateDir}
}

// modes adds the removal of permissions of other users.
func (b *builder) modes() error {
	for _, p := range b.private() {
		name, err := b.follow(p)
		if err != nil {
			return err
		}
		info, err := os.Stat(name)
		if err != nil || !info.IsDir() || slices.Contains([]fs.FileMode{0o700, 0o711}, info.Mode().Perm()) {
			continue // it is missing, or correct
		}
		b.add(Step{Action: Chmod, Target: p, Why: fmt.Sprintf("other users can list it: mode %o", info.Mode().Perm()), mode: 0o700})
	}
	for _, p := range []string{configFile, b.config.Upstream.DockerConfig} {
		name, err := b.follow(p)
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

// openForm reports whether a hosts.toml uses the facade first and the registry if the facade does
// not answer.
func openForm(text string) bool {
	return !strings.HasPrefix(text, "server") && !strings.Contains(text, "\nserver")
}
