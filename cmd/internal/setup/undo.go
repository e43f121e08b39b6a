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

	"github.com/ballast-dev/ballast/cmd/internal/ctrd"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// before is the host before a run: with it the run is undone. It is part of the record until the run has
// ended, so a crash loses nothing of it, and the run that follows keeps it.
type before struct {
	// Files are the files that the run changes, which are kept below undoDir; the mode of those that
	// did not exist is 0.
	Files map[string]fs.FileMode `json:"files,omitempty"`

	// Dirs are the directories that the run makes, sorted.
	Dirs []string `json:"dirs,omitempty"`

	// Record means that there was a record, which is kept below undoDir.
	Record bool `json:"record,omitempty"`

	// Daemon means that ballastd ran, and Enabled has its units that started at boot.
	Daemon  bool     `json:"daemon,omitempty"`
	Enabled []string `json:"enabled,omitempty"`

	// Well is what of containerd was well; nil if containerd did not answer.
	Well *ctrd.Health `json:"well,omitempty"`

	// Undoing is why the run is being undone; "" while it is not.
	Undoing string `json:"undoing,omitempty"`
}

// kept is where a file is kept until the run that changes it has ended.
func kept(p string) string { return filepath.Join(undoDir, p) }

// changesFile reports whether a step changes a file of the host that setup can restore.
func (s *Step) changesFile() bool {
	return slices.Contains([]Action{Copy, Write, Restore, Remove}, s.Action)
}

// journal keeps what a plan is about to change, besides what an unfinished run has kept already.
func (p *Plan) journal() error {
	h, b := p.view.disk(), p.next.Before
	if b == nil {
		b = &before{Files: map[string]fs.FileMode{}, Record: p.view.record != nil, Daemon: p.view.running.daemon, Enabled: slices.DeleteFunc(p.view.installed(), func(u string) bool { return !p.view.Exists(wantsLink(u)) })}
		if p.view.State != nil {
			well := p.view.State.Health()
			b.Well = &well
		}
		if err := h.purge(undoDir); err != nil {
			return err
		}
		if b.Record {
			if err := h.keep(stateFile); err != nil {
				return err
			}
		}
		p.next.Before = b
	}
	dirs := slices.Clone(b.Dirs)
	p.next.Files = maps.Clone(p.next.Files) // it can be that of the record
	for _, s := range p.Steps {
		if err := p.restores(s); err != nil {
			return err
		}
		if !s.changesFile() || p.view.IsDir(s.Target) {
			continue
		}
		dirs = append(dirs, h.missingDirs(s.Target)...)
		if _, ok := b.Files[s.Target]; ok {
			continue
		}
		mode, err := h.modeOf(s.Target)
		if errors.Is(err, fs.ErrNotExist) {
			b.Files[s.Target] = 0
			continue
		}
		if err != nil {
			return err
		}
		if err := h.keep(s.Target); err != nil {
			return err
		}
		b.Files[s.Target] = mode
	}
	b.Dirs = sorted(dirs)
	return nil
}

// restores records the content of others that a step puts in the place of what setup wrote.
func (p *Plan) restores(s Step) (err error) {
	f, known := p.next.Files[s.Target]
	to := digest.FromBytes(s.data)
	switch {
	case !known:
		return nil
	case s.Action == Copy:
		if to, err = digestOf(s.from); err != nil {
			return err
		}
	case s.Action != Restore:
		return nil
	}
	if !f.wrote(to) {
		f.After = to
		p.next.Files[s.Target] = f
	}
	return nil
}

// modeOf returns the permissions of a file.
func (h host) modeOf(p string) (fs.FileMode, error) {
	name, err := h.Follow(p)
	if err != nil {
		return 0, err
	}
	info, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return info.Mode().Perm(), nil
}

// keep copies a file to below undoDir.
func (h host) keep(p string) error {
	from, err := h.Follow(p)
	if err != nil {
		return err
	}
	return h.copy(from, kept(p), 0o600)
}

// digestAt returns the digest of a file, or "" if it does not exist.
func (h host) digestAt(p string) (digest.Digest, error) {
	name, err := h.Follow(p)
	if err != nil {
		return "", err
	}
	d, err := digestOf(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return d, err
}

// putBack restores a file that a run has changed, and reports whether it did. A file that somebody has
// edited since stays.
func (p *Plan) putBack(path string, mode fs.FileMode) (changed bool, err error) {
	h := p.view.disk()
	now, err := h.digestAt(path)
	if err != nil {
		return false, err
	}
	was := digest.Digest("")
	if mode != 0 {
		if was, err = h.digestAt(kept(path)); err != nil {
			return false, err
		}
		if was == "" {
			return false, fmt.Errorf("%s is lost: %w", kept(path), errdefs.ErrDataLoss)
		}
	}
	switch f := p.next.Files[path]; {
	case now == was:
		return false, nil
	case now != "" && f.Digest != "" && !f.wrote(now) && now != f.After:
		p.Notes = append(p.Notes, fmt.Sprintf("%s was edited while setup ran, and stays", path))
		return false, nil
	case mode == 0:
		return true, h.remove(path)
	}
	from, err := h.Follow(kept(path))
	if err != nil {
		return false, err
	}
	to, err := h.Follow(path)
	if err != nil {
		return false, err
	}
	rel, err := filepath.Rel(h.Root, to)
	if err != nil {
		return false, err
	}
	return true, h.copy(from, "/"+rel, mode)
}

// undo restores the host as it was before the run, in the order of a removal: what uses ballast first. It
// can be repeated after a crash.
func (p *Plan) undo(ctx context.Context, why string) error {
	h, b := p.view.disk(), p.next.Before
	if b.Undoing == "" {
		b.Undoing = why
		if err := h.writeRecord(&p.next); err != nil {
			return err
		}
	}
	var changed [3]bool
	for _, g := range []group{noGroup, containerdGroup, daemonGroup} {
		if g == daemonGroup {
			fresh := slices.DeleteFunc(p.view.installed(), func(u string) bool {
				mode, changed := b.Files[filepath.Join(unitDir, u)]
				return slices.Contains(b.Enabled, u) && (!changed || mode != 0)
			})
			if err := p.disable(ctx, fresh); err != nil {
				return err
			}
		}
		for _, path := range slices.Sorted(maps.Keys(b.Files)) {
			if groupOf(path) != g {
				continue
			}
			done, err := p.putBack(path, b.Files[path])
			if err != nil {
				return fmt.Errorf("restore %s: %w", path, err)
			}
			changed[g] = changed[g] || done
		}
		if g == containerdGroup && slices.Contains(p.next.Pending, pendingContainerd) && b.Well != nil && p.view.Systemd {
			if err := p.restart(ctx); err != nil {
				return fmt.Errorf("containerd does not start with its old configuration; see journalctl -u %s: %w", p.view.Unit, err)
			}
		}
	}
	off := slices.DeleteFunc(slices.Clone(b.Enabled), func(u string) bool { return p.view.Exists(wantsLink(u)) || !p.view.Exists(filepath.Join(unitDir, u)) })
	if len(off) > 0 && p.view.Systemd {
		if err := errors.Join(p.systemctl(ctx, "daemon-reload"), p.systemctl(ctx, append([]string{"enable"}, off...)...)); err != nil {
			return err
		}
	}
	if changed[daemonGroup] && p.view.Systemd {
		if err := p.systemctl(ctx, "daemon-reload"); err != nil {
			return err
		}
		if b.Daemon && p.view.hasUnit(serviceName) {
			if err := p.start(ctx); err != nil {
				return fmt.Errorf("ballastd does not start again as it was; see journalctl -u ballastd: %w", err)
			}
		}
	}
	for _, d := range slices.Backward(b.Dirs) {
		if err := h.remove(d); err != nil {
			return err
		}
	}
	return p.forget()
}

// sweep removes what crashes have left of the writing of the files that a plan knows.
func (p *Plan) sweep() error {
	h, paths := p.view.disk(), []string{stateFile}
	paths = slices.AppendSeq(paths, maps.Keys(p.next.Files))
	if p.next.Before != nil {
		paths = slices.AppendSeq(paths, maps.Keys(p.next.Before.Files))
	}
	for _, path := range paths {
		if err := errors.Join(h.sweep(path), h.sweep(filepath.Join(originals, path))); err != nil {
			return err
		}
	}
	return nil
}

// forget restores the record of before the run, or removes what the run has recorded.
func (p *Plan) forget() error {
	h := p.view.disk()
	if err := p.sweep(); err != nil {
		return err
	}
	old := &record{}
	if p.next.Before.Record {
		var err error
		if old, err = h.keptRecord(); err != nil {
			return err
		}
	}
	if err := h.purgeRestored("/", func(path string) bool { return old.Files[path].Original }); err != nil {
		return err
	}
	if p.next.Before.Record {
		return errors.Join(h.prune(originals), h.writeRecord(old), h.purge(undoDir))
	}
	for _, path := range []string{undoDir, stateFile} {
		if err := h.purge(path); err != nil {
			return err
		}
	}
	return h.prune(stateDir)
}

// prune removes the empty directories of a tree.
func (h host) prune(dir string) error {
	names, err := h.List(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if p := filepath.Join(dir, n); h.IsDir(p) {
			if err := h.prune(p); err != nil {
				return err
			}
		}
	}
	return h.remove(dir)
}

// unfinished returns the plan that completes an undoing that was interrupted, or nil.
func (v *view) unfinished() *Plan {
	if v.record == nil || v.record.Before == nil || v.record.Before.Undoing == "" {
		return nil
	}
	return &Plan{Distro: v.Distro.Name, view: v, next: *v.record, Steps: []Step{
		{Action: Undo, Target: stateFile, Why: "the last run failed and was not undone completely: " + v.record.Before.Undoing},
	}}
}
