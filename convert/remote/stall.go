package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// minRate is the lowest average rate of a body over the time of Options.Stall, in bytes a second: a
// server that sends a few bytes now and then is as useless as one that sends none. A body that ends
// early continues at its offset, from the next host or on another connection; bytes in flight are
// lost.
//
// A slow link must never fall below the rate. All bodies of a node share one link: with eight slots
// each for pulls, background downloads and reads, one body gets 1/24 of it, which is 2.3 KiB/s of
// 56 KiB/s. If such bodies ended, each request would fetch again what the last one had lost, and a
// server without ranges would never finish. A single body can therefore not distinguish a slow link
// from a stalling server. The store can, because it sees other transfers wait: it takes the slot of
// a slow body that others need, and also asks another source.
const minRate = 1 << 10 // 1 KiB/s

// errStalled is the cause of a context that was cancelled because its body stalled.
var errStalled = errors.New("stalled")

// A stallBody is a body that ends with errdefs.ErrUnavailable if it delivers less than minRate
// while being read. The time between reads does not count. Close ends the request.
type stallBody struct {
	ctx     context.Context // of the caller
	body    io.ReadCloser
	limit   time.Duration
	cancel  context.CancelCauseFunc // of the request
	private bool

	stalled atomic.Bool
	timer   *time.Timer
	left    time.Duration // until the body counts as stalled
	got     int64         // bytes since left was reset to limit
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

// watched returns t with bodies that end with errdefs.ErrUnavailable if they stall.
func (c *Client) watched(t roundTripper) roundTripper {
	return func(req *http.Request) (*http.Response, error) {
		ctx, cancel := context.WithCancelCause(req.Context())
		resp, err := t(req.WithContext(ctx))
		if err != nil {
			cancel(nil)
			return nil, err
		}
		resp.Body = newStallBody(req.Context(), resp.Body, c.opts.Stall, cancel, false)
		return resp, nil
	}
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

// least returns the number of bytes that must arrive within limit.
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
