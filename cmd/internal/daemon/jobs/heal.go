package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Heal starts to download what a complete model has lost. It is called when containerd requests a
// manifest: containerd already has the snapshots and requests nothing else.
func (js *Jobs) Heal(ctx context.Context, im store.Image) {
	missing, err := js.Store.Missing(im.Table)
	if err != nil {
		js.Log.Error("look for missing files of a model", "table", im.Table, "err", err)
		return
	}
	if len(missing) == 0 {
		return
	}
	js.Log.Warn("files of a complete model are missing or damaged; downloading them again", "table", im.Table, "files", len(missing))
	j, err := js.join(ctx, wire.KindBackground, modelname.Label(im, remote.Ref{}), " table "+im.Table.String(), pinWish{}, func(ctx context.Context, j *job) (store.Image, error) {
		sources, err := js.Sources.recorded(ctx, im.Table, false)
		if err != nil {
			return im, err
		}
		if js.Lazy() != nil {
			if err := js.exposeAgain(ctx, im.Table); err != nil {
				return im, err
			}
		}
		if err := js.hydrate(ctx, j, im.Table, store.HydrateOptions{Sources: sources, Background: true}); err != nil {
			return im, err
		}
		return im, js.Sources.Snapshotter.Refresh(ctx, im.Table)
	})
	if err != nil {
		js.Log.Error("missing files of a model cannot be downloaded", "table", im.Table, "err", err)
		return
	}
	js.List.change(func() { j.Table = im.Table })
	js.leave(j)
}

// exposeAgain makes the lost parts of a model readable in the views that show it before it is
// complete.
func (js *Jobs) exposeAgain(ctx context.Context, table digest.Digest) error {
	var err error
	for _, t := range js.Background.shownIn(table) {
		sources, serr := js.Sources.Shown(ctx, t.view, table)
		if serr == nil {
			serr = js.Background.expose(ctx, t, sources)
		}
		if serr == nil && t.view != "" { // from its own sources
			js.Background.Start(t.view, table, sources)
		}
		if !errdefs.IsFailedPrecondition(serr) {
			err = errors.Join(err, serr)
		}
	}
	return err
}

// Restore makes the documents of an image again, by one of its names.
func (js *Jobs) Restore(ctx context.Context, im store.Image) error {
	err := fmt.Errorf("image %s has no name: pull its model again: %w", im.Manifest, errdefs.ErrNotFound)
	for _, name := range im.Refs {
		ref, perr := resolve.ParseRef(name)
		if perr != nil {
			err = perr
			continue
		}
		if err = js.Facade.Restore(ctx, ref, im); err == nil {
			return nil
		}
	}
	return err
}

func explain(err error) error {
	if errors.Is(err, convert.ErrNotModel) {
		err = fmt.Errorf("%w; containerd pulls images itself: %w", err, errdefs.ErrNotImplemented)
	}
	return err
}
