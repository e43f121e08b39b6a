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

// minProgress is how many bytes must come within the stall timeout: a server that sends a
// byte now and then is as good as one that sends none.
const minProgress = 1 << 10

// errStalled is the cause of the end of a context whose body gave no bytes.
var errStalled = errors.New("stalled")

// A stallBody is a body that ends with errdefs.ErrUnavailable when it gives less than
// minProgress bytes in the time it is waited for. The time between reads does not count.
// Close ends the request.
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
	if b.got += int64(n); b.got >= minProgress {
		b.got, b.left = 0, b.limit
	}
	switch {
	case err == nil || err == io.EOF:
	case b.stalled.Load():
		err = fmt.Errorf("less than %d bytes in %s: %w", minProgress, b.limit, errdefs.ErrUnavailable)
	case b.ctx.Err() != nil:
		err = context.Cause(b.ctx)
	default:
		err = transfer.Foreign(b.ctx, err)
	}
	return n, err
}

// Private implements transfer.Body.
func (b *stallBody) Private() bool { return b.private }

// Close ends the request.
func (b *stallBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}
