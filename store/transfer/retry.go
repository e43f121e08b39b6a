package transfer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/containerd/errdefs"
)

// A Retry says how a request that fails is repeated.
type Retry struct {
	Tries    int              // attempts
	Pause    time.Duration    // before the second attempt; it doubles
	Longest  time.Duration    // longest pause; up to a half of each is left out at random. Zero means any, and all of it
	Patience time.Duration    // the longest RetryAfterError that is waited for; zero means any
	Total    time.Duration    // from the first attempt to the last; zero means any
	Final    func(error) bool // reports whether repeating the request is useless; nil means never
}

// Do calls f until it returns nil or a final error, or a limit is reached or ctx is done, and
// returns the last error of f.
func (r Retry) Do(ctx context.Context, f func() error) error {
	start := time.Now()
	for try := 1; ; try++ {
		if err := f(); err == nil || !r.again(ctx, try, start, err) {
			return err
		}
	}
}

// again waits for the next attempt, after a number of them since start, the last one of which returned err. It returns
// false if there is none.
func (r Retry) again(ctx context.Context, tries int, start time.Time, err error) bool {
	if tries >= r.Tries || r.Final != nil && r.Final(err) || ctx.Err() != nil {
		return false
	}
	d := r.Pause << (tries - 1)
	if r.Longest > 0 {
		d = min(d, r.Longest)
		d -= rand.N(d/2 + 1) // nodes that failed together do not come back together
	}
	d = atLeast(d, err)
	if r.Patience > 0 && d > r.Patience || r.Total > 0 && time.Since(start)+d > r.Total {
		return false
	}
	return Wait(ctx, d, nil) == nil
}

// Final reports whether trying the same source again after err is useless.
func Final(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) ||
		errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || errdefs.IsFailedPrecondition(err)
}

// atLeast returns d, or the longer time that err requests.
func atLeast(d time.Duration, err error) time.Duration {
	if ra, ok := errors.AsType[*RetryAfterError](err); ok {
		return max(d, ra.After)
	}
	return d
}

// Wait waits for d, or for the longer time that err requests, and returns the error of ctx if it is
// done before.
func Wait(ctx context.Context, d time.Duration, err error) error {
	t := time.NewTimer(atLeast(d, err))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
