package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// heal begins to bring what a model has lost since it was complete. It is called when containerd asks
// for a manifest: it has the snapshots already, so that it asks for nothing else.
func (d *Daemon) heal(ctx context.Context, im store.Image) {
	missing, err := d.store.Missing(ctx, im.Table)
	if err != nil {
		d.log.Error("look what a model lacks", "table", im.Table, "err", err)
		return
	}
	if len(missing) == 0 {
		return
	}
	d.log.Warn("files of a complete model are missing or damaged; downloading them again", "table", im.Table, "files", len(missing))
	wish := admin.PrefetchRequest{Ref: cmp.Or(admin.Label(im, ""), im.Table.String()), NoPin: true}
	_, err = d.pulls.join(ctx, byBackground, wish, func(ctx context.Context, pl *pull) (store.Image, error) {
		sources, err := d.recorded(ctx, im.Table, false)
		if err != nil {
			return im, err
		}
		if d.lazy.Load() != nil {
			if err := d.exposeAgain(ctx, im.Table); err != nil {
				return im, err
			}
		}
		if err := d.rest(ctx, pl, im.Table, sources, true); err != nil {
			return im, err
		}
		return im, d.snapshotter.Refresh(ctx, im.Table)
	})
	if err != nil {
		d.log.Error("missing files of a model can not be downloaded", "table", im.Table, "err", err)
	}
}

// exposeAgain makes what a model has lost readable where it is shown, if it can be read before it is complete.
func (d *Daemon) exposeAgain(ctx context.Context, table digest.Digest) error {
	shown, err := d.background.shownIn(ctx, table)
	for _, t := range shown {
		sources, serr := d.shownFrom(ctx, t.view, table)
		if serr == nil {
			serr = d.background.expose(ctx, t, sources)
		}
		if serr == nil && t.view != "" { // from its own sources
			d.background.start(t.view, table, sources)
		}
		if !errdefs.IsFailedPrecondition(serr) {
			err = errors.Join(err, serr)
		}
	}
	return err
}

// resolve makes the documents of an image again, by one of its names.
func (d *Daemon) resolve(ctx context.Context, im store.Image) error {
	err := fmt.Errorf("image %s has no name: pull its model again: %w", im.Manifest, errdefs.ErrNotFound)
	for _, name := range im.Refs {
		ref, perr := resolve.ParseRef(name)
		if perr != nil {
			err = perr
			continue
		}
		if err = d.facade.Restore(ctx, ref, im); err == nil {
			return nil
		}
	}
	return err
}
