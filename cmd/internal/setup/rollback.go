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
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// freshPrevious is where the next generation is kept until it is complete.
const freshPrevious = previous + ".new"

// spentPrevious is where the generation before is until it is removed.
const spentPrevious = previous + ".old"

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
	g := &generation{Ballast: old.Ballast, Schema: old.Schema, Files: map[string]fs.FileMode{}}
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
	p.next.Previous = g // the earlier one stays until the end: undoing needs it
	return nil
}

// swapPrevious makes the kept generation the previous one. After a crash, it does what is left to do.
func (h host) swapPrevious() error {
	if h.Exists(freshPrevious) {
		if h.Exists(previous) {
			if err := errors.Join(h.purge(spentPrevious), h.rename(previous, spentPrevious)); err != nil {
				return err
			}
		}
		if err := h.rename(freshPrevious, previous); err != nil {
			return err
		}
	}
	return h.purge(spentPrevious)
}

// NewRollback returns the steps that restore the version replaced by the last upgrade: programs,
// units, drop-in and hosts.toml files as they were. A second rollback restores the newer version.
//
// It returns errdefs.ErrNotFound if there was no upgrade, and errdefs.ErrFailedPrecondition, unless Options.Force
// is set, if the version cannot open the store, whose schema has changed since.
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
	if r.Removing {
		return nil, fmt.Errorf("a removal was not completed: run ballast setup --remove to complete it: %w", errdefs.ErrFailedPrecondition)
	}
	o.BinDir, o.NoService = r.Options.BinDir, r.Options.NoService
	o.complete()
	b := v.builder(&o, "")
	b.old, b.files = r.Files, maps.Clone(r.Files)
	b.kept = previous
	to, replacing := r.Previous, b.Exists(freshPrevious)
	switch {
	case r.Upgrading && replacing: // of an upgrade that has not ended
		b.kept = freshPrevious
	case r.RollingBack: // the last run has not ended, and the record has the version that it replaces
		old, err := v.disk().keptRecord()
		if err != nil {
			return nil, err
		}
		if to = old.Previous; !replacing || !b.Exists(previous) { // only its end is missing
			to = &generation{Ballast: to.Ballast, Schema: to.Schema}
		}
	}
	if err := v.opens(to); err != nil && !o.Force {
		return nil, err
	}
	if err := b.rollback(to); err != nil {
		return nil, err
	}
	next, done := *r, *r
	next.Files, done.Files = maps.Clone(r.Files), b.files
	maps.Copy(next.Files, b.files)
	next.Dirs = b.dirs()
	done.Dirs = next.Dirs
	next.RollingBack, next.Upgrading = true, false
	next.Pending = sorted(append(slices.Clone(r.Pending), pendingDaemon, pendingContainerd))
	done.Ballast, done.Schema, done.RollingBack, done.Upgrading, done.Pending = to.Ballast, to.Schema, false, false, b.plan.Pending
	b.plan.next, b.plan.done = next, done
	b.note("ballast %s is restored, %s is kept: another --rollback returns to it", to.Ballast, api.ThisVersion().Version)
	return b.plan, nil
}

// opens returns errdefs.ErrFailedPrecondition, with what to do, if a version of ballast cannot open the store.
func (v *view) opens(g *generation) error {
	root, err := v.Follow(v.Config.Root)
	if err != nil {
		return err
	}
	schema, err := store.Schema(root)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	has, hasErr := strconv.Atoi(schema)
	reads, readsErr := strconv.Atoi(g.Schema)
	if hasErr != nil || readsErr != nil || has <= reads {
		return nil
	}
	return fmt.Errorf("ballast %s cannot open the store: since the upgrade, %s has schema %d, and that version reads up to %d. Keep this version; or remove ballast with its models (ballast setup --remove), and set %s up again: %w",
		g.Ballast, v.Config.Root, has, reads, g.Ballast, errdefs.ErrFailedPrecondition)
}

// rollback adds all steps, in the order of setting up.
func (b *builder) rollback(g *generation) error {
	paths := append(slices.Collect(maps.Keys(g.Files)), g.Missing...)
	slices.Sort(paths)
	for _, want := range []group{daemonGroup, containerdGroup, noGroup} {
		if off := b.withoutUnits(g); want == daemonGroup && len(off) > 0 {
			b.step(Disable, strings.Join(off, " "), "the previous version has none")
		}
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

// withoutUnits returns the units that a rollback removes.
func (b *builder) withoutUnits(g *generation) []string {
	return slices.DeleteFunc(b.installed(), func(u string) bool {
		f, ours := b.old[filepath.Join(unitDir, u)]
		return !ours || f.Original || !slices.Contains(g.Missing, filepath.Join(unitDir, u))
	})
}

// putBack adds the steps that restore a file. One that others have written or edited since stays.
func (b *builder) putBack(g *generation, p string, to group) error {
	const why = "as it was before the upgrade"
	now, err := b.disk().digestAt(p)
	if err != nil {
		return err
	}
	f, known := b.old[p]
	ours := now == "" || known && f.wrote(now)
	mode, was := g.Files[p]
	if !was {
		switch {
		case ours:
			delete(b.files, p)
		case known:
			b.note("%s was changed after setup wrote it, and stays", p)
		}
		if now != "" && ours && !f.Original {
			b.add(Step{Action: Remove, Target: p, Why: why, group: to})
		} else if now != "" && ours {
			steps, err := b.restore(p, f)
			if err != nil {
				return err
			}
			for _, s := range steps {
				s.Why, s.group = why, to
				b.add(s)
			}
		}
		return nil
	}
	from, err := b.Follow(filepath.Join(b.kept, p))
	if err != nil {
		return err
	}
	then, err := digestOf(from)
	if err != nil {
		return fmt.Errorf("the previous version is incomplete: %w", err)
	}
	switch {
	case now == then:
		return nil
	case !ours:
		b.note("%s was changed after setup wrote it, and is not replaced", p)
		return nil
	}
	f.Digest, f.Before = then, now
	b.files[p] = f
	b.add(Step{Action: Copy, Target: p, Why: why, from: from, mode: mode, group: to})
	return nil
}
