package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// freshPrevious is where the next generation is kept until it is complete.
const freshPrevious = previous + ".new"

// keepPrevious keeps all files of the installed version.
func (p *Plan) keepPrevious() error {
	old, err := p.view.disk().readRecord()
	if err != nil || old == nil { // there is no installed version
		return err
	}
	if old.Upgrading || old.RollingBack { // already kept before a crash
		p.next.Previous = old.Previous
		return nil
	}
	h := p.view.disk()
	g := &generation{Ballast: old.Ballast, Files: map[string]fs.FileMode{}}
	if err := h.purge(freshPrevious); err != nil {
		return err
	}
	if err := h.mkdir(freshPrevious, 0o700); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(p.next.Files)) {
		if f := p.next.Files[path]; f.Import != "" || f.Block { // mostly content of others, and the same for all versions
			continue
		}
		from, err := h.Follow(path)
		if err != nil {
			return err
		}
		info, err := os.Stat(from)
		if errors.Is(err, fs.ErrNotExist) {
			g.Missing = append(g.Missing, path)
			continue
		}
		if err != nil {
			return err
		}
		mode := info.Mode().Perm()
		if err := h.copy(from, filepath.Join(freshPrevious, path), mode); err != nil {
			return err
		}
		g.Files[path] = mode
	}
	p.next.Previous = g
	if p.next.RollingBack { // the current one is still needed
		return nil
	}
	return h.swapPrevious()
}

// swapPrevious makes the kept generation the previous one.
func (h host) swapPrevious() error {
	if !h.Exists(freshPrevious) { // already done before a crash
		return nil
	}
	if err := h.purge(previous); err != nil {
		return err
	}
	return h.rename(freshPrevious, previous)
}

// NewRollback returns the steps that restore the version replaced by the last upgrade: programs,
// units, drop-in and hosts.toml files as they were. A second rollback restores the newer version.
//
// It returns errdefs.ErrNotFound if there was no upgrade.
func NewRollback(ctx context.Context, o Options) (*Plan, error) {
	v, err := look(ctx, &o)
	if err != nil {
		return nil, err
	}
	if p := v.unfinished(); p != nil {
		return p, nil
	}
	if v.record != nil && v.record.Options.Packaged {
		return nil, errPackaged
	}
	if v.record == nil || v.record.Previous == nil {
		return nil, fmt.Errorf("there is no previous version: setup has not upgraded anything: %w", errdefs.ErrNotFound)
	}
	r := v.record
	o.BinDir, o.NoService = r.Options.BinDir, r.Options.NoService
	o.complete()
	b := v.builder(&o, "")
	b.old, b.files = r.Files, maps.Clone(r.Files)
	if err := b.rollback(r.Previous); err != nil {
		return nil, err
	}
	next, done := *r, *r
	next.Files, done.Files = b.files, b.files
	next.RollingBack, next.Upgrading = true, false
	next.Pending = sorted(append(slices.Clone(r.Pending), pendingDaemon, pendingContainerd))
	done.Ballast, done.RollingBack, done.Upgrading, done.Pending = r.Previous.Ballast, false, false, b.plan.Pending
	b.plan.next, b.plan.done = next, done
	b.note("ballast %s is restored, %s is kept: another --rollback returns to it", r.Previous.Ballast, api.ThisVersion().Version)
	return b.plan, nil
}

// rollback adds all steps, in the order of setting up.
func (b *builder) rollback(g *generation) error {
	paths := append(slices.Collect(maps.Keys(g.Files)), g.Missing...)
	slices.Sort(paths)
	for _, want := range []group{daemonGroup, containerdGroup, noGroup} {
		for _, p := range paths {
			if groupOf(p) != want {
				continue
			}
			if err := b.putBack(g, p, want); err != nil {
				return err
			}
		}
		switch {
		case want == daemonGroup && !b.o.NoService:
			b.startDaemon()
		case want == containerdGroup && (b.dirty[want] || b.pending(pendingContainerd)):
			b.restartContainerd("its configuration has changed; containers continue")
		}
	}
	return nil
}

// putBack adds the steps that restore a file.
func (b *builder) putBack(g *generation, p string, to group) error {
	const why = "as it was before the upgrade"
	mode, was := g.Files[p]
	if !was {
		if b.Exists(p) {
			b.add(Step{Action: Remove, Target: p, Why: why, group: to})
		}
		return nil
	}
	from, err := b.Follow(filepath.Join(previous, p))
	if err != nil {
		return err
	}
	if _, err := os.Stat(from); err != nil {
		return fmt.Errorf("the previous version is incomplete: %w", err)
	}
	is, err := b.Follow(p)
	if err != nil {
		return err
	}
	a, err := digestOf(from)
	if err != nil {
		return err
	}
	if z, err := digestOf(is); err == nil && a == z {
		return nil
	}
	f := b.files[p]
	if f.Digest != "" {
		f.Digest, f.Before = a, f.Digest
		b.files[p] = f
	}
	b.add(Step{Action: Copy, Target: p, Why: why, from: from, mode: mode, group: to})
	return nil
}
