package daemon

import (
	"cmp"
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// hydrate brings the rest of a model, or joins who does, and calls event with what has changed. If
// nobody waits, it only begins.
func (d *Daemon) hydrate(ctx context.Context, im store.Image, r admin.HydrateRequest, event func([]admin.Event) error) error {
	sources, err := d.wanted(ctx, im.Table, r.Name)
	if err != nil {
		return err
	}
	early := d.store.Early(im.Table)
	for view := range early {
		d.background.start(view, im.Table, sources) // which tries again until it is complete
	}
	by := byHydrate
	if !r.Wait {
		if len(early) > 0 {
			return nil
		}
		by = byBackground
	}
	// Who asks by another name of the model means the same work.
	wish := admin.PrefetchRequest{Ref: cmp.Or(admin.Label(im, ""), im.Table.String()), NoPin: true}
	pl, err := d.pulls.join(ctx, by, wish, func(ctx context.Context, pl *pull) (store.Image, error) {
		return im, d.rest(ctx, pl, im.Table, sources, !r.Wait)
	})
	if err != nil || !r.Wait {
		return err
	}
	_, err = d.pulls.follow(ctx, pl, event)
	return err
}

// rest is the work of a hydration.
func (d *Daemon) rest(ctx context.Context, pl *pull, table digest.Digest, sources []transfer.Source, background bool) error {
	d.pulls.about(pl, table)
	rates := map[digest.Digest]*rate{}
	return d.store.Hydrate(ctx, table, store.HydrateOptions{
		Sources: sources, Background: background,
		Progress: func(ps []store.Progress) { d.pulls.progress(pl, ps, rates) },
	})
}
