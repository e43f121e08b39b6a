package transfer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// TestRetryLimits checks how often a failing request is sent, and how long that takes.
func TestRetryLimits(t *testing.T) {
	after := func(d time.Duration) error {
		return &transfer.RetryAfterError{After: d, Err: errdefs.ErrUnavailable}
	}
	r := transfer.Retry{Tries: 4, Pause: time.Second, Patience: 10 * time.Second, Total: 15 * time.Second, Final: transfer.Final}
	for _, tt := range []struct {
		name  string
		err   error
		calls int
		time  time.Duration
	}{
		{"success", nil, 1, 0},
		{"permanent error", errdefs.ErrNotFound, 1, 0},
		{"doubled pauses", errdefs.ErrUnavailable, 4, 7 * time.Second},
		{"a shorter Retry-After", after(0), 4, 7 * time.Second},
		{"a longer Retry-After", after(5 * time.Second), 4, 15 * time.Second},
		{"Retry-After beyond the patience", after(11 * time.Second), 1, 0},
		{"Retry-After beyond the total", after(9 * time.Second), 2, 9 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, start := 0, time.Now()
				err := r.Do(t.Context(), func() error { calls++; return tt.err })
				if err != tt.err || calls != tt.calls || time.Since(start) != tt.time {
					t.Errorf("got %v, %d calls, %s; want %v, %d, %s", err, calls, time.Since(start), tt.err, tt.calls, tt.time)
				}
			})
		})
	}
}

// TestRetryEndsWithContext checks that a pause ends with the context, and that the error is that of the
// request.
func TestRetryEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := transfer.Retry{Tries: 9, Pause: time.Minute, Final: transfer.Final}.Do(ctx, func() error { return errdefs.ErrUnavailable })
		if err != errdefs.ErrUnavailable || time.Since(start) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
	})
}
