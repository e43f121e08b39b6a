package setup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
)

// NewOpen returns the steps after which containerd uses registries directly again, and not
// ballastd: for pulling images while ballastd cannot be started. Models from them arrive
// unconverted, which the snapshotter refuses. No restart is needed, and a later set-up with
// Options.Registries closes the registries again.
func NewOpen(ctx context.Context, o Options, registries []string) (*Plan, error) {
	for _, r := range registries {
		if err := snippet.CheckRegistry(r); err != nil {
			return nil, fmt.Errorf("--open: %w", err)
		}
	}
	v, err := recorded(ctx, &o)
	if err != nil {
		return nil, err
	}
	if p := v.unfinished(); p != nil {
		return p, nil
	}
	r := v.record
	if v.Distro.ReadOnly {
		return nil, fmt.Errorf("remove the hosts.toml files of %v from the machine configuration: %w", registries, errdefs.ErrFailedPrecondition)
	}
	closed, err := v.closed()
	if err != nil {
		return nil, err
	}
	b := v.builder(&o, "")
	b.old, b.files = r.Files, maps.Clone(r.Files)
	for _, name := range sorted(registries) {
		left := slices.DeleteFunc(slices.Clone(closed), func(s string) bool { return s == name })
		if name != snippet.DefaultRegistry && slices.Contains(left, snippet.DefaultRegistry) { // or would become effective
			for _, p := range v.hostsFiles(name) {
				text, err := b.openHosts(name, p)
				if err != nil {
					return nil, err
				}
				if err := b.want(p, text, 0o644, noGroup, name+" is asked directly"); err != nil {
					return nil, err
				}
			}
			continue
		}
		if !slices.Contains(closed, name) {
			b.note("%s is open already", name)
			continue
		}
		for _, p := range v.hostsFiles(name) {
			if _, ours := b.old[p]; !ours {
				return nil, fmt.Errorf("%s was not written by setup: edit or remove it yourself: %w", p, errdefs.ErrFailedPrecondition)
			}
			delete(b.files, p)
		}
		b.note("models of %s arrive unconverted until you close it again: ballast setup --registry %s", name, strings.Join(r.Options.Registries, ","))
	}
	left := slices.DeleteFunc(slices.Clone(r.Options.Registries), func(s string) bool { return slices.Contains(registries, s) })
	b.fixing = true // a list that others have edited stays, too
	if err := b.list(left, 0); err != nil {
		return nil, err
	}
	if err := b.stale(noGroup); err != nil {
		return nil, err
	}
	done := *r
	done.Dirs, done.Kept = b.dirs(), b.kept // a run that was interrupted goes on later
	b.plan.next = b.begun(done)
	done.Files, done.Options.Registries = ended(b.files), left
	b.plan.done = done
	return b.plan, nil
}
