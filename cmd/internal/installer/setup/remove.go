package setup

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// NewRemoval returns the steps that remove ballast from a host, with all that it made there, including
// models. The order is the reverse of a set-up: first registries are used without the facade again,
// then ballast is removed from containerd while ballastd still removes its snapshots, then ballastd
// is removed. What the record does not have, or was edited since, stays and is named.
//
// It returns errdefs.ErrFailedPrecondition, with their names, while containers use ballast, unless
// Options.Force is set: then their files stay, and another removal takes them. It also does while there are snapshots,
// and containerd does not answer: containers that are stopped mount nothing, so by force their files go. On a host that
// setup did not set up there are no steps. By force, a removal also takes the place of the undoing of a run that cannot
// be completed.
func NewRemoval(ctx context.Context, o Options) (*Plan, error) {
	v, err := recorded(ctx, &o)
	if v != nil && errdefs.IsNotFound(err) { // nothing of ballast is here, besides what a crash before the first change has left
		p := &Plan{Notes: []string{strings.TrimSuffix(err.Error(), ": "+errdefs.ErrNotFound.Error())}, view: v, next: record{Kept: v.kept}}
		if v.Exists(stateDir) {
			p.Steps = []Step{{Action: Purge, Target: stateDir, Why: "the records of setup"}}
		}
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if v.Distro.ReadOnly {
		return &Plan{Distro: v.Distro.Name, Notes: []string{"remove the additions from the machine configuration; they cannot be removed on the node"}}, nil
	}
	if p := v.unfinished(); p != nil && !o.Force {
		return p, nil
	}
	found := v.record
	o.placed(found.Options)
	b := v.builder(&o, "")
	b.old = found.Files
	busy, err := v.users(ctx)
	if err != nil {
		return nil, err
	}
	if len(busy) > 0 && !o.Force {
		return nil, fmt.Errorf("these containers or mounts use ballast; end them first (kubectl drain, ballast unmount), or leave their files with --force:\n  %s: %w", strings.Join(busy, "\n  "), errdefs.ErrFailedPrecondition)
	}
	if v.State == nil && v.hasSnapshots() && !o.Force {
		return nil, fmt.Errorf("containerd does not answer (%v), so it is not known which containers use ballast, also those that are stopped: start it (systemctl start %s), or remove their files, too, with --force: %w", v.Silent, v.Unit, errdefs.ErrFailedPrecondition)
	}
	next := *found
	if found.Run != nil { // by force, the removal takes the place of an undoing
		run := *found.Run
		run.Undoing, next.Run = "", &run
	}
	next.Removing, next.Pending = true, sorted(append(slices.Clone(found.Pending), pendingContainerd))
	if found.Options.Docker {
		next.Pending = sorted(append(next.Pending, pendingDocker))
	}
	b.plan.next = next
	if err := b.remove(ctx, found, busy); err != nil {
		return nil, err
	}
	b.plan.done = b.plan.next
	b.plan.done.Run = nil
	return b.plan, nil
}

// remove adds all steps.
func (b *builder) remove(ctx context.Context, found *record, busy []string) error {
	var hosts, containerd, units, docker, rest []string
	for _, p := range slices.Sorted(maps.Keys(found.Files)) {
		switch g := groupOf(p); {
		case filepath.Dir(p) == unitDir:
			units = append(units, p)
		case g == noGroup:
			hosts = append(hosts, p) // the list of them comes first
		case g == containerdGroup:
			containerd = append(containerd, p)
		case g == dockerGroup:
			docker = append(docker, p)
		default:
			rest = append(rest, p) // settings, then programs
		}
	}
	if len(docker) > 0 && b.running.dockerHangs() && !b.o.Force {
		return b.running.hung()
	}
	if err := b.undoAll(docker, dockerGroup, "Docker has its former storage driver"); err != nil {
		return err
	}
	if b.dirty[dockerGroup] || found.Removing && slices.Contains(found.Pending, pendingDocker) {
		b.restartDocker(false, "it lists the images and containers of its former storage driver")
	}
	if err := b.undoAll(hosts, noGroup, "the registry is asked directly"); err != nil {
		return err
	}
	if err := b.removeImages(ctx); err != nil {
		return err
	}
	slices.Reverse(containerd) // the order of the drop-in and its import does not matter
	if err := b.undoAll(containerd, containerdGroup, "containerd works without ballast"); err != nil {
		return err
	}
	if b.dirty[containerdGroup] || found.Removing && slices.Contains(found.Pending, pendingContainerd) || b.running.loaded {
		switch {
		case b.o.NoRestart:
			b.note("restart containerd: systemctl restart %s", b.Unit)
		case b.Systemd:
			b.step(Restart, b.Unit, "it unloads ballast; containers continue")
		}
	}
	if b.o.NoService && b.running.daemon {
		if !b.o.WithDaemon {
			b.note("ballastd runs elsewhere, and its files stay while it does: stop it, and run this command again")
		}
		return nil
	}
	if (len(units) > 0 || b.o.Packaged && !b.o.NoService) && b.Systemd {
		b.step(Disable, strings.Join(b.installed(), " "), "it is no longer needed")
	}
	if len(busy) > 0 { // the programs are needed to complete it
		b.note("%s stays, because it is in use; run this command again when that has ended: %s", b.Config.Root, strings.Join(busy, ", "))
		return b.undoAll(units, noGroup, "the unit of ballastd")
	}
	d := filepath.Join(b.o.BinDir, "ballastd")
	program, err := b.disk().digestAt(d)
	if err != nil {
		return err
	}
	if b.o.Packaged && program != "" || b.old[d].wrote(program) { // and not one of others
		b.step(Unmount, d, "the lazy mount")
	}
	if err := b.undoAll(units, noGroup, "the unit of ballastd"); err != nil {
		return err
	}
	others, err := dirs.Foreign(b.Config, b.Root)
	if err != nil {
		return err
	}
	for _, d := range dirs.All(b.Config) {
		own, _, err := d.Names(b.Root)
		if err != nil {
			return err
		}
		if len(own) == 0 && !b.empties(d.Path) {
			continue
		}
		why := "what ballastd made there"
		if stays := slices.DeleteFunc(slices.Clone(others), func(p string) bool { return filepath.Dir(p) != d.Path }); len(stays) > 0 {
			why += "; not of ballast, and stays: " + strings.Join(stays, ", ")
		}
		b.step(Purge, d.Path, why)
	}
	if err := b.undoAll(rest, noGroup, "it is no longer needed"); err != nil {
		return err
	}
	b.step(Purge, stateDir, "the records of setup")
	return nil
}

// removeImages adds the removal of what only ballast can show.
func (b *builder) removeImages(ctx context.Context) error {
	if b.State == nil && b.hasSnapshots() {
		b.note("containerd does not answer, so images of models and records of snapshots stay in containerd, also those of stopped containers; remove them afterwards: ctr -n NAMESPACE containers rm, ctr -n NAMESPACE images rm")
	}
	if b.State == nil || !b.running.loaded {
		return nil
	}
	all, err := b.allContents(ctx)
	if err != nil {
		return fmt.Errorf("list the images in ballast: %w", err)
	}
	if len(all.missing) > 0 {
		text := fmt.Sprintf("containerd has only the unpacked files of these images (discard_unpacked_layers), and they are in ballast; they must be pulled again afterwards: %s", strings.Join(all.missing, ", "))
		if !b.o.Force {
			return fmt.Errorf("%s. Pull them with another snapshotter first, or use --force: %w", text, errdefs.ErrFailedPrecondition)
		}
		b.note("%s", text)
	}
	if !b.running.daemon {
		b.note("ballastd does not answer, so images of models and snapshots stay in containerd; start it and run this command again, or remove them afterwards: ctr -n NAMESPACE images rm, ctr -n NAMESPACE snapshots --snapshotter ballast rm")
		return nil
	}
	b.step(Images, "images", fmt.Sprintf("%d images of models, and all snapshots of ballast; other images stay, and are unpacked again", len(all.models)))
	return nil
}

// empties reports whether a path is an empty directory.
func (b *builder) empties(p string) bool {
	names, err := b.List(p)
	return err == nil && len(names) == 0 && b.IsDir(p)
}

// undoAll adds the steps that undo files. Directories that were made for them and are empty then go when the run ends.
func (b *builder) undoAll(paths []string, g group, why string) error {
	for _, p := range paths {
		steps, err := b.undo(p, b.old[p])
		if err != nil {
			return err
		}
		for _, s := range steps {
			s.Why, s.group = why, g
			b.add(s)
		}
	}
	return nil
}

// edited is the suffix of a file of containerd that was edited, and that containerd must not read any more.
const edited = ".edited"

// undo returns the steps that undo a file: it gets the version of others that it had, or our part is removed. A file
// that was edited since it was written stays; one that containerd reads would keep it from working without ballast,
// so undo returns errdefs.ErrFailedPrecondition for it, or by force renames it.
func (b *builder) undo(p string, f file) ([]Step, error) {
	now, err := b.disk().digestAt(p)
	switch {
	case err != nil:
		return nil, err
	case now == "" || now == f.Was:
		return nil, nil
	case f.ofOthers():
		return b.undoPart(p, f, now)
	case f.wrote(now) && f.Was == "":
		return []Step{{Action: Remove, Target: p, found: now}}, nil
	case f.wrote(now) && b.Exists(kept(p, f.Was)):
		return []Step{{Action: Restore, Target: p, digest: f.Was, found: now}}, nil
	case f.wrote(now):
		return nil, fmt.Errorf("%s, the original of %s, is lost: restore it, or remove %s yourself: %w", kept(p, f.Was), p, p, errdefs.ErrFailedPrecondition)
	case groupOf(p) != containerdGroup:
		b.note("%s was edited after setup wrote it, and stays: remove it yourself", p)
		return nil, nil
	case !b.o.Force:
		return nil, fmt.Errorf("%s was edited after setup wrote it, and containerd would not work with it when ballast is gone: move the additions to another file, or use --force, which renames it to %s: %w", p, filepath.Base(p)+edited, errdefs.ErrFailedPrecondition)
	}
	have, mode, err := b.Read(p)
	if err != nil {
		return nil, err
	}
	replaced, err := b.disk().digestAt(p + edited)
	b.note("%s was edited after setup wrote it, and is kept as %s", p, p+edited)
	return []Step{{Action: Write, Target: p + edited, data: have, mode: mode, found: replaced}, {Action: Remove, Target: p, found: now}}, err
}

// imported returns the names of drop-ins of others that an import brings into effect.
func (b *builder) imported(glob string) ([]string, error) {
	if glob == "" {
		return nil, nil
	}
	names, err := b.List(filepath.Dir(glob))
	return slices.DeleteFunc(names, func(n string) bool {
		return n == dropInName || filepath.Ext(n) != filepath.Ext(glob)
	}), err
}

// undoPart returns the step that removes our part of a file of others, whose digest is now. Where nothing else has
// changed, the file becomes what it was, byte by byte.
func (b *builder) undoPart(p string, f file, now digest.Digest) ([]Step, error) {
	have, mode, err := b.Read(p)
	if err != nil {
		return nil, err
	}
	text, before := string(have), ""
	if f.Was != "" {
		if before, err = b.Text(kept(p, f.Was)); err != nil {
			return nil, err
		}
	}
	if others, err := b.imported(f.Import); err != nil {
		return nil, err
	} else if len(others) > 0 {
		b.note("%s keeps the import of %s, because others have files there: %s", p, f.Import, strings.Join(others, ", "))
		return nil, nil
	}
	fresh := withoutBlock(text)
	alone := fresh == withoutBlock(withBlock(before, ""))
	if f.Import != "" {
		if fresh, err = dropImport(text, f.Import); err != nil {
			return nil, fmt.Errorf("%s: %w; take %q out of its imports by hand", p, err, f.Import)
		}
		whole, err := withImport(before, versionLine.FindString(text), f.Import)
		alone = err == nil && text == whole
	}
	if f.Docker {
		if fresh, err = withoutDocker(text, before); err != nil {
			return nil, err
		}
		whole, err := withDocker(before)
		alone = err == nil && text == whole
	}
	switch {
	case fresh == text:
		return nil, nil
	case f.Docker && f.Was != "" && !b.Exists(kept(p, f.Was)): // it can have had other values of our keys
		return nil, fmt.Errorf("%s, the original of %s, is lost: restore it, or take %s and %s.%s out of %[2]s yourself: %[6]w", kept(p, f.Was), p, dockerDriver, dockerFeatures, dockerStore, errdefs.ErrFailedPrecondition)
	case alone && f.Was != "":
		fresh = before
	case alone:
		return []Step{{Action: Remove, Target: p, found: now}}, nil
	}
	return []Step{{Action: Restore, Target: p, data: []byte(fresh), mode: mode, found: now}}, nil
}

// empty removes from a directory of the daemon what the daemon made, and the directory if nothing is left.
func (p *Plan) empty(path string) error {
	for _, d := range dirs.All(p.view.Config) {
		if d.Path != path {
			continue
		}
		e, err := d.Empty(p.view.Root)
		if err != nil {
			return err
		}
		if len(e.Left) > 0 {
			p.Notes = append(p.Notes, fmt.Sprintf("%s stays: ballast did not make %s", path, strings.Join(e.Left, ", ")))
		} else if e.Kept != "" {
			p.Notes = append(p.Notes, fmt.Sprintf("%s is empty and stays: %s", path, e.Kept))
		}
	}
	return nil
}
