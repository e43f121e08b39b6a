package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Retries of a range without progress: about 20 seconds in total.
const (
	maxTries   = 8
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
)

// step is the largest single read, in bytes.
const step = 256 << 10

// ErrNoRanges means that a server answers a range request with the whole blob.
var ErrNoRanges = errors.New("server does not support ranges")

// Causes of a request cancelled because another source is, or may be, faster.
var (
	errSlow    = errors.New("much slower than another source, or than is useful")
	errCompare = errors.New("slow; another source is compared with it")
)

// A Fetch fetches ranges of a blob from outside. The bytes are not verified.
type Fetch struct {
	Scheduler *Scheduler
	Blob      digest.Digest
	Size      int64 // of the blob, in bytes
	From      *Sources
	Flow      *Flow
	Received  *atomic.Int64 // counts bytes as they arrive
}

// Range fills buf from offset off of the blob, and returns the source of the last bytes. If that is a mirror, all
// bytes are from it, and otherwise none is from a mirror. hold, if not nil, is the slot that the work holds meanwhile;
// it is informed of progress.
//
// Sources are tried in turn, repeatedly with increasing pauses, until the range is complete, no
// source can provide it, or maxTries rounds made no progress. If a source is slower than MinRate, or a mirror
// much slower than others, the rest of the range is taken from another source without known problems.
//
// It returns ErrNoRanges if the server does not support ranges, ErrRevoked if hold is revoked, and
// otherwise the most informative error of the sources.
func (f Fetch) Range(ctx context.Context, hold *Slot, buf []byte, off int64) (from Source, err error) {
	r := rangeFetch{Fetch: f, hold: hold, buf: buf, off: off, asked: map[string]bool{}}
	return f.inTurn(ctx, off, func(src Source) (progress bool, err error) {
		most := r.most
		err = r.ask(ctx, src)
		if r.have == len(buf) {
			err = nil
		}
		return r.most > most, err
	})
}

// inTurn calls ask with sources in turn until one succeeds, and returns it. off is for messages.
func (f Fetch) inTurn(ctx context.Context, off int64, ask func(Source) (progress bool, err error)) (Source, error) {
	defer f.Flow.Enter(Network)()
	var last error
	out := map[string]error{} // by source: its final error
	for try := 0; try < maxTries; try++ {
		alive := false
		order := f.From.Order()
		for i, src := range order {
			if out[src.Key()] != nil {
				continue
			}
			spare := slices.ContainsFunc(order[i+1:], func(other Source) bool { return out[other.Key()] == nil })
			if !src.Endpoint.Enter(spare) {
				alive = true
				continue
			}
			began := time.Now()
			progress, err := ask(src)
			outcome := OutcomeOf(ctx, err)
			if outcome == Absent && !src.Endpoint.isMirror() && !errdefs.IsNotFound(err) {
				outcome = Unknown // it may have the blob
			}
			f.From.asked(src, began, outcome)
			switch {
			case err == nil:
				return src, nil
			case ctx.Err() != nil:
				return src, context.Cause(ctx)
			case errors.Is(err, ErrNoRanges) && !(src.Endpoint.isMirror() && spare):
				return src, err
			case progress:
				try = 0
			}
			if Final(err) || errors.Is(err, ErrNoRanges) {
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

// OutcomeOf returns what the error of a request says about an endpoint.
func OutcomeOf(ctx context.Context, err error) Outcome {
	switch {
	case err == nil:
		return Good
	case ctx.Err() != nil, errors.Is(err, ErrRevoked), errors.Is(err, errCompare):
		return Unknown
	case errors.Is(err, ErrNotAsked):
		return NotAsked
	case Final(err), errors.Is(err, ErrNoRanges):
		return Absent
	}
	return Failed
}

// rangeFetch is the state of one Range.
type rangeFetch struct {
	Fetch
	hold *Slot
	buf  []byte
	off  int64

	have  int             // bytes
	from  Source          // of these; the last one of several
	most  int             // the largest value of have
	asked map[string]bool // sources that were tried
}

// ask gets as much of the rest as possible from one source.
func (r *rangeFetch) ask(ctx context.Context, src Source) error {
	r.asked[src.Key()] = true
	for {
		err := r.once(ctx, src)
		if err == nil || ctx.Err() != nil || !errors.Is(err, ErrRevoked) {
			return err
		}
		// The slot was given to another source; this source waits for its turn.
	}
}

// once sends one request, or one for each piece. If the bytes so far are of a mirror and src is another source, or the
// other way round, it is for the whole range: who sent wrong bytes has to be known.
func (r *rangeFetch) once(ctx context.Context, src Source) error {
	have := r.have
	if src.Key() != r.from.Key() && (src.Endpoint.isMirror() || r.from.Endpoint.isMirror()) {
		have = 0
	}
	get := r.request
	if src.Endpoint != nil && src.Endpoint.Piece > 0 {
		get = r.fill
	}
	n, err := get(ctx, src, r.buf[have:], r.off+int64(have))
	if n > 0 {
		r.Flow.count(src.Endpoint, n)
		r.have, r.from = have+n, src
		r.most = max(r.most, r.have)
	}
	return err
}

// request fills buf with the bytes from at, with one request.
func (r *rangeFetch) request(ctx context.Context, src Source, buf []byte, at int64) (n int, err error) {
	place, err := r.Scheduler.Places.Acquire(ctx, r.Flow, src.Key())
	if err != nil {
		return 0, err
	}
	defer place.Release()
	ctx, cancel := context.WithCancelCause(place.Context)
	defer cancel(nil)
	go r.watch(ctx, src, place, maps.Clone(r.asked), cancel)
	defer func() {
		if err != nil && ctx.Err() != nil && !Final(err) {
			err = context.Cause(ctx) // instead of what the source makes of it
		}
		err = Foreign(ctx, err)
	}()
	body, start, err := src.Fetch(ctx, r.Blob, r.Size, at, int64(len(buf)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	place.begin()
	if start != at {
		return 0, ErrNoRanges
	}
	began := time.Now()
	n, err = r.read(ctx, body, buf, place, r.hold)
	if n > 0 {
		src.Endpoint.count(n)
		if !r.paced() {
			src.Endpoint.received(int64(n), time.Since(began))
		}
		r.From.addProvider(src.Key(), IsPrivate(body))
	}
	return n, err
}

// read fills p from a body. Background work keeps to the rate limit.
func (f Fetch) read(ctx context.Context, body io.Reader, p []byte, slots ...*Slot) (n int, err error) {
	for n < len(p) {
		want := min(len(p)-n, step)
		background := f.Flow.Class() == Background
		if background {
			want = f.Flow.step(want)
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

// paced reports whether the work is slowed down by the rate limit.
func (f Fetch) paced() bool {
	return slices.ContainsFunc(f.Flow.whole().limits, (*Limiter).active) && f.Flow.Class() == Background
}

// spend waits until background work may read on after n bytes. It polls, because
// the rate may change and the work may be promoted.
func (f Fetch) spend(ctx context.Context, n int) error {
	defer f.Flow.Enter(Paced)()
	for _, limit := range f.Flow.whole().limits {
		for left := n - limit.spend(n); left > 0 && f.Flow.Class() == Background; left -= limit.spend(left) {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// watch cancels a slow request when there is a better source that was not tried yet and has no
// known problems. It does not cycle through sources, which would not make a slow link faster. It
// returns when the request has ended.
func (f Fetch) watch(ctx context.Context, src Source, place *Slot, tried map[string]bool, cancel context.CancelCauseFunc) {
	if src.Endpoint != nil && src.Endpoint.Patience < 0 {
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	asked := time.Now()
	patient := func() bool {
		e, begun := src.Endpoint, place.begun.Load()
		return e != nil && (time.Since(asked) < e.Patience || begun != nil && time.Since(*begun) < e.Gather)
	}
	var before int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := place.bytes.Load()
		n := now - before
		before = now
		if now == 0 && patient() {
			continue
		}
		if f.paced() {
			continue
		}
		if why := f.From.better(src, tried, float64(n)/look.Seconds()); why != nil {
			f.From.slowed(src)
			cancel(why)
			return
		}
		src.Endpoint.received(n, look)
	}
}

// worst returns the most informative error: one that is not "not found", if any, otherwise that of a server, and not of a mirror if
// an origin was asked.
func worst(order []Source, errs map[string]error) error {
	if origins := slices.DeleteFunc(slices.Clone(order), func(src Source) bool { return src.Endpoint.isMirror() }); len(origins) > 0 {
		order = origins
	}
	var last error
	for _, src := range order {
		err := errs[src.Key()]
		if !errdefs.IsNotFound(err) {
			return err
		}
		if last == nil || src.Endpoint != nil {
			last = err
		}
	}
	if last == nil {
		return fmt.Errorf("no registry is known for it; pull the model again by its name: %w", errdefs.ErrNotFound)
	}
	return last
}

// pause waits before the next round: as long as the server requests, otherwise twice as long as
// before, with a random part so that nodes do not retry at the same time.
func pause(ctx context.Context, try int, err error) error {
	d := min(firstPause<<try, maxPause)
	d = d/2 + rand.N(d/2+1)
	return Wait(ctx, d, err)
}
