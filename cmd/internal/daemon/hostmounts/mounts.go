package hostmounts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/jobs"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/snapshotter"
	"github.com/ballast-dev/ballast/snapshotter/differ"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
)

// mountGrace is the time that a client has to make a mount.
const mountGrace = time.Minute

// Mounts are the models that processes of the host read without containerd. Create it with New.
type Mounts struct {
	Options

	mu    sync.Mutex               // guards the fields below
	busy  map[string]chan struct{} // by directory, while its mount is being prepared; closed at the end
	given map[string]time.Time     // by directory: when the mount arguments were returned
}

// Options configure Mounts.
type Options struct {
	Dir         string // the default parent of mount points
	Store       *store.Store
	Facade      *registry.Handler
	Sources     *jobs.Sources
	Snapshotter *snapshotter.Snapshotter
	Differ      *differ.Differ
	Log         *slog.Logger
}

// New returns the mounts of a node.
func New(o Options) *Mounts {
	return &Mounts{Options: o, busy: map[string]chan struct{}{}, given: map[string]time.Time{}}
}

// Prepare returns what to mount at a directory. ref is the reference by which the model was
// requested, or zero.
func (h *Mounts) Prepare(ctx context.Context, im store.Image, ref remote.Ref, r wire.MountRequest) (wire.Mount, error) {
	own := r.Dir == ""
	if own {
		r.Dir = filepath.Join(h.Dir, im.Table.Encoded())
	}
	if err := h.begin(ctx, r.Dir); err != nil {
		return wire.Mount{}, err
	}
	defer h.end(r.Dir)
	if own { // after the end of a release, which removes it
		if err := os.MkdirAll(r.Dir, 0o700); err != nil {
			return wire.Mount{}, err
		}
	}
	names := registry.Names(im)
	if ref != (remote.Ref{}) {
		names = []string{ref.Name()}
	}
	pending, err := h.admit(ctx, im, names)
	if err != nil {
		return wire.Mount{}, err
	}
	sources, err := h.Sources.Wanted(ctx, im.Table, ref)
	if err != nil {
		return wire.Mount{}, err
	}
	m, made, err := h.Snapshotter.PrepareHost(ctx, snapshotter.HostMount{Dir: r.Dir, Name: r.Name, Table: im.Table}, func(ctx context.Context, id string) error {
		return advise(im, ref, h.Differ.ShowReady(ctx, id, im.Table, jobs.Repositories(names), sources, pending))
	})
	if err != nil {
		return wire.Mount{}, err
	}
	h.Log.Info("model can be mounted on the host", "dir", r.Dir, "ref", r.Name, "table", im.Table, "snapshot", m.ID)
	h.hand(r.Dir, time.Now())
	out := asMount(m)
	out.Type, out.Source, out.Options = made.Type, made.Source, made.Options
	return out, nil
}

// advise adds to the refusal of a model that is not complete for its sources how to download it.
func advise(im store.Image, ref remote.Ref, err error) error {
	if !errors.Is(err, differ.ErrIncomplete) {
		return err
	}
	return fmt.Errorf("%s; download it first: ballast prefetch %s: %w", wire.Text(err), modelname.Label(im, ref), errdefs.ErrFailedPrecondition)
}

// admit checks a model against the rules for signatures, and reports whether they allow it only
// because it is complete.
func (h *Mounts) admit(ctx context.Context, im store.Image, names []string) (pending bool, err error) {
	c := registry.Candidate{Table: im.Table, Names: names, AsNode: true}
	if pending, err = h.Facade.Admit(ctx, c); err != nil || !pending {
		return pending, err
	}
	if _, err := h.Store.Views.Files(im.Table); err != nil {
		return true, fmt.Errorf("its signatures can be checked only when it is complete: %w", errdefs.ErrFailedPrecondition)
	}
	c.Complete = true
	_, err = h.Facade.Admit(ctx, c)
	return true, err
}

// begin waits until no other mount of a directory is being prepared, and reserves the directory.
func (h *Mounts) begin(ctx context.Context, dir string) error {
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

// end releases the reservation of a directory.
func (h *Mounts) end(dir string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.busy[dir])
	delete(h.busy, dir)
}

// hand records when the mount arguments of a directory were returned; the zero time removes the
// record.
func (h *Mounts) hand(dir string, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given[dir] = at
	if at.IsZero() {
		delete(h.given, dir)
	}
}

// List returns all mounts.
func (h *Mounts) List(ctx context.Context) ([]wire.Mount, error) {
	all, err := h.Snapshotter.HostMounts(ctx)
	out := []wire.Mount{}
	for _, m := range all {
		out = append(out, asMount(m))
	}
	return out, err
}

func asMount(m snapshotter.HostMount) wire.Mount {
	return wire.Mount{Dir: m.Dir, Name: m.Name, Table: m.Table, Snapshot: m.ID, Created: m.Created, Mounted: m.Mounted}
}

// Release releases the model of a directory whose mount is gone.
func (h *Mounts) Release(ctx context.Context, dir string) error {
	if err := h.begin(ctx, dir); err != nil {
		return err
	}
	return h.release(ctx, dir)
}

// release is Release for a directory that is reserved, and ends that.
func (h *Mounts) release(ctx context.Context, dir string) error {
	defer h.end(dir)
	if err := h.Snapshotter.RemoveHost(ctx, dir); err != nil {
		return err
	}
	h.hand(dir, time.Time{})
	h.Log.Info("model is no longer mounted on the host", "dir", dir)
	if filepath.Dir(dir) == h.Dir {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			h.Log.Warn("directory of a model that was mounted stays", "dir", dir, "err", err)
		}
	}
	return nil
}

// ReleaseUnneeded releases the models whose mounts are gone.
func (h *Mounts) ReleaseUnneeded(ctx context.Context) error {
	all, err := h.Snapshotter.HostMounts(ctx)
	for _, m := range all {
		if !m.Mounted && h.beginOverdue(m) {
			if rerr := h.release(ctx, m.Dir); !errdefs.IsNotFound(rerr) {
				err = errors.Join(err, rerr)
			}
		}
	}
	return err
}

// beginOverdue reserves the directory of the mount m if the time to make it has passed, and it is not being prepared
// again. It reports whether it did.
func (h *Mounts) beginOverdue(m snapshotter.HostMount) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := m.Created // prepared by an earlier daemon
	if given, ok := h.given[m.Dir]; ok {
		at = given
	}
	if h.busy[m.Dir] != nil || time.Since(at) <= mountGrace {
		return false
	}
	h.busy[m.Dir] = make(chan struct{})
	return true
}
