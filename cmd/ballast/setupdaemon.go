package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/cmd/internal/setup"
)

// A lastDaemon is a daemon that runs only for a removal: containerd removes its images, and so its
// snapshots, only while the snapshotter answers, and the pod of the daemon is gone.
type lastDaemon struct {
	program string
	cmd     *exec.Cmd
	ended   chan struct{} // closed when it has ended
}

// lastDaemonTimeout limits the time until it answers: it may repair the effects of a crash first.
const lastDaemonTimeout = 5 * time.Minute

// startLast starts the daemon installed beside this program, and waits until it answers. If an
// earlier daemon is just ending, the new one exits, and is started again.
func (a *app) startLast(ctx context.Context) (*lastDaemon, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lastDaemonTimeout)
	defer cancel()
	for {
		d := &lastDaemon{program: filepath.Join(filepath.Dir(self), "ballastd"), ended: make(chan struct{})}
		since := time.Now()
		if err := d.start(a.stderr); err != nil {
			return nil, err
		}
		if d.answers(ctx, client, since) {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s does not answer; see its log above: %w", d.program, ctx.Err()), d.stop())
		case <-time.After(time.Second):
		}
	}
}

func (d *lastDaemon) start(log io.Writer) error {
	d.cmd = exec.Command(d.program)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return err
	}
	go func() {
		_ = d.cmd.Wait() // its log has the reason
		close(d.ended)
	}()
	return nil
}

// answers waits until the daemon answers; it returns false if the daemon or ctx has ended before.
func (d *lastDaemon) answers(ctx context.Context, c *api.Client, since time.Time) bool {
	for {
		h, err := c.Health(ctx)
		if err == nil && h.Started.After(since) {
			return true
		}
		select {
		case <-d.ended:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop stops it, and removes its mount.
func (d *lastDaemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-d.ended
	if out, err := exec.Command(d.program, "unmount").CombinedOutput(); err != nil {
		return fmt.Errorf("%s unmount: %w: %s", d.program, err, out)
	}
	return nil
}

// removeWithDaemon removes ballast: first what needs a running daemon, and then the daemon's files.
func (a *app) removeWithDaemon(ctx context.Context, o *setupFlags, out output) error {
	remove := func() error {
		plan, err := setup.NewRemoval(ctx, o.Options)
		if err != nil {
			return err
		}
		return a.applyPlan(ctx, plan, o.dryRun, out)
	}
	daemon, err := a.startLast(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(remove(), daemon.stop()); err != nil || o.dryRun {
		return err
	}
	return remove()
}
