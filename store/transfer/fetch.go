package transfer

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/dustin/go-humanize"
	"github.com/opencontainers/go-digest"
)

// ranges are the retries of a range without progress: about 20 seconds in total.
var ranges = Retry{Tries: 8, Pause: 200 * time.Millisecond, Longest: 10 * time.Second}

// step is the largest single read, in bytes.
const step = 256 << 10

// ErrNoRanges means that a server answers a range request with the whole blob.
var ErrNoRanges = errors.New("server does not support ranges")

// Causes of a request cancelled, or not made, because another source is, or may be, faster.
var (
	errSlow    = errors.New("much slower than another source, or than is useful")
	errCompare = errors.New("slow; another source is compared with it")
	errSilent  = errors.New("it sends nothing to others")
)

// A Fetch fetches ranges of a blob from outside.
type Fetch struct {
	Scheduler *Scheduler
	Blob      digest.Digest
	Size      int64 // of the blob, in bytes
	From      *Sources
	Flow      *Flow
	Received  *atomic.Int64 // counts bytes as they arrive
	Corrupt   *atomic.Int64 // counts ranges with wrong bytes
	Log       *slog.Logger

	whole *whole // set by All for servers without ranges
}

// Range fills buf from offset off of the blob, and returns the source of the last bytes. hold, if not nil, is the slot
// that the work holds meanwhile, with its Context and Flow; it is informed of progress. check, if not nil, gets the
// bytes when buf is full, and returns errdefs.ErrDataLoss if they are wrong. Without it, they are not verified.
//
// Sources are asked as Attempts describes, until the range is complete, no source can provide it, or eight rounds
// made no progress. If a source is slower than MinRate, or a mirror much slower than others, the rest of the range is
// taken from another source without known problems. A source of wrong bytes is blamed and another one is asked, or
// the same one once more if there is no other. The mirrors among them are reported as wrong if an origin then has the
// right bytes. If a mirror and another source together gave wrong bytes, nobody is blamed: the range is fetched again
// from one of them, and then its bytes show whether the mirror lied.
//
// It returns ErrNoRanges if the server does not support ranges, ErrRevoked if hold is revoked, ErrWrong, other errors
// of check, and otherwise those of Attempts.
func (f Fetch) Range(ctx context.Context, hold *Slot, buf []byte, off int64, check func() error) (Source, error) {
	if hold != nil {
		ctx, f.Flow = hold.Context, hold.Flow()
	}
	t := f.From.Attempts(ranges)
	if f.whole != nil && f.whole.has(off) {
		t.first = f.whole.src.Key() // another source would begin at the first byte
	}
	r := rangeFetch{Fetch: f, hold: hold, buf: buf, off: off, asked: t.errs}
	network := f.Flow.Enter(Network)
	defer func() { network() }()
	for t.Next(ctx) {
		src, most, err := t.Source, r.most, error(nil)
		for again := true; again; again = errors.Is(err, ErrRevoked) && ctx.Err() == nil && r.have < len(buf) {
			have, n := r.keep(src), 0 // again: the place of the request was given to another source
			hold.expect(src.Endpoint)
			switch rest, at := buf[have:], off+int64(have); {
			case f.whole != nil:
				n, err = f.whole.read(f, src, hold, rest, at)
			case src.Endpoint != nil && src.Endpoint.Piece > 0:
				n, err = r.fill(ctx, src, rest, at)
			default:
				err = f.request(ctx, src, t.errs, at, int64(len(rest)), func(a answer) (err error) {
					if n, err = f.receive(a, src, rest, hold); n > 0 {
						f.From.addProvider(src.Key(), IsPrivate(a.body))
					}
					return err
				})
			}
			if n > 0 {
				r.add(src, have, n)
			}
		}
		if r.have == len(buf) {
			err = nil
		}
		t.Done(ctx, err)
		if r.most > most {
			t.rounds = 0
		}
		if err == nil && check != nil {
			network()
			err = check()
			network = f.Flow.Enter(Network)
			r.judge(ctx, t, err)
		}
	}
	return t.Source, t.Err()
}

// rangeFetch is the state of one Range.
type rangeFetch struct {
	Fetch
	hold  *Slot
	buf   []byte
	off   int64
	asked map[string]error // of Attempts

	have  int    // bytes
	parts []part // of these, in order
	most  int    // the largest value of have

	apart    bool   // bytes of a mirror are not joined with others: together they were wrong
	suspects []part // the parts of mirrors in these
}

// A part is bytes of one source in a range.
type part struct {
	src      Source
	from, to int
	sum      uint64 // of a suspect
}

// sums are the hashes of suspects.
var sums = maphash.MakeSeed()

// keep returns how many of the bytes so far are kept for a request to src.
func (r *rangeFetch) keep(src Source) int {
	if r.apart && joined(append(slices.Clip(r.parts), part{src: src})) {
		return 0
	}
	return r.have
}

// add records that src has given n bytes after the first have.
func (r *rangeFetch) add(src Source, have, n int) {
	r.parts = slices.DeleteFunc(r.parts, func(p part) bool { return p.from >= have })
	if last := len(r.parts) - 1; last >= 0 {
		r.parts[last].to = min(r.parts[last].to, have)
	}
	r.parts = append(r.parts, part{src: src, from: have, to: have + n})
	r.have, r.most = have+n, max(r.most, have+n)
}

// joined reports whether bytes of a mirror are beside those of another source.
func joined(parts []part) bool {
	other := func(p part) bool { return p.src.Key() != parts[0].src.Key() }
	return slices.ContainsFunc(parts, other) && slices.ContainsFunc(parts, part.isMirror)
}

func (p part) isMirror() bool { return p.src.Endpoint.isMirror() }

// suspect remembers what mirrors gave of a range that is wrong.
func (r *rangeFetch) suspect() {
	r.apart = true
	for _, p := range r.parts {
		if p.isMirror() {
			p.sum = maphash.Bytes(sums, r.buf[p.from:p.to])
			r.suspects = append(r.suspects, p)
		}
	}
}

// liars returns the mirrors among the suspects that gave other bytes than the right ones in buf.
func (r *rangeFetch) liars() (all []Source) {
	for _, p := range r.suspects {
		if p.sum != maphash.Bytes(sums, r.buf[p.from:p.to]) {
			all = append(all, p.src)
		}
	}
	return all
}

// judge acts on the result of a check.
func (r *rangeFetch) judge(ctx context.Context, t *Attempts, err error) {
	switch {
	case err == nil:
		right := t.Source
		if i := slices.IndexFunc(r.parts, part.isMirror); i >= 0 {
			right = r.parts[i].src
		}
		ReportWrong(r.Log, right, append(r.liars(), t.lied...))
	case !errdefs.IsDataLoss(err):
		t.end(ctx, err)
	default:
		r.Corrupt.Add(1)
		r.Log.Warn("wrong bytes; trying another source",
			"blob", r.Blob, "source", t.Name, "offset", r.off, "size", len(r.buf), "err", err)
		if joined(r.parts) {
			r.suspect()
			t.anew()
		} else {
			t.wrong(ctx, err)
		}
		r.have, r.most, r.parts = 0, 0, nil
	}
}

// request requests the n bytes from at, and calls use with the answer and the place that it holds. It ends early if a
// better source was not asked; see watch.
func (f Fetch) request(ctx context.Context, src Source, asked map[string]error, at, n int64, use func(answer) error) (
	err error,
) {
	place, err := f.Scheduler.Places.Acquire(ctx, f.Flow, src.Key())
	if err != nil {
		return err
	}
	defer place.Release()
	place.expect(src.Endpoint)
	ctx, cancel := context.WithCancelCause(place.Context)
	defer cancel(nil)
	go f.watch(ctx, src, place, maps.Clone(asked), cancel)
	defer func() {
		if err != nil && ctx.Err() != nil && !Final(err) {
			err = context.Cause(ctx) // instead of what the source makes of it
		}
		err = Foreign(ctx, err)
	}()
	body, start, err := src.Fetch(ctx, f.Blob, f.Size, at, n)
	if err != nil {
		return err
	}
	defer body.Close()
	place.begin()
	if start != at {
		return ErrNoRanges
	}
	return use(answer{ctx, body, place})
}

// An answer is what a source sends for a request.
type answer struct {
	ctx   context.Context // of the request
	body  io.Reader
	place *Slot // which the request holds, or nil
}

// receive fills p from an answer of src, and counts. hold is informed of progress, too.
func (f Fetch) receive(a answer, src Source, p []byte, hold *Slot) (n int, err error) {
	began := time.Now()
	n, err = f.read(a.ctx, a.body, p, a.place, hold)
	f.Flow.count(src.Endpoint, n)
	src.Endpoint.count(n)
	if !f.paced() && src.Endpoint.gather() == 0 {
		src.Endpoint.received(int64(n), time.Since(began))
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
// known problems. It does not cycle through sources, which would not make a slow link faster. A rate is
// measured over look, or over Endpoint.Gather or LongGather where bytes come in bursts. It returns when the request has
// ended.
func (f Fetch) watch(ctx context.Context, src Source, place *Slot, tried map[string]error, cancel context.CancelCauseFunc) {
	if src.Endpoint != nil && src.Endpoint.Patience < 0 {
		return
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	asked := time.Now()
	patient := func(gather time.Duration) bool {
		e, begun := src.Endpoint, place.begun.Load()
		if begun == nil && f.Flow.Class() != Urgent { // whose reader would wait for a server that hangs
			begun = &asked
		}
		return e != nil && (time.Since(asked) < e.Patience || begun != nil && time.Since(*begun) < gather)
	}
	var seen, before int64      // bytes at the last tick, and at the start of the measurement
	since, last := asked, asked // the start of the measurement, and the last tick with new bytes
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := place.bytes.Load()
		if now > seen {
			seen, last = now, time.Now()
			src.Endpoint.hear()
		}
		gather := src.Endpoint.wait(f.Flow.Class())
		if now == 0 && patient(gather) || f.paced() {
			before, since, last = now, time.Now(), time.Now()
			continue
		}
		n, d := now-before, time.Since(since)
		if gather > 0 && now > 0 {
			if time.Since(last) >= gather {
				n = 0
			} else if d < gather {
				continue
			}
		}
		d = max(d, look)
		if why := f.From.better(src, tried, float64(n)/d.Seconds()); why != nil {
			f.From.slowed(src)
			cancel(fmt.Errorf("%s in %v: %w", humanize.Bytes(uint64(n)), d.Round(time.Second/10), why))
			return
		}
		src.Endpoint.received(n, d)
		before, since = now, time.Now()
	}
}
