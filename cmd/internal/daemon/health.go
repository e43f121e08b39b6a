package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/cmd/internal/dirs"
	"github.com/ballast-dev/ballast/cmd/internal/translate"
	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// askTimeout limits how long containerd may take to return its version.
const askTimeout = 2 * time.Second

// admin returns the handler of the admin interface.
func (d *Daemon) admin() *admin.Handler {
	return &admin.Handler{
		Store: d.store, Version: d.version, Prefetch: d.jobs.Prefetch, CRIPull: d.criPull, Status: d.jobs.Status, Stop: d.jobs.Stop, Verifying: d.jobs.Verifying,
		Hydrate: d.jobs.Hydrate, Import: d.jobs.Import, ImportModels: d.jobs.ImportModels,
		ImportArchive: d.jobs.ImportArchive, Models: filepath.Join(filepath.Dir(d.config.Address), dirs.Models),
		Convert: d.jobs.Convert, Mount: d.mounts.Prepare, Mounts: d.mounts.List, Unmounted: d.mounts.Release,
		Sources: d.jobs.Sources.Wanted, Resolve: d.jobs.Restore, Settle: d.settle, Repaired: d.snapshotter.Refresh, Forget: d.forgetMissing, Holders: d.holders, Eager: d.eager, Snapshots: d.verifySnapshots, CheckSignatures: d.checkSignatures, Signers: d.signers,
		Health: d.health, Received: func() (int64, []wire.Mirror) { return d.remote.ReceivedDirectly(), d.mirrors() }, RotateCA: d.port.Rotate, Metrics: d.metrics.Handler(), Touch: d.touch, Log: d.log,
	}
}

// touch returns when the disk of the store has written something, or refuses to.
func (d *Daemon) touch() {
	if err := durable.Touch(d.store.Dir()); err != nil {
		d.log.Warn("the disk cannot be written", "err", err)
	}
}

// health returns facts about the daemon.
func (d *Daemon) health(ctx context.Context) (wire.Health, error) {
	h := wire.Health{
		Version: d.version, Started: d.started, Kernel: kernelRelease(), Dirs: map[string]wire.Dir{},
		Address: d.config.Address, Admin: d.config.AdminAddress, Facade: d.config.Facade.Listen, FacadeHealth: d.port.Health(),
		Show: string(d.snapshotter.Backend()), Containerd: d.config.Containerd.Address, Mirrors: d.mirrors(),
	}
	for _, name := range append([]string{"root"}, rootParts...) {
		path := filepath.Join(d.store.Dir(), name)
		if name == "root" {
			path = d.store.Dir()
		}
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return h, err
		}
		h.Dirs[name] = wire.Dir{Path: path, Device: uint64(info.Sys().(*syscall.Stat_t).Dev)}
	}
	if d.snapshotter.Backend() == tree.Links {
		if err := snapshotter.Probe(d.store.Dir(), d.store.ObjectsDir()).Stubs; err != nil {
			h.ShowWhy = err.Error()
		} else {
			h.ShowWhy = "snapshot.show = \"" + d.config.Snapshot.Show + "\""
		}
	}
	doubts, err := d.snapshotter.Health(ctx)
	if err != nil {
		return h, err
	}
	h.Snapshots = wire.SnapshotHealth{Aside: doubts.Aside, Unknown: len(doubts.Unknown), Problems: snapshotProblems(doubts.Problems)}
	if h.Lazy, err = d.lazyHealth(ctx); err != nil {
		return h, err
	}
	usage, err := d.store.Usage()
	if err != nil {
		return h, err
	}
	h.Usage = wire.Usage(usage)
	known, err := d.store.Health(ctx)
	if err != nil {
		return h, err
	}
	h.Doubts = translate.Doubts(known)
	if h.ContainerdVersion, err = d.containerdVersion(ctx); err != nil {
		h.ContainerdError = err.Error()
	} else {
		name, err := d.snapshotterName(ctx)
		h.ContainerdLoaded = err == nil && name != ""
		missing, err := d.missing(ctx)
		if err != nil {
			d.log.WarnContext(ctx, "snapshots are not compared with those of containerd", "err", err)
		}
		h.Snapshots.Problems = append(h.Snapshots.Problems, missing...)
	}
	return h, nil
}

// mirrors returns the mirrors that were used.
func (d *Daemon) mirrors() (out []wire.Mirror) {
	now := time.Now()
	for _, m := range d.remote.Mirrors() {
		a := wire.Mirror{
			Address: m.Address, Bytes: m.Counts.Bytes.Load(), Failures: m.Counts.Failures.Load(), Wrong: m.Counts.Wrong.Load(),
			Shunned: map[string]time.Time{}, Resting: map[string]time.Time{},
		}
		for registry, e := range m.For {
			if t := e.Shunned(); t.After(now) {
				a.Shunned[registry] = t
			} else if t := e.Resting(); t.After(now) {
				a.Resting[registry] = t
			}
		}
		out = append(out, a)
	}
	return out
}

// containerdVersion returns the version of containerd.
func (d *Daemon) containerdVersion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return d.containerd.Version(ctx)
}

// verifySnapshots compares snapshots with their tables.
func (d *Daemon) verifySnapshots(ctx context.Context, table digest.Digest) ([]wire.SnapshotProblem, error) {
	problems, err := d.snapshotter.Verify(ctx, table)
	all := snapshotProblems(problems)
	if err != nil || table != "" {
		return all, err
	}
	missing, err := d.missing(ctx)
	if err != nil { // containerd may be down
		d.log.WarnContext(ctx, "snapshots are not compared with those of containerd", "err", err)
	}
	return append(all, missing...), nil
}

func snapshotProblems(problems []snapshotter.Problem) (out []wire.SnapshotProblem) {
	for _, p := range problems {
		out = append(out, wire.SnapshotProblem{Snapshot: p.Snapshot, Table: p.Table, Path: p.Path, Problem: p.What})
	}
	return out
}

// kernelRelease returns what "uname -r" prints.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
