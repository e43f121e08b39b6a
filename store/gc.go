package store

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// GCOptions are the settings of one GC.
type GCOptions struct {
	// Keep is the size in bytes of unreferenced objects that stay, the most recently used ones.
	// Zero removes all.
	Keep int64

	// DryRun counts without removing.
	DryRun bool

	// Abandoned also cancels, before, hydrations that no caller waits for.
	Abandoned bool

	// Models also names the images that lose files, for which the tables of all images are read.
	Models bool
}

// GCResult reports what was, or would be, removed.
type GCResult struct {
	Objects  int
	Bytes    int64
	Partials int
	Images   int

	// Downloads is the number of canceled hydrations.
	Downloads int

	// Models are the references, or digests, of images that lose files, if GCOptions.Models is set.
	Models []string
}

// GC removes objects that no reference and no fetch needs, least recently used first, staged files
// that were idle for a day, images that were unused for a week, and expired references. The
// documents of an image (manifest, config, table) live as long as the image.
//
// While the needs of a reference are unknown (Health), it removes only references and returns
// errdefs.ErrFailedPrecondition.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	var downloads int
	if o.Abandoned {
		var err error
		if downloads, err = s.abandonAll(ctx, o.DryRun); err != nil {
			return GCResult{Downloads: downloads}, err
		}
	}
	c, err := s.collect(object.CollectOptions{Want: func(total int64) int64 { return total - o.Keep }, DryRun: o.DryRun})
	r := GCResult{Objects: c.Objects, Bytes: c.Bytes, Images: c.Images, Downloads: downloads}
	if err == nil {
		r.Partials, err = s.area.Collect(o.DryRun)
	}
	if err == nil && o.Models && len(c.Gone) > 0 {
		r.Models, err = s.using(c.Gone)
	}
	if err == nil && !o.DryRun && r.Objects+r.Images+r.Partials+r.Downloads > 0 {
		s.log.Info("collected", "downloads", r.Downloads, "objects", r.Objects, "bytes", r.Bytes, "partials", r.Partials, "images", r.Images)
	}
	return r, err
}

// using returns the references, or else the digests, of images that have one of the objects.
func (s *Store) using(objects []digest.Digest) (names []string, err error) {
	gone := map[digest.Digest]bool{}
	for _, d := range objects {
		gone[d] = true
	}
	for _, im := range s.Catalog.Images() {
		if im.Table == "" {
			continue
		}
		t, err := s.Table(im.Table)
		if errdefs.IsNotFound(err) {
			continue // removed meanwhile
		} else if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(t.Files, func(f filetable.File) bool { return gone[f.Digest] }) {
			names = append(names, cmp.Or(strings.Join(im.Refs, " "), im.Manifest.String()))
		}
	}
	return names, nil
}

// abandonAll cancels, or counts if dry, all hydrations that no caller waits for.
func (s *Store) abandonAll(ctx context.Context, dry bool) (n int, err error) {
	if !dry {
		return s.Abandon(ctx)
	}
	for _, w := range s.Work() {
		if w.Waiting == 0 {
			n++
		}
	}
	return n, nil
}

// evict removes about want bytes of unneeded objects.
func (s *Store) evict(want int64) (int64, error) {
	c, err := s.collect(object.CollectOptions{Want: func(int64) int64 { return want }, Room: true})
	if errdefs.IsFailedPrecondition(err) {
		s.log.Warn("no objects can be removed", "err", err)
		return 0, nil
	}
	if c.Objects > 0 {
		s.log.Info("evicted to make room", "objects", c.Objects, "bytes", c.Bytes)
	}
	return c.Bytes, err
}

// collect removes unneeded objects, and ends exposures whose reference has expired.
func (s *Store) collect(o object.CollectOptions) (object.Collected, error) {
	c, err := s.objects.Collect(host{s}, o)
	if c.Refs > 0 && !o.DryRun {
		s.exposed.Withdraw()
	}
	return c, err
}

// Run evicts objects when space is short, until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.o.Evict.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.MakeRoom(); err != nil {
				s.log.Error("evicting objects", "err", err)
			}
			s.exposed.SaveOrders()
		}
	}
}

// MakeRoom evicts unneeded objects if the file system or the quota is fuller than EvictOptions
// allow. Run calls it periodically; callers that remove references because the disk is full call it
// to wait for the space.
func (s *Store) MakeRoom() error {
	want, err := s.excess()
	if err == nil && want > 0 {
		_, err = s.evict(want)
	}
	return err
}

// excess returns the number of bytes to evict.
func (s *Store) excess() (int64, error) {
	free, capacity, err := s.free()
	if err != nil || capacity-free <= percent(capacity, s.o.Evict.High) && s.o.Evict.Quota == 0 {
		return 0, err // without reading the size of every object
	}
	u, err := s.Usage()
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
