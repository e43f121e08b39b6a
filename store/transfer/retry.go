package transfer

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
)

// A Retry says how a request that fails is repeated.
type Retry struct {
	Tries    int              // attempts
	Pause    time.Duration    // before the second attempt; it doubles
	Patience time.Duration    // the longest RetryAfterError that is waited for; zero means any
	Total    time.Duration    // from the first attempt to the last; zero means any
	Final    func(error) bool // reports whether repeating the request is useless
}

// Do calls f until it returns nil or a final error, or a limit is reached or ctx is done, and
// returns the last error of f.
func (r Retry) Do(ctx context.Context, f func() error) error {
	start := time.Now()
	for try := 1; ; try++ {
		err := f()
		if err == nil || try >= r.Tries || r.Final(err) || ctx.Err() != nil {
			return err
		}
		d := atLeast(r.Pause<<(try-1), err)
		if r.Patience > 0 && d > r.Patience || r.Total > 0 && time.Since(start)+d > r.Total {
			return err
		}
		if Wait(ctx, d, nil) != nil {
			return err
		}
	}
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
