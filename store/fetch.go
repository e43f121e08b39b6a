package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// Retries of a range that makes no progress: about 20 seconds in all.
const (
	maxTries   = 8
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
)

// errNoRanges says that a server answers a range with the whole blob.
var errNoRanges = errors.New("server does not know ranges")

// The states of a job, as Progress shows them.
const (
	stateWaiting     = "waiting"
	stateDownloading = "downloading"
	stateVerifying   = "verifying"
	stateComplete    = "complete"
	statePresent     = "present"
)

// A job fetches one blob, verifies it and turns it into objects. There is at most one per
// blob; whoever needs the blob waits for it.
type job struct {
	s        *Store
	blob     Blob
	pieces   []piece // where it is staged
	layout   string  // says what the job does with the blob
	fetchers []Fetcher

	cancel context.CancelFunc
	done   chan struct{} // closed at the end
	err    error         // valid when done is closed

	waiters int // guarded by Store.mu

	bytes atomic.Int64 // present or fetched
	state atomic.Value // string
}

// parallelUnpacks is how many compressed archives are unpacked at the same time. Each can ask
// for a window of zstdWindow.
const parallelUnpacks = 2

// fetchBlob waits for the job of a blob, starting it if there is none. When ctx ends, the
// job ends too unless somebody else waits.
//
// Another's job is an answer only if it does what ours would, and succeeds: it may stage the
// blob elsewhere, and its registries may not have what ours have.
func (s *Store) fetchBlob(ctx context.Context, b Blob, pieces []piece, fetchers []Fetcher, started func(*job)) error {
	want := fmt.Sprint(b.Archive, b.Codec, b.Size, b.DiffID, layoutOf(pieces))
	for {
		j, mine, err := s.join(b, pieces, fetchers, want)
		if err != nil {
			return err
		}
		started(j)
		select {
		case <-j.done:
			err = j.err
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		if j.waiters--; j.waiters == 0 {
			j.cancel()
		}
		s.mu.Unlock()
		if mine || ctx.Err() != nil || s.ctx.Err() != nil || err == nil && j.layout == want {
			return err
		}
	}
}

// join returns the job of a blob with one more waiter, and whether it was started for us.
func (s *Store) join(b Blob, pieces []piece, fetchers []Fetcher, layout string) (j *job, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, errClosed
	}
	j, ok := s.jobs[b.Digest]
	if !ok {
		ctx, cancel := context.WithCancel(s.ctx)
		j = &job{s: s, blob: b, pieces: pieces, layout: layout, fetchers: fetchers, cancel: cancel, done: make(chan struct{})}
		j.state.Store(stateWaiting)
		s.jobs[b.Digest] = j
		s.work.Go(func() { j.main(ctx) })
	}
	j.waiters++
	return j, !ok, nil
}

func (j *job) main(ctx context.Context) {
	err := j.run(ctx)
	j.s.mu.Lock()
	delete(j.s.jobs, j.blob.Digest)
	j.s.mu.Unlock()
	if err != nil {
		j.err = fmt.Errorf("layer %d (%s): %w", j.blob.Layer, j.blob.Digest, err)
	} else {
		j.state.Store(stateComplete)
	}
	j.cancel()
	close(j.done)
}

// run fetches the blob. If it turns out wrong, it is fetched once more from its first byte: the
// bytes that were on the disk before may have been wrong, or a fetcher, so that each gets its
// turn to be the first that is asked.
func (j *job) run(ctx context.Context) error {
	for first := 0; ; {
		resumed, err := j.attempt(ctx)
		var wrong *VerifyError
		if !errors.As(err, &wrong) {
			return err
		}
		if !resumed {
			if first++; first >= len(j.fetchers) {
				return err
			}
			j.fetchers = append(slices.Clone(j.fetchers[1:]), j.fetchers[0])
		}
		j.s.log.Warn("blob is wrong; fetching it anew", "digest", j.blob.Digest, "err", err)
	}
}

func (j *job) attempt(ctx context.Context) (resumed bool, err error) {
	if j.blob.Codec != CodecNone {
		select {
		case j.s.unpackers <- struct{}{}:
			defer func() { <-j.s.unpackers }()
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	p, err := j.s.openPartial(j.blob, j.pieces)
	if err != nil {
		return false, err
	}
	defer p.close()
	j.bytes.Store(p.present())
	j.state.Store(stateDownloading)

	sink := newSink(j, p)
	err = j.stream(ctx, p, sink.consume)
	if errors.Is(err, errNoRanges) {
		sink.abort()
		sink = newSink(j, p)
		j.bytes.Store(p.present())
		err = j.streamWhole(ctx, p, sink.consume)
	}
	if err != nil {
		sink.abort()
		return p.resumed, err
	}
	j.state.Store(stateVerifying)
	if err := sink.finish(); err != nil {
		if errdefs.IsDataLoss(err) || errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) {
			err = errors.Join(err, p.remove())
		}
		return p.resumed, err // for another reason, such as a full disk, what is there stays
	}
	if j.blob.Archive == ArchiveFragments {
		return p.resumed, nil // it goes when its files are put together
	}
	return p.resumed, p.remove()
}

// A slot is one chunk on its way.
type slot struct {
	chunk int
	buf   []byte        // a whole buffer
	done  chan struct{} // closed when filled or failed
	err   error
}

// stream fills the chunks of a blob, many at a time, and hands them to consume in order.
//
// Buffers are what bounds it. They are taken in the order of the chunks, so the chunk that
// consume waits for always has one: jobs can not block each other.
func (j *job) stream(ctx context.Context, p *partial, consume func([]byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	order := make(chan *slot, cap(j.s.buffers.tokens))
	g.Go(func() error {
		defer close(order)
		for i := range p.chunks() {
			buf, err := j.s.buffers.take(ctx)
			if err != nil {
				return err
			}
			sl := &slot{chunk: i, buf: buf, done: make(chan struct{})}
			order <- sl // never blocks: there are no more buffers than places
			g.Go(func() error {
				defer close(sl.done)
				sl.err = j.fill(ctx, p, sl)
				return sl.err
			})
		}
		return nil
	})
	g.Go(func() error {
		for sl := range order {
			<-sl.done
			err := sl.err
			if err == nil {
				_, n := p.chunk(sl.chunk)
				err = consume(sl.buf[:n])
			}
			j.s.buffers.give(sl.buf)
			if err != nil {
				return err
			}
		}
		return nil
	})
	err := g.Wait()
	for sl := range order { // left over after an error
		j.s.buffers.give(sl.buf)
	}
	return err
}

// fill reads a chunk from the disk if it is there, else from outside, and stages it.
func (j *job) fill(ctx context.Context, p *partial, sl *slot) error {
	off, n := p.chunk(sl.chunk)
	buf := sl.buf[:n]
	if p.has(sl.chunk) {
		if _, err := p.ReadAt(buf, off); err == nil {
			return nil
		}
		j.bytes.Add(-n) // it is marked, but its file is gone
	}
	if err := j.fetchRange(ctx, buf, off); err != nil {
		return err
	}
	return p.write(sl.chunk, buf)
}

// fetchRange fills buf from offset off of the blob. Every fetcher is asked in turn, again
// and again with growing pauses, until the range is complete, no fetcher can have it, or
// maxTries rounds brought nothing.
func (j *job) fetchRange(ctx context.Context, buf []byte, off int64) error {
	var (
		have int
		out  = make([]error, len(j.fetchers)) // final errors
		last error
	)
	for try := 0; try < maxTries; try++ {
		alive := false
		for i, f := range j.fetchers {
			if out[i] != nil {
				continue
			}
			n, err := j.fetchOnce(ctx, f, buf[have:], off+int64(have))
			if have += n; have == len(buf) {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
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
		if err := pause(ctx, try, last); err != nil {
			return err
		}
	}
	return fmt.Errorf("bytes %d to %d: %w", off+int64(have), off+int64(len(buf))-1, last)
}

func (j *job) fetchOnce(ctx context.Context, f Fetcher, buf []byte, off int64) (int, error) {
	select {
	case j.s.connections <- struct{}{}:
		defer func() { <-j.s.connections }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	body, start, err := f.Fetch(ctx, j.blob.Digest, j.blob.Size, off, int64(len(buf)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if start != off {
		return 0, errNoRanges
	}
	n, err := io.ReadFull(countReader{body, &j.bytes}, buf)
	return n, err
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
		return ctx.Err()
	}
}

// streamWhole is stream for a server without ranges: one body from the first byte to the
// last. After an error it begins again, skipping what is staged.
func (j *job) streamWhole(ctx context.Context, p *partial, consume func([]byte) error) error {
	buf, err := j.s.buffers.take(ctx)
	if err != nil {
		return err
	}
	defer j.s.buffers.give(buf)
	w := wholeReader{j: j}
	defer w.close()
	for i := range p.chunks() {
		off, n := p.chunk(i)
		chunk := buf[:n]
		if p.has(i) {
			if _, err := p.ReadAt(chunk, off); err != nil {
				return err
			}
		} else {
			if err := w.readAt(ctx, chunk, off); err != nil {
				return err
			}
			if err := p.write(i, chunk); err != nil {
				return err
			}
			j.bytes.Add(n)
		}
		if err := consume(chunk); err != nil {
			return err
		}
	}
	return nil
}

// wholeReader reads a blob in order from bodies that always begin at its first byte.
type wholeReader struct {
	j    *job
	body io.ReadCloser
	at   int64
}

func (w *wholeReader) readAt(ctx context.Context, buf []byte, off int64) error {
	var last error
	out := make([]error, len(w.j.fetchers)) // final errors
	for try := range maxTries {
		if try > 0 {
			if err := pause(ctx, try, last); err != nil {
				return err
			}
		}
		alive := false
		for i, f := range w.j.fetchers {
			if out[i] != nil {
				continue
			}
			err := w.try(ctx, f, buf, off)
			if err == nil || ctx.Err() != nil {
				return err
			}
			w.close()
			if last = err; final(err) {
				out[i] = err
			} else {
				alive = true
			}
		}
		if !alive {
			return worst(out)
		}
	}
	return fmt.Errorf("bytes from %d, from a server without ranges: %w", off, last)
}

func (w *wholeReader) try(ctx context.Context, f Fetcher, buf []byte, off int64) error {
	if w.body == nil || w.at > off {
		w.close()
		body, start, err := f.Fetch(ctx, w.j.blob.Digest, w.j.blob.Size, 0, w.j.blob.Size)
		if err != nil {
			return err
		}
		w.body, w.at = body, start
	}
	n, err := io.CopyN(io.Discard, w.body, off-w.at)
	if w.at += n; err != nil {
		return err
	}
	m, err := io.ReadFull(w.body, buf)
	w.at += int64(m)
	return err
}

func (w *wholeReader) close() {
	if w.body != nil {
		w.body.Close()
		w.body = nil
	}
}

// hasher computes the sha256 of what is written to it.
type hasher struct{ h hash.Hash }

func newHasher() hasher { return hasher{sha256.New()} }

func (h hasher) Write(p []byte) (int, error) { return h.h.Write(p) }

func (h hasher) digest() digest.Digest { return digest.NewDigest(digest.SHA256, h.h) }
