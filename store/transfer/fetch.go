package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"
)

// Retries of a range that makes no progress: about 20 seconds in all.
const (
	maxTries   = 8
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
)

// step is the most read at once, in bytes.
const step = 256 << 10

// ErrNoRanges says that a server answers a range with the whole blob.
var ErrNoRanges = errors.New("server does not know ranges")

// errSlow is the cause of the end of a request when another source may be faster.
var errSlow = fmt.Errorf("less than %d bytes a second", MinRate)

// A Fetch brings ranges of one blob from outside. Nothing it brings is verified.
type Fetch struct {
	Scheduler *Scheduler
	Blob      digest.Digest
	Size      int64 // of the blob, in bytes
	From      *Sources
	Flow      *Flow
	Received  *atomic.Int64 // bytes, counted as they come
}

// Range fills buf from offset off of the blob, and returns the source that gave the last of the bytes.
// hold, if not nil, is the slot that the work holds meanwhile; it hears of progress.
//
// Sources are asked in turn, again and again with growing pauses, until the range is complete, no
// source can have it, or maxTries rounds brought nothing. One that gives less than MinRate loses the
// rest of the range to another of which nothing bad is known.
//
// It returns ErrNoRanges for a server without, ErrRevoked if hold is revoked, and otherwise the error
// of the sources that says most.
func (f Fetch) Range(ctx context.Context, hold *Slot, buf []byte, off int64) (from Source, err error) {
	r := rangeFetch{Fetch: f, hold: hold, buf: buf, off: off, asked: map[string]bool{}}
	return f.inTurn(ctx, off, func(src Source) (progress bool, err error) {
		n, err := r.ask(ctx, src)
		if r.have == len(buf) {
			err = nil
		}
		return n > 0, err
	})
}

// inTurn asks sources until one has no error, and returns it. off is for messages.
func (f Fetch) inTurn(ctx context.Context, off int64, ask func(Source) (progress bool, err error)) (Source, error) {
	var last error
	out := map[string]error{} // by source: why it is not asked again
	for try := 0; try < maxTries; try++ {
		alive := false
		order := f.From.Order()
		for _, src := range order {
			if out[src.Key()] != nil {
				continue
			}
			progress, err := ask(src)
			switch {
			case err == nil:
				return src, nil
			case ctx.Err() != nil:
				return src, context.Cause(ctx)
			case errors.Is(err, ErrNoRanges):
				return src, err
			case progress:
				try = 0
			}
			if final(err) {
				out[src.Key()] = err
			} else {
				last, alive = err, true
			}
		}
		if !alive {
			return Source{}, worst(order, out)
		}
		if err := pause(ctx, try, last); err != nil {
			return Source{}, err
		}
	}
	return Source{}, fmt.Errorf("bytes from %d: %w", off, last)
}

// rangeFetch is the state of one Range.
type rangeFetch struct {
	Fetch
	hold *Slot
	buf  []byte
	off  int64

	have  int             // bytes
	asked map[string]bool // sources that had their turn
}

// ask gets what it can of the rest from one source, and returns how much that was.
func (r *rangeFetch) ask(ctx context.Context, src Source) (got int, err error) {
	r.asked[src.Key()] = true
	for {
		n, err := r.once(ctx, src)
		got += n
		if err == nil || ctx.Err() != nil || !errors.Is(err, ErrRevoked) {
			return got, err
		}
		// The place is another's; this source gets it back when it is its turn.
	}
}

// once sends one request.
func (r *rangeFetch) once(ctx context.Context, src Source) (n int, err error) {
	place, err := r.Scheduler.Places.Acquire(ctx, r.Flow, src.Key())
	if err != nil {
		return 0, err
	}
	defer place.Release()
	ctx, cancel := context.WithCancelCause(place.Context)
	defer cancel(nil)
	go r.watch(ctx, src, place, maps.Clone(r.asked), cancel)
	defer func() {
		if err != nil && ctx.Err() != nil && !final(err) {
			err = context.Cause(ctx) // rather than what the source makes of it
		}
		err = Foreign(ctx, err)
		r.have += n
	}()
	rest, at := r.buf[r.have:], r.off+int64(r.have)
	body, start, err := src.Fetch(ctx, r.Blob, r.Size, at, int64(len(rest)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if start != at {
		return 0, ErrNoRanges
	}
	n, err = r.read(ctx, body, rest, place, r.hold)
	if n > 0 {
		r.From.took(src.Key(), IsPrivate(body))
	}
	return n, err
}

// read fills p from a body. Work in the background keeps to the rate that is set.
func (f Fetch) read(ctx context.Context, body io.Reader, p []byte, slots ...*Slot) (n int, err error) {
	for n < len(p) {
		want := min(len(p)-n, step)
		background := f.Flow.Class() == Background
		if burst := f.Scheduler.limit.Burst(); background && burst > 0 {
			want = min(want, burst)
		}
		m, err := body.Read(p[n : n+want])
		n += m
		f.Received.Add(int64(m))
		for _, sl := range slots {
			if sl != nil {
				sl.Progress(m)
			}
		}
		if background && m > 0 {
			if werr := f.spend(ctx, m); werr != nil {
				return n, werr
			}
		}
		if err == io.EOF && n < len(p) {
			return n, io.ErrUnexpectedEOF
		}
		if err != nil && n < len(p) {
			return n, err
		}
	}
	return n, nil
}

// paced says whether the work is as slow as it was told to be.
func (f Fetch) paced() bool {
	return f.Scheduler.limit.Limit() != rate.Inf && f.Flow.Class() == Background
}

// spend waits until work in the background may read on after n bytes, at most a burst. It looks again and
// again: the rate can change, and the work be promoted.
func (f Fetch) spend(ctx context.Context, n int) error {
	for !f.Scheduler.limit.AllowN(time.Now(), n) && f.Flow.Class() == Background {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// watch ends a request that is slow, as soon as there is a source that had no turn yet (asked) and of
// which nothing bad is known. A slow link is not made slower by asking in turn those who share it. It
// returns when the request has ended.
func (f Fetch) watch(ctx context.Context, src Source, place *Slot, asked map[string]bool, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var before int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := place.bytes.Load()
		if now-before < int64(MinRate*look.Seconds()) && !f.paced() && f.From.better(asked) {
			f.From.slowed(src)
			cancel(errSlow)
			return
		}
		before = now
	}
}

// final says that asking the same source again is of no use.
func final(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) ||
		errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) || errdefs.IsFailedPrecondition(err)
}

// worst returns the error that says most: one that is not "not found", if there is any.
func worst(order []Source, errs map[string]error) error {
	var last error
	for _, src := range order {
		if last = errs[src.Key()]; !errdefs.IsNotFound(last) {
			return last
		}
	}
	if last == nil {
		return fmt.Errorf("no registry is known to fetch it from: pull the model again by its name: %w", errdefs.ErrNotFound)
	}
	return last
}

// pause waits before the next round: as long as the server says, else twice as long as
// before, with some chance in it so that nodes do not come back all at once.
func pause(ctx context.Context, try int, err error) error {
	d := min(firstPause<<try, maxPause)
	d = d/2 + rand.N(d/2+1)
	var after *RetryAfterError
	if errors.As(err, &after) {
		d = max(d, after.After)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
