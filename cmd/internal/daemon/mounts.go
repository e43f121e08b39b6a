package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// modelsDir is the directory beside the sockets where models are mounted if nobody says where.
const modelsDir = "models"

// How long a mount on the host may take to be made by who asked for it, and how often is looked which are gone.
const (
	mountGrace   = time.Minute
	settleMounts = time.Minute
)

// hostMounts are the models that processes of the host read, without containerd. The daemon makes what is
// mounted, and who asked mounts it in his own mount namespace: so a mount outlives the daemon, and nobody can have
// the daemon mount anything anywhere. The other way round, the daemon finds out itself that a mount is gone, and lets
// go of the model: after a reboot, or an unmount that it was not told of.
type hostMounts struct {
	d *Daemon

	mu    sync.Mutex               // guards what follows
	busy  map[string]chan struct{} // by directory, while its mount is being prepared; closed then
	given map[string]time.Time     // when what to mount at a directory was handed out
}

func newHostMounts(d *Daemon) *hostMounts {
	return &hostMounts{d: d, busy: map[string]chan struct{}{}, given: map[string]time.Time{}}
}

// prepare returns what is to be mounted.
func (h *hostMounts) prepare(ctx context.Context, im store.Image, r admin.MountRequest) (admin.Mount, error) {
	d := h.d
	if r.Dir == "" {
		r.Dir = filepath.Join(filepath.Dir(d.config.Address), modelsDir, im.Table.Encoded())
		if err := os.MkdirAll(r.Dir, privateMode); err != nil {
			return admin.Mount{}, err
		}
	}
	if err := h.begin(ctx, r.Dir); err != nil {
		return admin.Mount{}, err
	}
	defer h.end(r.Dir)
	names := registry.Names(im)
	if ref, err := resolve.ParseRef(r.Name); err == nil {
		names = []string{ref.Name()}
	}
	if err := d.admitHere(ctx, im, names); err != nil {
		return admin.Mount{}, err
	}
	sources, err := d.wanted(ctx, im.Table, r.Name)
	if err != nil {
		return admin.Mount{}, err
	}
	m, made, err := d.snapshotter.PrepareHost(ctx, snapshotter.HostMount{Dir: r.Dir, Name: r.Name, Table: im.Table}, func(ctx context.Context, id string) error {
		return d.differ.ShowReady(ctx, id, im.Table, repositories(names), sources)
	})
	if err != nil {
		return admin.Mount{}, err
	}
	d.log.Info("model can be mounted on the host", "dir", r.Dir, "ref", r.Name, "table", im.Table, "snapshot", m.ID)
	h.hand(r.Dir, time.Now())
	out := asMount(m)
	out.Type, out.Source, out.Options = made.Type, made.Source, made.Options
	return out, nil
}

// admitHere says whether a model may be shown by the rules for signatures.
func (d *Daemon) admitHere(ctx context.Context, im store.Image, names []string) error {
	_, err := d.store.Files(ctx, im.Table)
	complete := err == nil
	pending, err := d.facade.Admit(ctx, registry.Candidate{Table: im.Table, Names: names, Complete: complete, AsNode: true})
	if err == nil && pending && !complete {
		err = fmt.Errorf("who signed it can be found out only when it is complete: %w", errdefs.ErrFailedPrecondition)
	}
	return err
}

// begin waits until nobody prepares a mount of a directory, and then does.
func (h *hostMounts) begin(ctx context.Context, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.busy[dir] != nil {
		other := h.busy[dir]
		h.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
		}
		h.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	h.busy[dir] = make(chan struct{})
	return nil
}

// end lets others work on a directory.
func (h *hostMounts) end(dir string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.busy[dir])
	delete(h.busy, dir)
}

// hand notes that what to mount at a directory is handed out, or with the zero time that nothing is.
func (h *hostMounts) hand(dir string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given[dir] = at
	if at.IsZero() {
		delete(h.given, dir)
	}
}

// list returns all mounts.
func (h *hostMounts) list(ctx context.Context) ([]admin.Mount, error) {
	all, err := h.d.snapshotter.HostMounts(ctx)
	out := []admin.Mount{}
	for _, m := range all {
		out = append(out, asMount(m))
	}
	return out, err
}

func asMount(m snapshotter.HostMount) admin.Mount {
	return admin.Mount{Dir: m.Dir, Name: m.Name, Table: m.Table, Snapshot: m.ID, Created: m.Created, Mounted: m.Mounted}
}

// release lets go of the model of a directory, whose mount is gone.
func (h *hostMounts) release(ctx context.Context, dir string) error {
	if err := h.begin(ctx, dir); err != nil {
		return err
	}
	defer h.end(dir)
	if err := h.d.snapshotter.RemoveHost(ctx, dir); err != nil {
		return err
	}
	h.hand(dir, time.Time{})
	h.d.log.Info("model is not mounted on the host any more", "dir", dir)
	if filepath.Dir(dir) == filepath.Join(filepath.Dir(h.d.config.Address), modelsDir) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.d.log.Warn("directory of a model that was mounted stays", "dir", dir, "err", err)
		}
	}
	return nil
}

// settle lets go of models whose mounts are gone.
func (h *hostMounts) settle(ctx context.Context) error {
	all, err := h.d.snapshotter.HostMounts(ctx)
	for _, m := range all {
		if !m.Mounted && h.overdue(m) {
			if rerr := h.release(ctx, m.Dir); !errdefs.IsNotFound(rerr) {
				err = errors.Join(err, rerr)
			}
		}
	}
	return err
}

// overdue says that nobody is going to mount m any more.
func (h *hostMounts) overdue(m snapshotter.HostMount) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := m.Created // by an earlier daemon
	if given, ok := h.given[m.Dir]; ok {
		at = given
	}
	return h.busy[m.Dir] == nil && time.Since(at) > mountGrace
}

// run settles until ctx ends: at once, since the machine may have been started anew, and again and again.
func (h *hostMounts) run(ctx context.Context) error {
	settle := func() {
		if err := h.settle(ctx); err != nil && ctx.Err() == nil {
			h.d.log.Warn("models stay that are not mounted on the host any more", "err", err)
		}
	}
	settle()
	return every(ctx, settleMounts, settle)
}

// settle lets go of models that are kept for images and mounts that are gone.
func (d *Daemon) settle(ctx context.Context) error {
	return errors.Join(d.origins.settle(ctx), d.mounts.settle(ctx))
}
