package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/host/localgrpc"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	notify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watchdog tells the service manager that the daemon works, if it wants to know ($WATCHDOG_USEC), until
// ctx ends. A daemon that does not is killed and started again.
func (d *Daemon) watchdog(ctx context.Context) error {
	limit, err := notify.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return err
	}
	conn, err := localgrpc.Dial(d.config.Address, localgrpc.Patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	var running chan error // the last check, while it has not ended
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if running == nil {
			running = make(chan error, 1)
			go func(ended chan error) { ended <- d.works(ctx, conn, limit) }(running)
		}
		select {
		case err := <-running:
			running = nil
			if err == nil {
				_, err = notify.SdNotify(false, notify.SdNotifyWatchdog)
			}
			if err != nil && ctx.Err() == nil {
				d.log.Error("the daemon does not work; if that stays so, the service manager starts it again", "err", err)
			}
		case <-time.After(limit / 4):
			d.log.Error("the daemon hangs; if that stays so, the service manager starts it again", "limit", limit)
		case <-ctx.Done():
		}
	}
}

// works checks that containerd gets an answer, that both databases can be written, and that the lazy
// mount is served. It does not return while one of them hangs.
func (d *Daemon) works(ctx context.Context, conn *grpc.ClientConn, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// Not Stat: what containerd asks for with it and does not exist is lost (snapshotter.Missing).
	_, err := snapshotsapi.NewSnapshotsClient(conn).Mounts(ctx, &snapshotsapi.MountsRequest{Key: "watchdog"})
	if status.Code(err) != codes.NotFound { // there is no snapshot with this key
		return fmt.Errorf("ask for a snapshot: %w", err)
	}
	if err := errors.Join(d.snapshotter.AwaitWrites(ctx), d.store.AwaitWrites()); err != nil {
		return fmt.Errorf("write the databases: %w", err)
	}
	m := d.lazy.Load()
	if m == nil {
		return nil
	}
	if s, err := m.Status(); err != nil || !s.Mounted {
		return err // watchLazy mounts it again
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.Dir(), &st); err != nil {
		d.log.Debug("lazy mount", "err", err) // it was unmounted since
	}
	return nil
}
