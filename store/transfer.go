package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Retries of a range that makes no progress: about 20 seconds in all.
const (
	maxTries   = 8
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
)

// errNoRanges says that a server answers a range with the whole blob.
var errNoRanges = errors.New("server does not know ranges")

// A transfer brings ranges of one blob from outside.
type xfer struct {
	s        *Store
	blob     digest.Digest
	size     int64 // of the blob, in bytes
	fetchers []transfer.Source
	received *atomic.Int64 // bytes

	class class
	boost <-chan struct{} // closed when somebody waits for the bytes; nil if that is never known
}

// rotated returns the transfer with another fetcher asked first.
func (t xfer) rotated(n int) xfer {
	if len(t.fetchers) > 1 {
		n %= len(t.fetchers)
		t.fetchers = append(slices.Clone(t.fetchers[n:]), t.fetchers[:n]...)
	}
	return t
}

// fetchRange fills buf from offset off of the blob. Every fetcher is asked in turn, again
// and again with growing pauses, until the range is complete, no fetcher can have it, or
// maxTries rounds brought nothing.
func (t xfer) fetchRange(ctx context.Context, buf []byte, off int64) error {
	var (
		have int
		out  = make([]error, len(t.fetchers)) // final errors
		last error
	)
	for try := 0; try < maxTries; try++ {
		alive := false
		for i, f := range t.fetchers {
			if out[i] != nil {
				continue
			}
			n, err := t.fetchOnce(ctx, f, buf[have:], off+int64(have))
			if have += n; have == len(buf) {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, errYield) { // again, when it is let in again
				alive, try = true, -1
				break
			}
			if errors.Is(err, errNoRanges) {
				return err
			}
			if n > 0 {
				try = 0
			}
			if last = err; final(err) {
				out[i] = err
			} else {
				alive = true
			}
		}
		if !alive {
			return worst(out)
		}
		if try < 0 {
			continue
		}
		if err := pause(ctx, try, last); err != nil {
			return err
		}
	}
	return fmt.Errorf("bytes %d to %d: %w", off+int64(have), off+int64(len(buf))-1, last)
}

func (t xfer) fetchOnce(ctx context.Context, f transfer.Fetcher, buf []byte, off int64) (int, error) {
	leave, err := t.s.gate.enter(ctx, t.class, t.boost)
	if err != nil {
		return 0, err
	}
	defer leave()
	body, start, err := f.Fetch(ctx, t.blob, t.size, off, int64(len(buf)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if start != off {
		return 0, errNoRanges
	}
	return io.ReadFull(t.counted(ctx, body), buf)
}

// counted returns a reader that counts, and that lets others go first where nobody waits.
func (t xfer) counted(ctx context.Context, r io.Reader) io.Reader {
	c := countReader{r, t.received}
	if t.class != background {
		return c
	}
	return pacedReader{ctx: ctx, r: c, t: t}
}

// countReader adds what is read to a counter.
type countReader struct {
	r io.Reader
	n *atomic.Int64
}

func (c countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// paceStep is how many bytes a background transfer reads before it looks whether it should wait.
const paceStep = 256 << 10

// errYield says that a background transfer was broken off because a reader waits for other bytes. If
// it only stood still, what fills the buffers of its connection would still share the link.
var errYield = errors.New("a reader goes first")

// pacedReader is the body of a background transfer: it ends while a reader waits for other bytes,
// and keeps to the rate that is set.
type pacedReader struct {
	ctx context.Context // an io.Reader has no other way to get it
	r   io.Reader
	t   xfer
}

func (p pacedReader) Read(b []byte) (int, error) {
	if err := p.t.s.pace.wait(p.ctx, p.t.boost); err != nil {
		return 0, err
	}
	if p.t.s.gate.alarm() && !closed(p.t.boost) {
		return 0, errYield
	}
	n, err := p.r.Read(b[:min(len(b), paceStep)])
	p.t.s.pace.spend(n)
	return n, err
}

// final says that asking the same fetcher again is of no use.
func final(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) ||
		errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || errdefs.IsFailedPrecondition(err)
}

// worst returns the error that says most: one that is not "not found", if there is any.
func worst(errs []error) error {
	if len(errs) == 0 {
		return fmt.Errorf("no registry is known to fetch it from: pull the model again by its name: %w", errdefs.ErrNotFound)
	}
	for _, err := range errs {
		if !errdefs.IsNotFound(err) {
			return err
		}
	}
	return errs[len(errs)-1]
}

// pause waits before the next round: as long as the server says, else twice as long as
// before, with some chance in it so that nodes do not come back all at once.
func pause(ctx context.Context, try int, err error) error {
	d := min(firstPause<<try, maxPause)
	d = d/2 + rand.N(d/2+1)
	var after *transfer.RetryAfterError
	if errors.As(err, &after) {
		d = max(d, after.After)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
