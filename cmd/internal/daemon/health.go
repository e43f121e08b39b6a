package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/admin"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/durable"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// askTimeout limits how long containerd may take to return its version.
const askTimeout = 2 * time.Second

// admin returns the handler of the admin interface.
func (d *Daemon) admin() *admin.Handler {
	return &admin.Handler{
		Store: d.store, Version: d.version, Jobs: d.jobs, Mounts: d.mounts, Care: d.care, Holders: d.snapshots, Containerd: d.origins,
		Images: d.containerd, Facade: d.facade, Keys: d.port, Node: facts{d}, Models: filepath.Join(filepath.Dir(d.config.Address), dirs.Models),
		Metrics: d.metrics.Handler(), Providers: d.providers, Log: d.log,
	}
}

// facts are what only the daemon knows: an admin.Node.
type facts struct{ *Daemon }

// Touch implements admin.Node. It also returns if the disk refuses to write.
func (d facts) Touch() {
	if err := durable.Touch(d.store.Dir()); err != nil {
		d.log.Warn("the disk cannot be written", "err", err)
	}
}

// Received implements admin.Node.
func (d facts) Received() (direct int64, mirrors []wire.Mirror) {
	return d.remote.ReceivedDirectly(), d.mirrors()
}

// Early implements admin.Node.
func (d facts) Early(ctx context.Context, im store.Image) (how, whyNot string, err error) {
	if why := d.lazyWhy.Load(); why != nil {
		return "", *why, nil
	}
	names := registry.Names(im)
	mode := d.mode(jobs.Repositories(names))
	if mode == differ.Complete {
		return "", "lazy.mode, or a rule of it, is \"complete\" for its repository", nil
	}
	signers, err := d.store.ChainSigners(im.Table)
	if err != nil {
		return "", "", err
	}
	without, err := d.store.Unchained(im.Table, names)
	switch {
	case err != nil:
		return "", "", err
	case len(signers) > 0 && (len(without) == 0 || mode == differ.Lazy):
		return fmt.Sprintf("by tables of hash states of %s (%s)", d.config.Lazy.Tables, strings.Join(signers, ", ")), "", nil
	case mode == differ.Lazy:
		return "", "", nil
	}
	use, err := d.store.ChunkUse(ctx, im.Table)
	if err != nil || use.Chunks > 0 && len(without) == 0 {
		return "", "", err
	}
	files := "its files have"
	if use.Chunks > 0 || len(signers) > 0 {
		if files, err = d.have(im.Table, without); err != nil {
			return "", "", err
		}
	}
	switch lazy := d.config.Lazy; {
	case lazy.Tables == "":
		return "", files + " no chunk digests, which \"ballast convert\" writes, and lazy.tables names no repository with tables of hash states", nil
	case len(lazy.TableKeys) == 0:
		return "", files + " no chunk digests, and lazy.table_keys has no key whose tables of hash states are taken from " + lazy.Tables, nil
	default:
		return "", files + " no chunk digests, and had no table of hash states in " + lazy.Tables + ` when it was pulled, which "ballast tables push" writes where it is complete`, nil
	}
}

// have returns the beginning of a sentence about the files of a table that are blobs, of which there is at least one.
func (d facts) have(table digest.Digest, blobs []filetable.Blob) (string, error) {
	t, err := d.store.Table(table)
	if err != nil {
		return "", err
	}
	first := ""
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob == blobs[0].Digest {
			first = strconv.Quote(f.Path)
			break
		}
	}
	switch n := len(blobs) - 1; n {
	case 0:
		return first + " has", nil
	case 1:
		return first + " and another file have", nil
	default:
		return fmt.Sprintf("%s and %d other files have", first, n), nil
	}
}

// Health implements admin.Node.
func (d facts) Health(ctx context.Context) (wire.Health, error) {
	h := wire.Health{
		Version: d.version, Started: d.started, Dirs: map[string]wire.Dir{},
		Address: d.config.Address, Facade: d.config.Facade.Listen, FacadeHealth: d.port.Health(),
		Show: string(d.snapshotter.Backend()), Mirrors: d.mirrors(),
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
	h.Snapshots = wire.SnapshotHealth{Aside: doubts.Aside, Unknown: len(doubts.Unknown), Problems: translate.Problems(doubts.Problems)}
	if h.Lazy, err = d.lazyHealth(ctx); err != nil {
		return h, err
	}
	usage, err := d.store.Usage()
	if err != nil {
		return h, err
	}
	h.Usage = wire.Usage(usage)
	known, err := d.store.Health()
	if err != nil {
		return h, err
	}
	h.Doubts = translate.Doubts(known)
	if h.ContainerdVersion, err = d.containerdVersion(ctx); err != nil {
		h.ContainerdError = err.Error()
	} else {
		name, err := d.snapshots.Name(ctx)
		h.ContainerdLoaded = err == nil && name != ""
		missing, err := d.snapshots.Missing(ctx)
		if err != nil {
			d.log.WarnContext(ctx, "snapshots are not compared with those of containerd", "err", err)
		}
		h.Snapshots.Problems = append(h.Snapshots.Problems, missing...)
	}
	return h, nil
}

// Limits of Reach: all registries have answered, or count as silent, while a client still waits.
const (
	reachTimeout = 5 * time.Second
	reachAtOnce  = 16
)

// Reach implements admin.Node.
func (d facts) Reach(ctx context.Context, registries []string) []wire.Reached {
	all := make([]wire.Reached, len(registries))
	var g errgroup.Group
	g.SetLimit(reachAtOnce)
	for i, name := range registries {
		all[i].Registry = name
		g.Go(func() error {
			ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("it does not answer within %v: %w", reachTimeout, errdefs.ErrUnavailable))
			defer cancel()
			if err := d.remote.Reach(ctx, name); err != nil {
				all[i].Error = wire.Wrap(err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in the answer
	return all
}

// mirrors returns the mirrors that were used.
func (d *Daemon) mirrors() (out []wire.Mirror) {
	now := time.Now()
	for _, m := range d.remote.Mirrors() {
		a := wire.Mirror{
			Address: m.Address, Bytes: m.Counts.Bytes.Load(), Wrong: m.Counts.Wrong.Load(), Left: map[string]int64{},
			Shunned: map[string]time.Time{}, Resting: map[string]time.Time{},
		}
		for _, r := range transfer.Reasons {
			a.Left[string(r)] = m.Counts.Left(r)
		}
		if last := m.Counts.Last(); last.Reason != "" {
			a.Last = &wire.Left{Reason: string(last.Reason), Error: last.Text, At: last.At}
		}
		for registry, e := range m.For {
			if t := e.AvoidedUntil(); t.After(now) {
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
