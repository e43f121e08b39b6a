package daemon

import (
	"cmp"
	"context"

	"github.com/ballast-dev/ballast/cmd/internal/admin"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// hydrate brings the rest of a model, or joins who does, and calls event with what has changed. If
// nobody waits, it only begins.
func (d *Daemon) hydrate(ctx context.Context, im store.Image, r admin.HydrateRequest, event func([]admin.Event) error) error {
	exposed := d.store.Exposed(im.Table)
	if exposed {
		d.background.start(im.Table, nil) // which tries again until it is complete
	}
	by := byHydrate
	if !r.Wait {
		if exposed {
			return nil
		}
		by = byBackground
	}
	// Who asks by another name of the model means the same work.
	wish := admin.PrefetchRequest{Ref: cmp.Or(admin.Label(im, ""), im.Table.String()), NoPin: true}
	pl, err := d.pulls.join(ctx, by, wish, func(ctx context.Context, pl *pull) (store.Image, error) {
		return im, d.rest(ctx, pl, im, !r.Wait)
	})
	if err != nil || !r.Wait {
		return err
	}
	_, err = d.pulls.follow(ctx, pl, event)
	return err
}

// rest is the work of a hydration.
func (d *Daemon) rest(ctx context.Context, pl *pull, im store.Image, background bool) error {
	sources, err := d.store.Sources(ctx, im.Table)
	if err != nil {
		return err
	}
	rates := map[digest.Digest]*rate{}
	return d.store.Hydrate(ctx, im.Table, store.HydrateOptions{
		Sources: d.laterSources(ctx, im.Table, sources), Background: background,
		Progress: func(ps []store.Progress) { d.pulls.progress(pl, ps, rates) },
	})
}
