package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/containerd/errdefs"
)

// Changes reports whether the plan has steps.
func (p *Plan) Changes() bool { return len(p.Steps) > 0 }

// Apply executes a plan, and calls said after each step. After an error, completed steps stay: the
// next plan continues from there. If containerd does not start with a new configuration, the old
// one is restored.
func (p *Plan) Apply(ctx context.Context, said func(Step)) error {
	if !p.Changes() {
		return p.remember(&p.done)
	}
	if err := p.begin(); err != nil {
		return err
	}
	var undo []Step
	for _, s := range p.Steps {
		if s.group == containerdGroup && !p.view.isDir(s.Target) {
			was, err := p.view.undoing(s.Target)
			if err != nil {
				return err
			}
			undo = append(undo, was)
		}
		if s.Action == Restart {
			err := p.restart(ctx)
			switch {
			case ctx.Err() != nil: // it may still be starting
				return ctx.Err()
			case err != nil:
				return p.back(ctx, undo, err)
			}
		} else if err := p.do(ctx, s); err != nil {
			return fmt.Errorf("%s %s: %w", s.Action, s.Target, err)
		}
		said(s)
	}
	return p.end()
}

// remember writes the record if it has changed.
func (p *Plan) remember(r *record) error {
	if r.Version == 0 { // of a plan without changes of its own
		return nil
	}
	return p.view.writeRecord(r)
}

// begin records what a crash could leave behind.
func (p *Plan) begin() error {
	if p.next.Version != 0 {
		if err := p.view.mkdir(stateDir, 0o700); err != nil { // before its subdirectories
			return err
		}
	}
	if p.next.Upgrading || p.next.RollingBack {
		if err := p.keepPrevious(); err != nil {
			return fmt.Errorf("keep the previous version: %w", err)
		}
	}
	for _, s := range p.Steps {
		if s.keep == "" {
			continue
		}
		if err := p.view.keepAs(s.Target, s.keep); err != nil {
			return fmt.Errorf("keep %s: %w", s.Target, err)
		}
	}
	return p.remember(&p.next)
}

func (p *Plan) end() error {
	p.done.Previous = p.next.Previous
	if p.next.RollingBack {
		if err := p.view.swapPrevious(); err != nil {
			return err
		}
	}
	return p.remember(&p.done)
}

// do executes one step.
func (p *Plan) do(ctx context.Context, s Step) error {
	h := p.view.host
	switch s.Action {
	case Copy:
		return h.copy(s.from, s.Target, s.mode)
	case Write, Restore:
		return h.write(s.Target, s.data, s.mode)
	case Remove:
		return h.remove(s.Target)
	case Chmod:
		return h.chmod(s.Target, s.mode)
	case Purge:
		return h.purge(s.Target)
	case Images:
		return p.view.removeImages(ctx)
	case Wait:
		return p.wait(ctx)
	case Enable, Disable, Start, Unmount:
		return p.service(ctx, s)
	}
	panic("setup: internal error: unknown action " + string(s.Action))
}

// readyTimeout limits the time until a started daemon answers.
const readyTimeout = time.Minute

// until calls ready until it returns nil, for at most timeout. It returns the last error.
func until(ctx context.Context, timeout time.Duration, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// wait waits until the daemon answers and has created its keys.
func (p *Plan) wait(ctx context.Context) error {
	err := until(ctx, readyTimeout, func(ctx context.Context) error {
		socket, err := p.view.follow(p.view.config.AdminAddress)
		if err != nil {
			return err
		}
		c := api.NewClient(socket)
		defer c.Close()
		h, err := c.Health(ctx)
		if err != nil {
			return err
		}
		if h.FacadeHealth.Error != "" { // registries sent to the facade would not work
			return fmt.Errorf("its facade does not answer: %s: %w", h.FacadeHealth.Error, errdefs.ErrUnavailable)
		}
		for _, k := range p.view.keys() {
			if !p.view.exists(k) {
				return fmt.Errorf("it has not created %s: %w", k, errdefs.ErrUnavailable)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ballastd is not ready; see journalctl -u ballastd, then run this command again: %w", err)
	}
	return nil
}

// restart restarts containerd, and waits until it answers.
func (p *Plan) restart(ctx context.Context) error {
	if err := p.systemctl(ctx, "restart", p.unit); err != nil {
		return err
	}
	return until(ctx, readyTimeout, p.view.containerdAnswers)
}

// undoing returns the step that restores the present content of a path.
func (h host) undoing(path string) (Step, error) {
	b, mode, err := h.read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Step{Action: Remove, Target: path}, nil
	}
	return Step{Action: Restore, Target: path, data: b, mode: mode}, err
}

// back restores containerd's old configuration, because containerd does not start with the new one.
func (p *Plan) back(ctx context.Context, undo []Step, cause error) error {
	cause = fmt.Errorf("containerd does not start (%w)", cause)
	if len(undo) == 0 {
		return fmt.Errorf("%w; see journalctl -u %s", cause, p.unit)
	}
	var err error
	for _, s := range slices.Backward(undo) {
		err = errors.Join(err, p.do(ctx, s))
	}
	if err == nil {
		err = p.restart(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w, also not with its old configuration: %w; see journalctl -u %s", cause, err, p.unit)
	}
	return fmt.Errorf("%w with the configuration of ballast; its old configuration was restored; see journalctl -u %s: %w", cause, p.unit, errdefs.ErrFailedPrecondition)
}
