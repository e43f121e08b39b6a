package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ballast-dev/ballast/cmd/internal/config"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/snapshotter/tree"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// The directories below the root of the mount of files that are not complete.
const (
	lazyDir   = "lazy"
	lazyState = "lazy-state"
)

// startLazy makes models readable before they are complete: those that snapshots show already,
// and those to come. A node that can not do that shows models when they are complete.
func (d *Daemon) startLazy(ctx context.Context) error {
	if d.snapshotter.Backend() != tree.Stubs {
		d.log.Info("models are shown when they are complete", "show", d.snapshotter.Backend())
		d.noLazy(fmt.Errorf("models are shown as %s", d.snapshotter.Backend()))
		return nil
	}
	tables, err := d.background.resume(ctx)
	if err != nil {
		return fmt.Errorf("go on with models that are not complete: %w", err)
	}
	holder, err := d.newHolder()
	if err != nil {
		return err
	}
	d.holder = holder
	d.holder.Files = nil // the mount's
	m, err := lazy.Start(d.lazyOptions(holder))
	if err != nil {
		d.log.Error("models are shown when they are complete, those that are not can not be read", "incomplete", len(tables), "err", err)
		d.noLazy(err)
	} else {
		d.lazy.Store(m)
		if err := d.snapshotter.UseLazy(m.Dir()); err != nil {
			return err
		}
	}
	for _, t := range tables {
		sources, err := d.shownFrom(ctx, t.view, t.table)
		if err != nil {
			return err
		}
		d.background.start(t.view, t.table, sources)
	}
	return nil
}

// lazyOptions are the settings of the lazy mount.
func (d *Daemon) lazyOptions(h fdstore.Options) lazy.Options {
	dir, state := lazyDirs(d.store.Dir())
	return lazy.Options{
		Dir: dir, StateDir: state, Source: views{d.store}, Holder: h,
		ReadAhead: int64(d.config.Lazy.ReadAhead), NoPassthrough: !d.config.Lazy.Passthrough, Log: d.log,
		Refused: d.metrics.refused,
	}
}

// views are the views of a store by the numbers of their directories in the lazy mount.
type views struct{ *store.Store }

// LazyFile implements lazy.Source.
func (v views) LazyFile(view uint64, d digest.Digest) (int64, digest.Digest, error) {
	return v.View(snapshotter.ViewNumber(view)).LazyFile(d)
}

// ReadAt implements lazy.Source.
func (v views) ReadAt(ctx context.Context, view uint64, d digest.Digest, p []byte, off int64) (int, error) {
	return v.View(snapshotter.ViewNumber(view)).ReadAt(ctx, d, p, off)
}

// OpenObject implements lazy.Source.
func (v views) OpenObject(view uint64, d digest.Digest) (*os.File, error) {
	return v.View(snapshotter.ViewNumber(view)).OpenObject(d)
}

// lazyDirs returns where the lazy mount of a root is, and its state.
func lazyDirs(root string) (dir, state string) {
	return filepath.Join(root, lazyDir), filepath.Join(root, lazyState)
}

// noLazy takes note of why there is no lazy mount.
func (d *Daemon) noLazy(err error) {
	why := err.Error()
	d.lazyWhy.Store(&why)
}

// newHolder says who keeps the mount while the daemon is down.
func (d *Daemon) newHolder() (h fdstore.Options, err error) {
	c := d.config
	m := config.Manager()
	h.Files = d.passed
	if c.Lazy.Holder == config.HolderNone {
		return h, nil
	}
	if c.Lazy.Holder == config.HolderAuto && m.Stores {
		h.NotifySocket = m.NotifySocket // and the process below, which may be there from before
	}
	self, err := os.Executable()
	if err != nil {
		return h, err
	}
	h.Socket = filepath.Join(filepath.Dir(c.Address), "holder.sock")
	h.Command = []string{self, "holder"}
	return h, nil
}

// mode says when a model is shown that was got from these repositories.
func (d *Daemon) mode(sources []differ.Repository) differ.Mode {
	if len(sources) == 0 {
		return differ.Mode(d.config.Lazy.Mode)
	}
	return differ.Mode(d.config.Lazy.ModeOf(sources[0].String()))
}
