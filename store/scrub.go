package store

import (
	"context"
	"errors"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"golang.org/x/time/rate"
)

const (
	// scrubStep is how many bytes are read between two looks at the rate and at downloads; a smaller object counts
	// as scrubLeast bytes.
	scrubStep  = 1 << 20
	scrubLeast = 64 << 10

	// scrubSave is how often the progress is recorded, scrubPause the interval between looks at downloads while a scrub
	// waits for them, scrubWait how long it waits before each step, and scrubRetry how long after an error of the
	// database.
	scrubSave  = time.Minute
	scrubPause = time.Second
	scrubWait  = 10 * time.Second
	scrubRetry = time.Minute
)

// ScrubOptions are the settings of Scrub. All are required.
type ScrubOptions struct {
	Interval time.Duration // from the begin of one scrub to that of the next
	Rate     int64         // bytes a second

	// Begin is called at the begin of a scrub, or when it goes on after a restart, progress after each step with
	// bytes, and end at its end.
	Begin func() (progress func(done, total int64), end func(error))

	// Damaged is called when an object is found damaged or missing, with all that are known to be.
	Damaged func(context.Context, []CheckResult)
}

// Scrub compares each object with its digest once in an interval, until ctx ends, which is not an error. It reads
// the disk and not the page cache, where the file system lets it, waits a while for downloads before each step, and
// goes on after a restart where it was. What it finds damaged is set aside, as by Check.
func (s *Store) Scrub(ctx context.Context, o ScrubOptions) error {
	for ctx.Err() == nil {
		if err := s.scrubNext(ctx, o); err != nil && ctx.Err() == nil {
			s.log.Error("objects cannot be read again", "err", err)
			sleep(ctx, scrubRetry)
		}
	}
	return nil
}

// scrubNext waits for the next scrub and does it.
func (s *Store) scrubNext(ctx context.Context, o ScrubOptions) error {
	at, err := s.db.Scrub()
	if err != nil {
		return err
	}
	if now := time.Now(); at.Began.IsZero() || at.Began.After(now) { // objects are verified when they are made
		at = meta.Scrub{Began: now, Ended: now}
		if err := s.db.PutScrub(at); err != nil {
			return err
		}
	}
	if !at.Ended.IsZero() {
		if sleep(ctx, time.Until(at.Began.Add(o.Interval))); ctx.Err() != nil {
			return nil
		}
		at = meta.Scrub{Began: time.Now(), Whole: at.Whole}
	}
	u, err := s.Usage()
	if err != nil {
		return err
	}
	progress, end := o.Begin()
	err = s.scrub(ctx, &at, rate.NewLimiter(rate.Limit(o.Rate), scrubStep), func(n int64) { progress(at.Done+n, max(u.Unique, at.Done+n)) }, o.Damaged)
	end(err)
	return errors.Join(err, s.db.PutScrub(at))
}

// scrub reads the objects after at.Last and updates at.
func (s *Store) scrub(ctx context.Context, at *meta.Scrub, limit *rate.Limiter, progress func(n int64), damaged func(context.Context, []CheckResult)) error {
	saved := time.Now()
	for {
		next, ok, err := s.db.ObjectAfter(at.Last)
		if err != nil {
			return err
		}
		if !ok {
			at.Ended, at.Whole = time.Now(), at.Began
			return nil
		}
		pace := func(n int64) {
			end := time.Now().Add(scrubWait)
			for progress(n); s.engine.Busy() && time.Now().Before(end) && ctx.Err() == nil; progress(n) {
				sleep(ctx, scrubPause)
			}
			_ = limit.WaitN(ctx, int(min(max(next.Size-n, scrubLeast), scrubStep))) // the reader sees the end of ctx
		}
		pace(0)
		bad, err := s.objects.CheckOne(ctx, next, pace)
		switch {
		case err != nil && ctx.Err() != nil:
			return err
		case err != nil:
			s.log.Error("object cannot be read again; the next scrub tries it", "digest", next.Digest, "err", err)
		default:
			s.scrubbed.Add(next.Size)
		}
		at.Last, at.Done = next.Digest, at.Done+next.Size
		if bad != nil {
			all, err := s.addMissing("", []CheckResult{*bad})
			if err != nil {
				return err
			}
			damaged(ctx, all)
		}
		if time.Since(saved) >= scrubSave {
			saved = time.Now()
			if err := s.db.PutScrub(*at); err != nil {
				return err
			}
		}
	}
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
