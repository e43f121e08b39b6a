package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

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
	blob     filetable.Blob
	lazy     *lazyFile // that the job brings by its chunks, or nil
	pieces   []piece   // where it is staged
	layout   string    // says what the job does with the blob
	fetchers []transfer.Source

	cancel context.CancelFunc
	done   chan struct{} // closed at the end
	err    error         // valid when done is closed

	waiters int // guarded by Store.mu

	awaited atomic.Bool   // somebody waits for the end
	urge    chan struct{} // closed when awaited is set

	bytes atomic.Int64 // present or fetched; see present
	state atomic.Value // string
}

// parallelUnpacks is how many compressed archives are unpacked at the same time. Each can ask
// for a window of zstdWindow.
const parallelUnpacks = 2

// fetchBlob waits for the job of a unit, starting it if there is none. When ctx ends, the
// job ends too unless somebody else waits.
//
// Another's job is an answer only if it does what ours would, and succeeds: it may stage the
// blob elsewhere, and its registries may not have what ours have.
func (s *Store) fetchBlob(ctx context.Context, u unit, fetchers []transfer.Source, started func(*job)) error {
	want := fmt.Sprint(u.blob.Archive, u.blob.Codec, u.blob.Size, u.blob.DiffID, layoutOf(u.pieces, nil))
	if u.lazy != nil {
		want = u.lazy.how.recipe.String()
	}
	for {
		j, mine, err := s.join(u, fetchers, want)
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
		if err == nil && u.blob.Archive == filetable.ArchiveNone && s.has(u.blob.Digest) {
			return nil // by another way
		}
	}
}

// join returns the job of a unit with one more waiter, and whether it was started for us.
func (s *Store) join(u unit, fetchers []transfer.Source, layout string) (j *job, mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, errClosed
	}
	j, ok := s.jobs[u.blob.Digest]
	if !ok {
		ctx, cancel := context.WithCancel(s.ctx)
		j = &job{
			s: s, blob: u.blob, lazy: u.lazy, pieces: u.pieces, layout: layout, fetchers: fetchers,
			cancel: cancel, done: make(chan struct{}), urge: make(chan struct{}),
		}
		j.state.Store(stateWaiting)
		s.jobs[u.blob.Digest] = j
		s.work.Go(func() { j.main(ctx) })
	}
	j.waiters++
	return j, !ok, nil
}

// await says that somebody waits for the end of the job.
func (j *job) await() {
	if !j.awaited.CompareAndSwap(false, true) {
		return
	}
	close(j.urge)
	if j.lazy != nil {
		j.lazy.hurry()
	}
}

// present returns how many bytes are there.
func (j *job) present() int64 {
	if j.lazy == nil {
		return j.bytes.Load()
	}
	return j.lazy.present() // others bring it too
}

// class says how urgent the job is.
func (j *job) class() class {
	if j.awaited.Load() {
		return soon
	}
	return background
}

// buffers returns those that the job takes from.
func (j *job) buffers() *buffers {
	if j.awaited.Load() {
		return j.s.buffers
	}
	return j.s.idleBuffers
}

// transfer returns how the ranges of the job's blob come from outside.
func (j *job) transfer() xfer {
	t := xfer{s: j.s, blob: j.blob.Digest, size: j.blob.Size, fetchers: j.fetchers, received: &j.bytes, class: j.class()}
	if t.class == background {
		t.boost = j.urge
	}
	if j.lazy != nil {
		t.blob, t.size = j.lazy.how.from.Digest, j.lazy.how.from.Size
	}
	return t
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
		var wrong *verify.Error
		if !errors.As(err, &wrong) || errors.Is(err, errChunk) {
			return err
		}
		if !resumed {
			if j.lazy != nil && !j.lazy.how.unverified {
				return fmt.Errorf("its chunks are right, but the file is not: the table is wrong: %w", err)
			}
			if first++; first >= len(j.fetchers) {
				return err
			}
			j.fetchers = append(slices.Clone(j.fetchers[1:]), j.fetchers[0])
		}
		j.s.counts.corrupt.Add(1)
		j.s.log.Warn("blob is wrong; fetching it anew", "digest", j.blob.Digest, "err", err)
	}
}

func (j *job) attempt(ctx context.Context) (resumed bool, err error) {
	if j.blob.Codec != filetable.CodecNone {
		select {
		case j.s.unpackers <- struct{}{}:
			defer func() { <-j.s.unpackers }()
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	p, st, closeStage, err := j.open()
	if err != nil {
		return false, err
	}
	defer closeStage()
	j.bytes.Store(p.present())
	j.state.Store(stateDownloading)

	sink := newSink(j, p)
	err = j.stream(ctx, p, st, sink.consume)
	if errors.Is(err, errNoRanges) {
		sink.abort()
		sink = newSink(j, p)
		j.bytes.Store(p.present())
		j.s.log.Warn("server does not know ranges: a blob comes from its first byte to its last", "digest", j.blob.Digest)
		err = j.streamWhole(ctx, p, sink.consume)
	}
	if err != nil {
		sink.abort()
		return p.resumed, err
	}
	j.state.Store(stateVerifying)
	if err := sink.finish(); err != nil {
		if errdefs.IsDataLoss(err) || errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) {
			if j.lazy != nil {
				j.lazy.retire()
			}
			err = errors.Join(err, p.remove())
		}
		return p.resumed, err // for another reason, such as a full disk, what is there stays
	}
	if j.blob.Archive == filetable.ArchiveFragments {
		return p.resumed, nil // it goes when its files are put together
	}
	return p.resumed, p.remove()
}

// open opens where the job stages what it brings. st is nil for a blob that is not brought by its
// chunks.
func (j *job) open() (p *partial, st *staging, closeStage func(), err error) {
	if j.lazy != nil {
		st, err := j.lazy.acquire()
		if err != nil {
			return nil, nil, nil, err
		}
		return st.p, st, func() { j.lazy.release(st) }, nil
	}
	p, err = j.s.openPartial(partialName(j.blob.Digest), j.blob.Size, j.pieces, nil)
	if err != nil {
		return nil, nil, nil, err
	}
	return p, nil, func() { p.close() }, nil
}

// A slot is one chunk on its way.
type slot struct {
	chunk int
	buf   []byte        // a whole buffer
	from  *buffers      // where it is from
	done  chan struct{} // closed when filled or failed
	err   error
}

// stream fills the chunks of a blob, many at a time, and hands them to consume in order.
//
// Buffers are what bounds it. They are taken in the order of the chunks, so the chunk that
// consume waits for always has one: jobs can not block each other.
func (j *job) stream(ctx context.Context, p *partial, st *staging, consume func([]byte) error) error {
	g, ctx := errgroup.WithContext(ctx)
	order := make(chan *slot, cap(j.s.buffers.tokens)+cap(j.s.idleBuffers.tokens))
	g.Go(func() error {
		defer close(order)
		for i := range p.chunks() {
			from := j.buffers()
			buf, err := from.take(ctx)
			if err != nil {
				return err
			}
			sl := &slot{chunk: i, buf: buf, from: from, done: make(chan struct{})}
			order <- sl // never blocks: there are no more buffers than places
			g.Go(func() error {
				defer close(sl.done)
				sl.err = j.fill(ctx, p, st, sl)
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
			sl.from.give(sl.buf)
			if err != nil {
				return err
			}
		}
		return nil
	})
	err := g.Wait()
	for sl := range order { // left over after an error
		sl.from.give(sl.buf)
	}
	return err
}

// fill reads a chunk from the disk if it is there, else from outside, and stages it.
func (j *job) fill(ctx context.Context, p *partial, st *staging, sl *slot) error {
	off, n := p.chunk(sl.chunk)
	buf := sl.buf[:n]
	if st != nil {
		return j.lazy.bring(ctx, st, j.transfer(), sl.chunk, sl.buf, true)
	}
	if p.has(sl.chunk) {
		if _, err := p.ReadAt(buf, off); err == nil {
			return nil
		}
		j.bytes.Add(-n) // it is marked, but its file is gone
	}
	if err := j.transfer().fetchRange(ctx, buf, off); err != nil {
		return err
	}
	return p.write(sl.chunk, buf)
}

// streamWhole is stream for a server without ranges: one body from the first byte to the
// last. After an error it begins again, skipping what is staged.
func (j *job) streamWhole(ctx context.Context, p *partial, consume func([]byte) error) error {
	from := j.buffers()
	buf, err := from.take(ctx)
	if err != nil {
		return err
	}
	defer from.give(buf)
	w := wholeReader{t: j.transfer()}
	defer w.close()
	for i := range p.chunks() {
		off, n := p.chunk(i)
		chunk := buf[:n]
		if p.has(i) {
			if _, err := p.ReadAt(chunk, off); err != nil {
				return err
			}
		} else {
			if j.lazy != nil {
				err = j.lazy.how.readFrom(ctx, &w, i, chunk)
			} else {
				err = w.readAt(ctx, chunk, off)
			}
			if err != nil {
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
	t    xfer
	body io.ReadCloser
	at   int64
}

func (w *wholeReader) readAt(ctx context.Context, buf []byte, off int64) error {
	var last error
	out := make([]error, len(w.t.fetchers)) // final errors
	for try := range maxTries {
		if try > 0 {
			if err := pause(ctx, try, last); err != nil {
				return err
			}
		}
		alive := false
		for i, f := range w.t.fetchers {
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

func (w *wholeReader) try(ctx context.Context, f transfer.Fetcher, buf []byte, off int64) error {
	if w.body == nil || w.at > off {
		w.close()
		body, start, err := f.Fetch(ctx, w.t.blob, w.t.size, 0, w.t.size)
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
