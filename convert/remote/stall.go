package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// minRate is how many bytes a second a body must bring, over the time of Options.Stall: a server
// that sends a byte now and then is as good as one that sends none. What is given up goes on where
// it was, from the next host or on another connection; what was on its way is lost.
//
// The number is one that a slow link never falls below. All bodies of a node share one link: with
// eight places for pulls, as many for what nobody waits for and as many for readers, one has a
// 24th of it, which of 56 KiB/s is 2.3 KiB/s. If that were given up, each request would fetch again
// what the last one had lost, and a server without ranges would never get to the end. So a body
// alone can not tell a slow link from a server that holds it up. Whoever sees others wait can:
// the store takes a place from a slow body that somebody else needs, and asks another source too.
const minRate = 1 << 10 // 1 KiB/s

// errStalled is the cause of the end of a context whose body gave no bytes.
var errStalled = errors.New("stalled")

// A stallBody is a body that ends with errdefs.ErrUnavailable when it gives less than minRate in
// the time it is waited for. The time between reads does not count. Close ends the request.
type stallBody struct {
	ctx     context.Context // of the caller
	body    io.ReadCloser
	limit   time.Duration
	cancel  context.CancelCauseFunc // of the request
	private bool

	stalled atomic.Bool
	timer   *time.Timer
	left    time.Duration // until it counts as stalled
	got     int64         // bytes since left was limit
}

func newStallBody(ctx context.Context, body io.ReadCloser, limit time.Duration, cancel context.CancelCauseFunc, private bool) *stallBody {
	b := &stallBody{body: body, limit: limit, left: limit, ctx: ctx, cancel: cancel, private: private}
	b.timer = time.AfterFunc(limit, func() {
		b.stalled.Store(true)
		cancel(errStalled)
	})
	b.timer.Stop()
	return b
}

// Read reads from the body.
func (b *stallBody) Read(p []byte) (int, error) {
	start := time.Now()
	b.timer.Reset(b.left)
	n, err := b.body.Read(p)
	b.timer.Stop()
	b.left = max(b.left-time.Since(start), time.Nanosecond)
	if b.got += int64(n); b.got >= b.least() {
		b.got, b.left = 0, b.limit
	}
	switch {
	case err == nil || err == io.EOF:
	case b.stalled.Load():
		err = fmt.Errorf("less than %d bytes in %s: %w", b.least(), b.limit, errdefs.ErrUnavailable)
	case b.ctx.Err() != nil:
		err = context.Cause(b.ctx)
	default:
		err = transfer.Foreign(b.ctx, err)
	}
	return n, err
}

// least returns how many bytes must come in the time of limit.
func (b *stallBody) least() int64 { return max(1, int64(minRate*b.limit.Seconds())) }

// Private implements transfer.Body.
func (b *stallBody) Private() bool { return b.private }

// Close ends the request.
func (b *stallBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}
