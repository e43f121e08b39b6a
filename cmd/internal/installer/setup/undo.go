package setup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/opencontainers/go-digest"
)

// A run is one that has not ended: the host before it, with which it is undone. It is part of the record, so a crash
// loses nothing of it, and the run that follows goes on with it.
type run struct {
	// Old is the record before the run; nil if there was none.
	Old *record `json:"old,omitempty"`

	// Files are the versions before the run of the files that it changes, which are kept; "" of those that did not
	// exist.
	Files map[string]digest.Digest `json:"files"`

	// Puts are the contents that the run gives them.
	Puts versions `json:"puts"`

	// Dirs are the directories that the run makes, sorted.
	Dirs []string `json:"dirs,omitempty"`

	// Docker means that Docker ran.
	Docker bool `json:"docker,omitempty"`

	// Daemon means that ballastd ran, and Enabled has its units that started at boot.
	Daemon  bool     `json:"daemon,omitempty"`
	Enabled []string `json:"enabled,omitempty"`

	// Well is what of containerd was well; nil if containerd did not answer.
	Well *ctrd.Health `json:"well,omitempty"`

	// Undoing is why the run is being undone; "" while it is not.
	Undoing string `json:"undoing,omitempty"`
}

// newRun returns a run that has changed nothing.
func (v *view) newRun() *run {
	r := &run{Old: v.record, Files: map[string]digest.Digest{}, Puts: versions{}, Daemon: v.running.daemon, Docker: v.running.docker != nil}
	r.Enabled = slices.DeleteFunc(v.installed(), func(u string) bool { return !v.Exists(wantsLink(u)) })
	if v.State != nil {
		well := v.State.Health()
		r.Well = &well
	}
	return r
}

// changesFile reports whether a step changes a file of the host that setup can restore.
func (s *Step) changesFile() bool {
	return slices.Contains([]Action{Copy, Write, Restore, Remove}, s.Action)
}

// journal keeps what a plan is about to change: besides what an unfinished run has kept already, the versions of
// others, also of those who have edited a file since that run ended.
func (p *Plan) journal() error {
	h := p.view.disk()
	if p.next.Run == nil {
		p.next.Run = p.view.newRun()
	}
	r := p.next.Run
	for _, s := range p.Steps {
		if !s.changesFile() {
			continue
		}
		r.Dirs = append(r.Dirs, h.missingDirs(s.Target)...)
		now, err := h.digestAt(s.Target)
		if err != nil {
			return err
		}
		was, known := r.Files[s.Target]
		known = known && (now == was || now == "" || r.Puts.has(s.Target, now))
		if s.Action != Remove {
			r.Puts.add(s.Target, s.digest)
		}
		if now != "" && (!known || p.next.Kept.has(s.Target, now)) {
			if err := h.keep(s.Target, now); err != nil {
				return err
			}
		}
		if !known {
			r.Files[s.Target] = now
		}
	}
	r.Dirs = sorted(r.Dirs)
	return nil
}

// putBack gives a file that a run has changed the version of before, and reports whether it did. A file that others
// have edited since stays.
func (p *Plan) putBack(path string) (changed bool, err error) {
	h, r := p.view.disk(), p.next.Run
	now, err := h.digestAt(path)
	f := p.next.Files[path]
	switch was := r.Files[path]; {
	case err != nil || now == was:
		return false, err
	case now != "" && !r.Puts.has(path, now):
		p.Notes = append(p.Notes, fmt.Sprintf("%s was edited while setup ran, and stays", path))
		return false, nil
	case was == "":
		return true, h.remove(path)
	case now != "" && f.ofOthers(): // a file of others, who may have changed its mode
		return true, h.back(path, was, path)
	default:
		return true, h.back(path, was, kept(path, was))
	}
}

// undo restores the host as it was before the run, in the order of a removal: what uses ballast first. It
// can be repeated after a crash. Without restarts, those of services that an earlier part of the run can have restarted
// are left to do.
func (p *Plan) undo(ctx context.Context, why string) error {
	h, r := p.view.disk(), p.next.Run
	if r.Undoing == "" {
		r.Undoing = why
		if err := h.writeRecord(&p.next); err != nil {
			return err
		}
	}
	paths := slices.Sorted(maps.Keys(r.Files))
	if p.next.Removing {
		slices.Reverse(paths) // the list of hosts.toml files comes back after them
	}
	order := []group{dockerGroup, noGroup, containerdGroup, daemonGroup}
	if p.next.Removing { // Docker gets ballast back when it is there
		order = append(order[1:], dockerGroup)
	}
	var changed [groups]bool
	var left []string
	leaveTo := func(name, unit string) {
		left = append(left, name)
		p.Notes = append(p.Notes, fmt.Sprintf("if %s was restarted since setup began: systemctl restart %s", name, unit))
	}
	for _, g := range order {
		if g == daemonGroup {
			fresh := slices.DeleteFunc(p.view.installed(), func(u string) bool {
				was, changed := r.Files[filepath.Join(unitDir, u)]
				return slices.Contains(r.Enabled, u) && (!changed || was != "")
			})
			if err := p.disable(ctx, fresh); err != nil {
				return err
			}
		}
		for _, path := range paths {
			if groupOf(path) != g {
				continue
			}
			done, err := p.putBack(path)
			if err != nil {
				return fmt.Errorf("restore %s: %w", path, err)
			}
			changed[g] = changed[g] || done
		}
		if g == dockerGroup && changed[g] && r.Docker && slices.Contains(p.next.Pending, pendingDocker) && p.view.Systemd {
			if p.view.noRestart {
				leaveTo(pendingDocker, dockerService)
			} else if err := p.systemctl(ctx, "restart", dockerService); err != nil {
				return fmt.Errorf("dockerd does not start with its old storage driver; see journalctl -u %s: %w", dockerService, err)
			}
		}
		if g == containerdGroup && slices.Contains(p.next.Pending, pendingContainerd) && r.Well != nil && p.view.Systemd {
			if p.view.noRestart {
				leaveTo(pendingContainerd, p.view.Unit)
			} else if err := p.restart(ctx); err != nil {
				err = fmt.Errorf("containerd does not start with its old configuration; see journalctl -u %s; ballast setup --remove --force takes ballast out of it: %w", p.view.Unit, err)
				if r.Old == nil || !slices.Contains(r.Old.Pending, pendingContainerd) {
					return err
				}
				p.Notes = append(p.Notes, err.Error()) // it was not known to start with that
			}
		}
	}
	if changed[daemonGroup] && r.Daemon && p.view.noRestart {
		leaveTo(pendingDaemon, serviceName)
	}
	if err := p.restartDaemon(ctx, changed[daemonGroup]); err != nil {
		return err
	}
	old := r.Old
	if old == nil {
		old = &record{}
	}
	old.Kept = p.next.Kept // what others have edited since was not put back
	for _, name := range left {
		if !slices.Contains(old.Pending, name) {
			old.Pending = append(old.Pending, name)
		}
	}
	return p.leave(old, r.Dirs)
}

// restartDaemon enables the units that started at boot before the run, and starts the daemon again that ran, if its
// files have changed.
func (p *Plan) restartDaemon(ctx context.Context, changed bool) error {
	r := p.next.Run
	off := slices.DeleteFunc(slices.Clone(r.Enabled), func(u string) bool { return p.view.Exists(wantsLink(u)) || !p.view.Exists(filepath.Join(unitDir, u)) })
	if !p.view.Systemd || len(off) == 0 && !changed {
		return nil
	}
	if err := p.systemctl(ctx, "daemon-reload"); err != nil {
		return err
	}
	if len(off) > 0 {
		if err := p.systemctl(ctx, append([]string{"enable"}, off...)...); err != nil {
			return err
		}
	}
	if changed && r.Daemon && !p.view.noRestart && p.view.hasUnit(serviceName) {
		if err := p.start(ctx); err != nil {
			return fmt.Errorf("ballastd does not start again as it was; see journalctl -u ballastd: %w", err)
		}
	}
	return nil
}

// leave ends a run: it removes directories of setup that are empty, and writes the record of after the run, or, if
// that is of no version, removes what setup has recorded. What is kept and not needed by the record goes; versions of
// others that have no place stay.
func (p *Plan) leave(r *record, dirs []string) error {
	h := p.view.disk()
	if err := p.sweep(); err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) { // sorted: subdirectories come later
		if err := h.remove(d); err != nil {
			return err
		}
	}
	r.Kept = h.needed(r.Kept, r)
	if r.Version != 0 {
		if err := h.writeRecord(r); err != nil {
			return err
		}
		return h.tidy(r)
	}
	if err := h.tidy(r); err != nil { // first: without a record all that is kept is of others
		return err
	}
	if err := errors.Join(h.remove(stateFile), h.prune(stateDir)); err != nil {
		return err
	}
	if p.next.Removing && h.Exists(configDir) {
		p.Notes = append(p.Notes, fmt.Sprintf("%s stays: it has files that setup did not write", configDir))
	}
	if h.Exists(stateDir) {
		p.Notes = append(p.Notes, fmt.Sprintf("%s stays: it has files of others that were replaced and could not be restored, because the files in their place were edited since", keptDir))
	}
	return nil
}

// sweep removes what crashes have left of the writing of the files that a plan knows.
func (p *Plan) sweep() error {
	paths := slices.AppendSeq([]string{stateFile}, maps.Keys(p.next.Files))
	if p.next.Run != nil {
		paths = slices.AppendSeq(paths, maps.Keys(p.next.Run.Files))
	}
	for _, path := range paths {
		if err := p.view.disk().sweep(path); err != nil {
			return err
		}
	}
	return nil
}

// unfinished returns the plan that completes an undoing that was interrupted, or nil.
func (v *view) unfinished() *Plan {
	if v.record == nil || v.record.Run == nil || v.record.Run.Undoing == "" {
		return nil
	}
	return &Plan{Distro: v.Distro.Name, view: v, next: *v.record, Steps: []Step{
		{Action: Undo, Target: stateFile, Why: "the last run failed and was not undone completely: " + v.record.Run.Undoing},
	}}
}
