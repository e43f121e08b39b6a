package store

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/containerd/errdefs"
)

// collector is what the store tells object.Objects about its work.
type collector struct{ s *Store }

// Live implements object.Root.
func (c collector) Live() (r meta.Roots) {
	r.Tables, r.Blobs = c.s.engine.Live()
	return r
}

// Sweep implements object.Root: it removes unfinished fetches that nobody goes on with.
func (c collector) Sweep(dry bool) (n int, err error) { return c.s.area.Collect(dry) }

// GCOptions says what to collect.
type GCOptions struct {
	// Keep is how many bytes of objects without a reference may stay; those used last
	// stay. Zero frees all.
	Keep int64

	// DryRun only counts.
	DryRun bool
}

// GCResult says what was, or would be, freed.
type GCResult struct {
	Objects  int   `json:"objects"`
	Bytes    int64 `json:"bytes"`
	Partials int   `json:"partials"`
	Images   int   `json:"images"`
}

// GC removes objects that no reference and no fetch needs, oldest use first, unfinished
// fetches that are idle for a day, images that nothing uses for a week, and references that
// have expired.
//
// It returns errdefs.ErrFailedPrecondition, and removes references only, while it is not known what
// one of them needs (Doubts).
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	c, err := s.collect(ctx, object.CollectOptions{
		Want: func(total int64) int64 { return total - o.Keep }, Staged: true, DryRun: o.DryRun,
	})
	r := GCResult{Objects: c.Objects, Bytes: c.Bytes, Partials: c.Partials, Images: c.Images}
	if err == nil && !o.DryRun && r.Objects+r.Images+r.Partials > 0 {
		s.log.Info("collected", "objects", r.Objects, "bytes", r.Bytes, "partials", r.Partials, "images", r.Images)
	}
	return r, err
}

// evict frees about want bytes of objects that nothing needs.
func (s *Store) evict(ctx context.Context, want int64) (int64, error) {
	c, err := s.collect(ctx, object.CollectOptions{Want: func(int64) int64 { return want }, Room: true})
	if errdefs.IsFailedPrecondition(err) {
		s.log.Warn("nothing makes room", "err", err)
		return 0, nil
	}
	if c.Objects > 0 {
		s.log.Info("evicted to make room", "objects", c.Objects, "bytes", c.Bytes)
	}
	return c.Bytes, err
}

// collect removes what nothing needs, and ends the exposure of what a reference kept that is gone.
func (s *Store) collect(ctx context.Context, o object.CollectOptions) (object.Collected, error) {
	c, err := s.objects.Collect(collector{s}, o)
	if c.Refs > 0 && !o.DryRun {
		s.withdraw()
	}
	return c, err
}

// Run hashes what is doubted, and evicts when space runs short, until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	var proving sync.WaitGroup
	defer proving.Wait()
	proving.Go(func() { // it can take hours
		s.proved(s.objects.ProveAll(ctx))
		s.settleProved(ctx)
	})
	tick := time.NewTicker(s.o.Evict.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.MakeRoom(ctx); err != nil {
				s.log.Error("evicting objects", "err", err)
			}
		}
	}
}

// MakeRoom evicts objects that nothing needs, if the file system or the quota is fuller than EvictOptions say.
// Run calls it now and then; who removes references because the disk is full calls it and waits for the room.
func (s *Store) MakeRoom(ctx context.Context) error {
	want, err := s.excess(ctx)
	if err == nil && want > 0 {
		_, err = s.evict(ctx, want)
	}
	return err
}

// excess returns how many bytes should go.
func (s *Store) excess(ctx context.Context) (int64, error) {
	free, capacity, err := s.free()
	if err != nil || capacity-free <= percent(capacity, s.o.Evict.High) && s.o.Evict.Quota == 0 {
		return 0, err // without a look at every object
	}
	u, err := s.Usage(ctx)
	if err != nil {
		return 0, err
	}
	var want int64
	if used := u.Capacity - u.Free; used > percent(u.Capacity, s.o.Evict.High) {
		want = used - percent(u.Capacity, s.o.Evict.Low)
	}
	if q := s.o.Evict.Quota; q > 0 {
		want = max(want, u.Unique+u.Partial-q)
	}
	return min(want, u.Reclaimable), nil
}

func percent(n int64, p int) int64 { return int64(math.Round(float64(n) / 100 * float64(p))) }
