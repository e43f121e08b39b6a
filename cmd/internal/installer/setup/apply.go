package setup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/cmd/internal/installer/snippet"
	"github.com/containerd/errdefs"
)

// Changes reports whether the plan has steps.
func (p *Plan) Changes() bool { return len(p.Steps) > 0 }

// Apply executes a plan, and calls said after each step. If a step fails, or if containerd is not as
// well after its restart as before, everything is undone, and the error says so. A removal is undone as
// far as containerd's restart; after it, another run continues. After ctx ends, or a crash, another run
// completes the steps.
func (p *Plan) Apply(ctx context.Context, said func(Step)) error {
	switch {
	case !p.Changes():
		return p.end()
	case p.Steps[0].Action == Undo:
		if err := p.undo(ctx, p.next.Run.Undoing); err != nil {
			return err
		}
		said(p.Steps[0])
		return fmt.Errorf("the last run failed (%s), and has now been undone; run the command again: %w", p.next.Run.Undoing, errdefs.ErrFailedPrecondition)
	}
	if err := p.begin(); err != nil {
		return err
	}
	for i, s := range p.Steps {
		err := p.do(ctx, s)
		switch {
		case err == nil:
			said(s)
			continue
		case ctx.Err() != nil: // another run continues
			return ctx.Err()
		}
		err = fmt.Errorf("%s %s: %w", s.Action, s.Target, err)
		if p.next.Version == 0 || p.next.Removing && s.Action != Restart {
			return err
		}
		return p.failed(ctx, p.Steps[:i], err)
	}
	return p.end()
}

// failed undoes a plan of which some steps were done.
func (p *Plan) failed(ctx context.Context, done []Step, cause error) error {
	if err := p.undo(ctx, cause.Error()); err != nil {
		return fmt.Errorf("%w; and this could not be undone completely, run the command again: %w", cause, err)
	}
	text := "everything was undone"
	if p.next.Removing {
		text = "the configuration and the hosts.toml files were restored"
		if slices.ContainsFunc(done, func(s Step) bool { return s.Action == Images }) {
			text += "; images of models must be pulled again"
		}
	}
	return fmt.Errorf("%w; %s: %w", cause, text, errdefs.ErrFailedPrecondition)
}

// begin records what a crash could leave behind, and keeps what the plan changes.
func (p *Plan) begin() error {
	if p.next.Version == 0 {
		return nil
	}
	h := p.view.disk()
	if err := h.mkdir(stateDir, 0o700); err != nil { // before its subdirectories
		return err
	}
	if err := errors.Join(p.sweep(), p.journal()); err != nil {
		return err
	}
	return h.writeRecord(&p.next)
}

// end records what the plan has done.
func (p *Plan) end() error {
	if p.next.Version == 0 || p.next.Removing && !p.view.Exists(stateFile) {
		return nil
	}
	return p.leave(&p.done, p.next.Dirs)
}

// do executes one step.
func (p *Plan) do(ctx context.Context, s Step) error {
	h := p.view.disk()
	if err := h.unedited(&s); err != nil {
		return err
	}
	switch s.Action {
	case Copy:
		return h.copy(s.from, s.Target, s.mode)
	case Write, Restore:
		if s.data == nil {
			return h.back(s.Target, s.digest, kept(s.Target, s.digest))
		}
		return h.write(s.Target, s.data, s.mode)
	case Remove:
		return h.remove(s.Target)
	case Chmod:
		return h.chmod(s.Target, s.mode)
	case Purge:
		if s.Target == stateDir {
			return p.leave(&record{Kept: p.next.Kept}, p.next.Dirs)
		}
		return p.empty(s.Target)
	case Images:
		return p.view.release(ctx)
	case Wait:
		return p.wait(ctx)
	case Restart:
		if s.Target == dockerService {
			return p.proveDocker(ctx)
		}
		return p.prove(ctx)
	case Enable, Disable, Start, Unmount:
		return p.service(ctx, s)
	}
	panic("setup: internal error: unknown action " + string(s.Action))
}

// unedited returns an error if others have edited the file that a step changes since the plan was made. Minutes can be
// between them: what the step writes has not what they have added.
func (h host) unedited(s *Step) error {
	if !s.changesFile() {
		return nil
	}
	now, err := h.digestAt(s.Target)
	if err != nil || now == s.found || now == s.digest {
		return err
	}
	return fmt.Errorf("it was edited while setup ran; run it again: %w", errdefs.ErrFailedPrecondition)
}

// readyTimeout limits the time until a started daemon answers.
const readyTimeout = time.Minute

// until calls ready until it returns nil, for at most timeout. It returns the last error.
func until(ctx context.Context, timeout time.Duration, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil || errors.Is(err, errHopeless) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// errHopeless is the error of what waiting does not change.
var errHopeless = errors.New("this does not change by itself")

// wait waits until the daemon answers and has created its keys.
func (p *Plan) wait(ctx context.Context) error {
	err := until(ctx, readyTimeout, func(ctx context.Context) error {
		socket, err := p.view.Follow(p.view.Config.AdminAddress)
		if err != nil {
			return err
		}
		c := wire.NewClient(socket)
		defer c.Close()
		h, err := c.Health(ctx)
		if err != nil {
			return err
		}
		if h.FacadeHealth.Error != "" { // registries sent to the facade would not work
			return fmt.Errorf("its facade does not answer: %s: %w", h.FacadeHealth.Error, errdefs.ErrUnavailable)
		}
		for _, k := range p.view.keys() {
			if !p.view.Exists(k) {
				return fmt.Errorf("it has not created %s: %w", k, errdefs.ErrUnavailable)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ballastd is not ready; see journalctl -u ballastd: %w", err)
	}
	return nil
}

// restart restarts containerd, and waits until it answers.
func (p *Plan) restart(ctx context.Context) error {
	if err := p.systemctl(ctx, "restart", p.view.Unit); err != nil {
		return err
	}
	return until(ctx, readyTimeout, func(ctx context.Context) error {
		_, err := p.view.health(ctx)
		return err
	})
}

// health asks containerd what is well.
func (v *view) health(ctx context.Context) (ctrd.Health, error) {
	c, err := v.Dial()
	if err != nil {
		return ctrd.Health{}, err
	}
	defer c.Close()
	s, err := c.State(ctx)
	if err != nil {
		return ctrd.Health{}, err
	}
	return s.Health(), nil
}

// The plugins of ballast in containerd, as parts of its health.
var ownPlugins = []string{"io.containerd.snapshotter.v1." + snippet.Snapshotter, "io.containerd.differ.v1." + snippet.Differ}

// prove restarts containerd, and returns an error if it is not as well as before: a plugin that
// started does not start any more, CRI does not fulfil a condition, or ballast is not there.
func (p *Plan) prove(ctx context.Context) error {
	if err := p.restart(ctx); err != nil {
		return fmt.Errorf("containerd does not start; see journalctl -u %s: %w", p.view.Unit, err)
	}
	was := ctrd.Health{Parts: map[string]string{}}
	if r := p.next.Run; r != nil && r.Well != nil {
		was = *r.Well
	}
	return until(ctx, readyTimeout, func(ctx context.Context) error {
		now, err := p.view.health(ctx)
		if err != nil {
			return err
		}
		worse := now.Worse(was)
		if p.next.Removing {
			worse = slices.DeleteFunc(worse, func(s string) bool {
				return slices.ContainsFunc(ownPlugins, func(own string) bool { return strings.HasPrefix(s, own+":") })
			})
		} else {
			for _, own := range ownPlugins {
				if _, ok := now.Parts[own]; !ok {
					worse = append(worse, own+": containerd has not loaded it")
				}
			}
		}
		if len(worse) == 0 {
			return nil
		}
		err = fmt.Errorf("containerd is not as healthy as before: %s", strings.Join(worse, "; "))
		if slices.ContainsFunc(worse, func(s string) bool { return !strings.HasPrefix(s, "CRI: ") }) {
			return fmt.Errorf("%w: %w", err, errHopeless)
		}
		return err
	})
}
