package care

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// The intervals between removals of what has expired, and between checks for removed images and mounts.
const (
	sweepEvery   = time.Hour
	releaseEvery = time.Minute
)

// keepAll makes a garbage collection remove only what has expired.
const keepAll = 1<<63 - 1

// A Care cares for a store. All fields except Swept are required.
type Care struct {
	Store     *store.Store
	Jobs      Jobs
	Sources   Sources
	Snapshots Verifier

	// Held hold models for somebody else, and release those that nobody needs any more.
	Held []Releaser

	// Swept is called after each removal of what has expired. May be nil.
	Swept func(context.Context)

	Log *slog.Logger
}

// Jobs lists work and restores documents: *jobs.Jobs.
type Jobs interface {
	// Verifying lists a verification of a kind, of the model called name, or of all models if name is empty.
	// The caller reports its progress in bytes, and its end.
	Verifying(kind wire.Kind, name string) (progress func(done, total int64), end func(error))

	// Restore restores the documents of an image, including its table, from its sources.
	Restore(ctx context.Context, im store.Image) error
}

// Sources knows where models are from: *jobs.Sources.
type Sources interface {
	// Wanted returns the sources of a table for a request by a reference, which may be zero.
	Wanted(ctx context.Context, table digest.Digest, ref remote.Ref) ([]transfer.Source, error)
}

// A Verifier cares for snapshots: *Snapshots.
type Verifier interface {
	// Verify compares the snapshots that show a table, or all if it is empty, with their table.
	Verify(ctx context.Context, table digest.Digest) ([]wire.SnapshotProblem, error)

	// Refresh repairs the snapshots that show a table, after a repair of its objects.
	Refresh(ctx context.Context, table digest.Digest) error

	// Forget removes from containerd the records of snapshots that do not exist.
	Forget(ctx context.Context) error
}

// A Releaser protects models for users outside the store.
type Releaser interface {
	// ReleaseUnneeded releases the models that nobody needs any more.
	ReleaseUnneeded(ctx context.Context) error
}

// Run cares until ctx ends, which is not an error. It scrubs with an interval and a rate, unless the interval is zero.
func (c *Care) Run(ctx context.Context, scrub time.Duration, rate int64) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Store.CompareFiles(ctx, c.repairDamaged) })
	if scrub > 0 {
		g.Go(func() error { return c.Scrub(ctx, scrub, rate) })
	}
	g.Go(func() error { return every(ctx, sweepEvery, func() { c.sweep(ctx) }) })
	g.Go(func() error {
		return every(ctx, releaseEvery, func() {
			if err := c.ReleaseUnneeded(ctx); err != nil && ctx.Err() == nil {
				c.Log.Warn("models may stay whose images or mounts are gone", "err", err)
			}
		})
	})
	return g.Wait()
}

// Scrub reads all objects again in the background, at most rate bytes a second and once in an interval, until ctx
// ends, which is not an error. What is damaged is repaired as by a verification.
func (c *Care) Scrub(ctx context.Context, interval time.Duration, rate int64) error {
	return c.Store.Scrub(ctx, store.ScrubOptions{
		Interval: interval, Rate: rate,
		Begin:   func() (func(done, total int64), func(error)) { return c.Jobs.Verifying(wire.KindScrub, "") },
		Damaged: func(ctx context.Context, bad []store.CheckResult) { c.repairDamaged(ctx, bad[:1]) },
	})
}

// sweep removes what has expired: pins, and abandoned ingests. Objects are removed by the store when it needs space.
func (c *Care) sweep(ctx context.Context) {
	if _, err := c.Store.GC(ctx, store.GCOptions{Keep: keepAll}); err != nil && ctx.Err() == nil {
		c.Log.Error("collect what has expired", "err", err)
	}
	if c.Swept != nil {
		c.Swept(ctx)
	}
}

// ReleaseUnneeded releases models that are held for removed images of containerd and removed mounts on the host: a
// reboot removes all mounts.
func (c *Care) ReleaseUnneeded(ctx context.Context) error {
	var errs []error
	for _, h := range c.Held {
		errs = append(errs, h.ReleaseUnneeded(ctx))
	}
	return errors.Join(errs...)
}

// every calls do periodically, the first time after one period, until ctx ends. It returns nil.
func every(ctx context.Context, while time.Duration, do func()) error {
	tick := time.NewTicker(while)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			do()
		}
	}
}
