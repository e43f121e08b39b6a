package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/host/dirs"
	"github.com/ballast-dev/ballast/snapshotter/lazy"
	"github.com/ballast-dev/ballast/snapshotter/lazy/fdstore"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// The limits of the pause between two attempts to mount again.
const (
	firstRemount = time.Second
	lastRemount  = 5 * time.Minute
)

// lookEvery is how often the mount point of the lazy mount is checked.
const lookEvery = 2 * time.Second

// watchLazy replaces the lazy mount after an unmount, until ctx ends. Files opened through the old
// mount, and mounts made with it, are served as long as the kernel allows.
func (d *Daemon) watchLazy(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var old sync.WaitGroup
	defer old.Wait()
	for d.lazy.Load() != nil {
		m := d.lazy.Load()
		select {
		case <-ctx.Done():
			return nil
		case <-m.Done():
		case <-tick.C:
			s, err := m.Status()
			if err != nil {
				d.log.Warn("cannot check the lazy mount", "dir", m.Dir(), "err", err)
			}
			if err != nil || s.Mounted {
				continue
			}
		}
		if ctx.Err() == nil {
			d.replaceLazy(ctx, m)
			old.Go(func() { d.serveOld(ctx, m) })
		}
	}
	return nil
}

// replaceLazy mounts again, retrying until ctx ends.
func (d *Daemon) replaceLazy(ctx context.Context, old *lazy.Mount) {
	d.log.Error("the lazy mount was unmounted; mounting it again. Containers that were started before may have to be restarted",
		"dir", old.Dir())
	for wait := firstRemount; ctx.Err() == nil; wait = min(2*wait, lastRemount) {
		m, err := lazy.Start(d.lazyOptions(d.holder))
		if err == nil {
			if err := d.useLazy(m); err != nil {
				d.log.Error("models that are not complete cannot be shown", "err", err)
			}
			return
		}
		d.log.Error("no lazy mount: files that are not complete cannot be read; trying again", "wait", wait, "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// serveOld closes a mount when the kernel has ended it, or ctx ends.
func (d *Daemon) serveOld(ctx context.Context, old *lazy.Mount) {
	select {
	case <-old.Done():
	case <-ctx.Done():
	}
	if err := old.Abandon(); err != nil {
		d.log.Warn("old lazy mount", "err", err)
	}
}

// lazyHealth returns facts about the lazy mount.
func (d *Daemon) lazyHealth(ctx context.Context) (wire.LazyHealth, error) {
	h := wire.LazyHealth{Mode: d.config.Lazy.Mode, Paused: d.store.Paused()}
	m := d.lazy.Load()
	if m == nil {
		if why := d.lazyWhy.Load(); why != nil {
			h.Why = *why
		}
		return h, nil
	}
	s, err := m.Status()
	if err != nil {
		return h, err
	}
	st := m.Stats()
	h.Dir, h.Mounted, h.Takeover, h.Waiting = m.Dir(), s.Mounted, st.Takeovers > 0, st.Waiting
	h.Keeper, h.Kept, h.Passthrough, h.Resend = s.Keeper, s.Kept, s.Passthrough, s.Resend
	if err := d.lazyUsers(ctx, m); err != nil {
		h.Users = err.Error()
	}
	return h, nil
}

// Unmount removes the lazy mount left by a daemon with this configuration, and ends the process
// that keeps it. It reports whether there was one. It returns errdefs.ErrUnavailable if a daemon
// runs.
func Unmount(c *config.Config, o lazy.Options) (was bool, err error) {
	if !store.Made(c.Root) { // no daemon has run
		return false, nil
	}
	// The process that has the database open is the daemon of this root.
	s, err := store.Open(c.Root, store.Options{Log: o.Log})
	if errdefs.IsUnavailable(err) {
		err = fmt.Errorf("ballastd is running, stop it first: %w", err)
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := lazyPlaces(s.Dir(), c)
	o.Dir, o.Apart, o.StateDir = p.Dir, p.Apart, p.StateDir
	o.Holder = fdstore.Options{Socket: filepath.Join(filepath.Dir(c.Address), dirs.Holder)}
	return lazy.Detach(o)
}
