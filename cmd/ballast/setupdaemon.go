package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/installer/setup"
)

// removeWithDaemon removes ballast where the pod of the daemon is gone: containerd removes its images,
// and so its snapshots, only while the snapshotter answers. So what needs a running daemon, of a program, is removed
// first, and then the daemon's files. Both are printed as one plan.
func (a *app) removeWithDaemon(ctx context.Context, o setup.Options, program string, out output) error {
	var all setup.Plan
	remove := func() error {
		plan, err := setup.NewRemoval(ctx, o)
		if err != nil {
			return err
		}
		err = plan.Apply(ctx, a.stepPrinter(out))
		all.Distro, all.Steps = plan.Distro, append(all.Steps, plan.Steps...)
		for _, n := range plan.Notes {
			if !slices.Contains(all.Notes, n) {
				all.Notes = append(all.Notes, n)
			}
		}
		return err
	}
	err := a.withDaemon(ctx, program, remove)
	if err == nil {
		err = remove()
	}
	return a.printPlan(&all, false, out, err)
}

// answerTimeout limits the time until a daemon answers: it may repair the effects of a crash first.
const answerTimeout = 5 * time.Minute

// withDaemon calls f while a daemon runs, and removes the daemon's mount afterwards.
func (a *app) withDaemon(ctx context.Context, program string, f func() error) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	defer client.Close()
	running, stop := context.WithCancelCause(ctx)
	since, ended := time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		a.keepRunning(running, stop, program)
	}()
	if err = answers(running, client, since); err != nil {
		err = fmt.Errorf("%s does not answer; see its log above: %w", program, err)
	} else {
		err = f()
	}
	stop(nil)
	<-ended
	if out, uerr := exec.Command(program, "unmount").CombinedOutput(); uerr != nil {
		err = errors.Join(err, fmt.Errorf("%s unmount: %w: %s", program, uerr, out))
	}
	return err
}

// keepRunning runs a daemon until ctx ends. If an earlier daemon is just ending, the new one exits, and
// is started again. If it cannot be started, stop is called.
func (a *app) keepRunning(ctx context.Context, stop context.CancelCauseFunc, program string) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, program)
		cmd.Stdout, cmd.Stderr = a.stderr, a.stderr
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		if err := cmd.Start(); err != nil {
			stop(err)
			return
		}
		_ = cmd.Wait() // its log has the reason
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// answers waits until a daemon answers that was started after a time.
func answers(ctx context.Context, c *wire.Client, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for {
		h, err := c.Health(ctx)
		if err == nil && h.Started.After(since) {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
