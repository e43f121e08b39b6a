package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/host/containerdversion"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// startLazy makes models readable before they are complete: those that snapshots already show, and
// future ones. If the node does not support that, models are shown when they are complete.
func (d *Daemon) startLazy(ctx context.Context) error {
	tables, err := d.jobs.Background.Resume(ctx)
	if err != nil {
		return fmt.Errorf("resume models that are not complete: %w", err)
	}
	if d.snapshotter.Backend() != tree.Stubs {
		d.log.Info("models are shown when they are complete", "show", d.snapshotter.Backend(), "incomplete", len(tables))
		d.noLazy(fmt.Errorf("models are shown as %s", d.snapshotter.Backend()))
		return d.jobs.Background.Continue(ctx, tables) // they were shown under another kernel or configuration
	}
	holder, err := d.newHolder()
	if err != nil {
		return err
	}
	d.holder = holder
	m, err := lazy.Start(d.lazyOptions(holder))
	if err != nil {
		d.log.Error("models are shown only when they are complete; incomplete ones cannot be read", "incomplete", len(tables), "err", err)
		d.noLazy(err)
	} else {
		if err := d.useLazy(m); err != nil {
			return err
		}
	}
	return d.jobs.Background.Continue(ctx, tables)
}

// useLazy shows models through the mount m.
func (d *Daemon) useLazy(m *lazy.Mount) error {
	d.lazy.Store(m)
	return d.snapshotter.UseLazy(m.Dir(), func(ctx context.Context) error { return d.lazyUsers(ctx, m) })
}

// lazyUsers returns why containerd cannot map the users of mounts with a lazy mount as a layer.
func (d *Daemon) lazyUsers(ctx context.Context, m *lazy.Mount) error {
	if !m.IDMap() {
		return errors.New("this kernel cannot id-map FUSE mounts (needs Linux 6.12)")
	}
	version, err := d.containerdVersion(ctx)
	if err != nil {
		return nil // containerd is calling, so it is installed, and its version may support it
	}
	if v, err := containerdversion.Parse(version); err == nil && !v.MapsBelow() {
		return fmt.Errorf("containerd %s cannot id-map mounts beside its layers (needs 2.3)", version)
	}
	return nil
}

// lazyOptions returns the options of the lazy mount.
func (d *Daemon) lazyOptions(h fdstore.Options) lazy.Options {
	o := lazyPlaces(d.store.Dir(), d.config)
	o.Source, o.Holder, o.Log, o.Refused = views{d.store}, h, d.log, d.metrics.Refused
	o.ReadAhead, o.NoPassthrough, o.NoIDMap = int64(d.config.Lazy.KernelReadAhead), !d.config.Lazy.Passthrough, !d.config.Lazy.IDMap
	return o
}

// views provides the views of a store by the numbers of their directories in the lazy mount.
type views struct{ *store.Store }

// LazyFile implements lazy.Source.
func (v views) LazyFile(view uint64, d digest.Digest) (int64, digest.Digest, error) {
	return v.Views.View(snapshotter.ViewNumber(view)).LazyFile(d)
}

// Await implements lazy.Source.
func (v views) Await(ctx context.Context, view uint64, d digest.Digest, off int64, n int) (*os.File, func(error), error) {
	return v.Views.View(snapshotter.ViewNumber(view)).Await(ctx, d, off, n)
}

// OpenObject implements lazy.Source.
func (v views) OpenObject(view uint64, d digest.Digest) (*os.File, error) {
	return v.Views.View(snapshotter.ViewNumber(view)).OpenObject(d)
}

// lazyPlaces returns the possible mount points and the state directory of the lazy mount of a root.
func lazyPlaces(root string, c *config.Config) lazy.Options {
	o := lazy.Options{Dir: filepath.Join(root, dirs.Lazy), StateDir: filepath.Join(root, dirs.LazyState)}
	if dir := filepath.Dir(c.Address); snapshotter.Mountable(dir) == nil {
		o.Apart = filepath.Join(dir, dirs.Lazy)
	}
	return o
}

// noLazy records why there is no lazy mount.
func (d *Daemon) noLazy(err error) {
	why := err.Error()
	d.lazyWhy.Store(&why)
}

// holderWait is for a holder that the service manager restarts at the same time.
const holderWait = 10 * time.Second

// newHolder returns what keeps the mount while the daemon is down.
func (d *Daemon) newHolder() (h fdstore.Options, err error) {
	c := d.config
	if c.Lazy.Holder == config.HolderNone {
		return h, nil
	}
	h.Socket, h.Wait = filepath.Join(filepath.Dir(c.Address), dirs.Holder), holderWait
	if c.Lazy.Holder == config.HolderOutside {
		return h, nil // no process of our own: it would end with the daemon
	}
	self, err := os.Executable()
	if err != nil {
		return h, err
	}
	h.Command = []string{self, "holder"}
	return h, nil
}

// mode returns when to show a model pulled from repositories.
func (d *Daemon) mode(sources []differ.Repository) differ.Mode {
	if len(sources) == 0 {
		return differ.Mode(d.config.Lazy.Mode)
	}
	return differ.Mode(d.config.Lazy.ModeOf(sources[0].String()))
}
