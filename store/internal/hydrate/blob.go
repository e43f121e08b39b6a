package hydrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
)

// States of a target, as in Progress.
const (
	StateWaiting     = "waiting"
	StateDownloading = "downloading"
	StateVerifying   = "verifying"
	StateComplete    = "complete"
	StatePresent     = "present"
)

// A blobFetch fetches one target, verifies it and makes it objects. There is at most one for a
// target from one group of sources; all hydrations that need it wait for it.
type blobFetch struct {
	e       *Engine
	key     string
	target  Target
	sources transfer.Sources
	files   []*chunkfile.File // of target.Files, while it runs
	flow    *transfer.Flow
	limit   *chunkfile.Patience // of the hydration that started it

	ctx    context.Context // of main
	cancel context.CancelFunc
	end    span.End
	done   chan struct{} // closed at the end
	err    error         // valid after done is closed

	waiters int  // guarded by Engine.mu
	arrived bool // guarded by Engine.mu: its file arrived from elsewhere

	begun bool // what is staged of its file, at first, is of the hydration that started it

	large bool // an archive needs a window above smallWindow; used by main only

	bytes    atomic.Int64 // bytes of an archive, present or fetched
	unpacked atomic.Int64 // bytes that its unpackSink has unpacked
	state    atomic.Value // string
}

// fetchTarget waits for the fetch of t, which is target i or its archive, starting it if needed. A hydration that
// joins adds its sources. When ctx ends, the fetch ends too, unless others wait. It calls next once it is underWay.
func (e *Engine) fetchTarget(ctx context.Context, h *hydration, i int, t *Target, next func()) error {
	for {
		b, mine, err := e.join(ctx, h, i, t)
		if err != nil {
			return err
		}
		h.fetching(i, b)
		b.underWay(ctx)
		next()
		select {
		case <-b.done:
			err = b.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		e.mu.Lock()
		b.eachSources(func(s *transfer.Sources) { s.Drop(h.key()) })
		if b.waiters--; b.waiters == 0 {
			b.cancel()
		}
		e.mu.Unlock()
		if err == nil {
			h.from.AddProviders(&b.sources)
		}
		if err == nil || mine || ctx.Err() != nil || e.ctx.Err() != nil {
			return err
		}
		// The fetch was started by another hydration: try again with the own sources.
	}
}

// join returns the fetch of t, for target i, with one more waiter, and whether it was started by this call.
func (e *Engine) join(ctx context.Context, h *hydration, i int, t *Target) (b *blobFetch, mine bool, err error) {
	key := t.key()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, false, errClosed
	}
	b, ok := e.fetches[key]
	if !ok {
		b = &blobFetch{e: e, key: key, target: *t, flow: h.flowOf(i, e.Scheduler), limit: &h.limit, begun: h.begun(i), done: make(chan struct{})}
		ctx, b.end = span.Start(span.Under(e.ctx, ctx), span.Fetch, span.Name(t.Name), span.Digest(t.Blob.Digest), span.Size(t.Blob.Size))
		b.ctx, b.cancel = context.WithCancel(ctx)
		b.state.Store(StateWaiting)
		for _, f := range t.Files {
			b.files = append(b.files, e.Files.Acquire(f.File.Digest, f.File.Size, f.File.Path, f.Layout))
		}
		e.fetches[key] = b
		defer e.work.Go(b.main)
	}
	b.eachSources(func(s *transfer.Sources) { s.Set(h.key(), h.list) })
	b.waiters++
	return b, !ok, nil
}

// hashLook is the interval over which underWay looks at the time spent on hashing.
const hashLook = 100 * time.Millisecond

// underWay waits until the fetch needs no further buffers: what comes after it can have them, and comes in order. It
// does not wait for a fetch that hashes nearly all the time, because that leaves processors and the network idle.
func (b *blobFetch) underWay(ctx context.Context) {
	tick := time.NewTicker(hashLook)
	defer tick.Stop()
	for before := b.flow.Spent(); ; {
		select {
		case <-b.flow.Served():
			return
		case <-b.done:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := b.flow.Spent()
		if now[transfer.InOrder]-before[transfer.InOrder] > hashLook*3/4 {
			return
		}
		before = now
	}
}

// await gives the fetch the priority of awaited work.
func (b *blobFetch) await() {
	b.flow.Promote(transfer.Soon)
	for _, f := range b.files {
		f.Promote(transfer.Soon)
	}
}

// present returns the number of present bytes.
func (b *blobFetch) present() (n int64) {
	for _, f := range b.files { // may also be fetched by others
		n += f.Present()
	}
	return n + b.bytes.Load()
}

func (b *blobFetch) main() {
	err := b.run(b.ctx)
	b.e.mu.Lock()
	delete(b.e.fetches, b.key)
	if b.arrived {
		err = nil
	}
	b.e.mu.Unlock()
	registries, mirrors := b.flow.Received()
	b.end(err, span.Received(registries, mirrors)...)
	for _, f := range b.files {
		if b.arrived { // staged files that cannot be removed stay for a day
			_ = f.Move()
		}
		b.e.Files.Release(f)
	}
	if err != nil {
		b.err = b.target.wrap(err)
	} else {
		b.state.Store(StateComplete)
	}
	b.cancel()
	close(b.done)
}

// run fetches the target. If its content is wrong, it is fetched again from the start, because
// staged bytes or a source may be wrong: without mirrors if some gave bytes of it; otherwise each source gets
// its turn to be first.
func (b *blobFetch) run(ctx context.Context) error {
	b.state.Store(StateDownloading)
	var mirrors []transfer.Source // that gave bytes of wrong content
	for tries := 0; ; {
		resumed, err := false, error(nil) // some bytes were already staged
		switch len(b.files) {
		case 0:
			resumed, err = b.archive(ctx)
		case 1:
			resumed, err = b.file(ctx, b.files[0])
		default:
			err = b.small(ctx)
		}
		var wrong *verify.Error
		switch {
		case err == nil:
			if order := b.sources.Order(); len(order) > 0 {
				transfer.ReportWrong(b.e.Log, order[0], mirrors)
			}
			return nil
		case errors.Is(err, transfer.ErrRevoked) && ctx.Err() == nil:
			continue // of the unpacker
		case errors.Is(err, errLargeWindow):
			b.large = true
			continue
		case !errors.As(err, &wrong) || errors.Is(err, transfer.ErrWrong):
			return err
		}
		if !resumed {
			if len(b.target.Files) > 0 && !b.target.Files[0].Layout.Raw() {
				return fmt.Errorf("the chunks are right, but the digest of the file is not: the table is wrong: %w", err)
			}
			order := b.sources.Order()
			if gave := b.mirrors(); len(gave) > 0 && mirrors == nil {
				mirrors = gave
				b.blame(gave...)
			} else if tries++; tries < len(order) {
				b.blame(order[0])
			} else {
				return err
			}
		}
		b.e.Files.Counts.Corrupt.Add(1)
		b.e.Log.Warn("blob is wrong; fetching it again", "digest", b.target.Blob.Digest, "err", err)
	}
}

func (b *blobFetch) blame(all ...transfer.Source) {
	for _, src := range all {
		b.eachSources(func(s *transfer.Sources) { s.Blame(src) })
	}
}

// mirrors returns the mirrors that gave bytes.
func (b *blobFetch) mirrors() (all []transfer.Source) {
	b.eachSources(func(s *transfer.Sources) { all = append(all, s.Mirrors()...) })
	return all
}

// eachSources calls do for the sources of the target and of each file.
func (b *blobFetch) eachSources(do func(*transfer.Sources)) {
	do(&b.sources)
	for _, f := range b.files {
		do(&f.Sources)
	}
}

// file fetches a file by chunks. resumed reports whether some bytes were already staged.
func (b *blobFetch) file(ctx context.Context, f *chunkfile.File) (resumed bool, err error) {
	resumed = !b.begun && b.e.Area.Marked(f.Layout.Dir(f.Digest), f.Size, f.Layout.Grid) > 0
	chain, err := f.Fill(ctx, b.flow, b.limit, b.noRanges)
	var wrong *verify.Error
	if errors.As(err, &wrong) && !errors.Is(err, transfer.ErrWrong) {
		return resumed, errors.Join(err, f.Discard())
	}
	if err == nil {
		b.state.Store(StateVerifying)
		err = b.publish(chain, f)
	}
	if errors.Is(err, chunkfile.ErrMoved) { // by another fetch, after this one was found to be needed
		if ok, herr := b.e.Objects.Has(filetable.Blob{Digest: f.Digest, Size: f.Size}, &b.sources); ok || herr != nil {
			err = herr
		}
	}
	return resumed, err
}

func (b *blobFetch) noRanges() {
	b.e.Log.Warn("server does not support ranges; the blob is fetched sequentially", "digest", b.target.Blob.Digest)
}

// publish makes verified files objects, except those that another fetch has just made objects. chain is that of a
// single file, if it was kept.
func (b *blobFetch) publish(chain verify.Chain, files ...*chunkfile.File) (err error) {
	_, end := span.Start(b.ctx, span.Publish)
	defer func() { end(err) }()
	defer b.flow.Enter(transfer.Disk)()
	var list []meta.File
	err = together(files, func(f *chunkfile.File) error {
		if err := f.Sync(); !errors.Is(err, chunkfile.ErrMoved) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Moved() {
			continue
		}
		list = append(list, meta.File{
			Staged: f.Staged(), Digest: f.Digest, Size: f.Size, Private: privateTo(&f.Sources, f.Layout.Group), Chunks: f.Layout.Chunks, Layout: f.Layout.ID, States: chain,
		})
	}
	if err := b.e.Objects.Publish(meta.Arrival{Files: list}); err != nil {
		return err
	}
	for _, f := range files {
		if err := f.Move(); err != nil {
			return err
		}
	}
	return nil
}

// privateTo returns the names of the sources that may have what these sources of a group gave; none if it is
// public. If all hydrations have left, they are those of the group.
func privateTo(from *transfer.Sources, group string) []string {
	gave := from.Providers()
	private := len(gave) == 0 // all of it was staged before
	for _, with := range gave {
		private = private || with
	}
	if !private {
		return nil
	}
	if names := transfer.Names(from.Order()); len(names) > 0 {
		return names // staged bytes came from the same group
	}
	return strings.Split(cmp.Or(group, meta.Nobody), "\n")
}

// small fetches neighbouring files with one request, or one by one if the server does not support ranges. A file that a
// reader fetches at the same time is fetched twice.
func (b *blobFetch) small(ctx context.Context) error {
	at, end := b.files[0].Layout.Span()
	for _, f := range b.files {
		a, n := f.Layout.Span()
		at, end = min(at, a), max(end, a+n)
	}
	from := b.transfer(b.files[0].Layout.From)
	err := b.e.Scheduler.Buffers.With(ctx, b.flow, b.sources.FirstKey, func(sl *transfer.Slot) error {
		b.flow.Serve()
		raw := sl.Buf[:end-at]
		_, err := from.Range(ctx, sl, raw, at, func() error {
			b.bytes.Store(0) // the files count what is present
			return b.split(sl, raw, at)
		})
		b.bytes.Store(0)
		return err
	})
	if !errors.Is(err, transfer.ErrNoRanges) {
		return err
	}
	for _, f := range b.files {
		if f.Moved() {
			continue
		}
		if _, err := b.file(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// split makes objects of the files in raw, the bytes of their blob from offset at.
func (b *blobFetch) split(sl *transfer.Slot, raw []byte, at int64) error {
	var ready []*chunkfile.File
	buf, err := sl.Scratch()
	if err != nil {
		return err
	}
	for _, f := range b.files {
		if f.Moved() {
			continue
		}
		start, n := f.Layout.Span()
		err := f.Put(raw[start-at:][:n], buf)
		switch {
		case errors.Is(err, chunkfile.ErrMoved):
			continue
		case err != nil:
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		f.Sources.AddProviders(&b.sources)
		ready = append(ready, f)
	}
	return b.publish(nil, ready...)
}

// archive fetches an archive: it stages the bytes and passes them to a sink in order.
func (b *blobFetch) archive(ctx context.Context) (resumed bool, err error) {
	blob := b.target.Blob
	p, err := b.e.Area.Open(b.target.archiveDir(), blob.Size, b.target.pieces, nil)
	if err != nil {
		return false, err
	}
	defer p.Close()
	b.bytes.Store(p.Present())
	progress := func(int) {}
	if b.large {
		if err := b.stream(ctx, p, func([]byte) error { return nil }, func() {}); err != nil { // no registry delays others
			return p.Resumed, err
		}
		if b.e.large.Acquire(ctx, 1) != nil {
			return p.Resumed, context.Cause(ctx)
		}
		defer b.e.large.Release(1)
	}
	if blob.Codec != filetable.CodecNone {
		unpacker, err := b.unpacker(ctx, p)
		if err != nil {
			return p.Resumed, err
		}
		defer unpacker.Release()
		ctx, progress = unpacker.Context, unpacker.Progress
	}
	sink := newSink(b, p)
	err = b.stream(ctx, p, func(buf []byte) error { progress(len(buf)); return sink.consume(buf) }, func() {
		sink.abort()
		sink = newSink(b, p)
	})
	if err != nil {
		sink.abort()
		return p.Resumed, err
	}
	b.state.Store(StateVerifying)
	if err := sink.finish(); err != nil {
		if errdefs.IsDataLoss(err) || errdefs.IsInvalidArgument(err) || errdefs.IsNotImplemented(err) {
			err = errors.Join(err, p.Remove())
		}
		return p.Resumed, err // for other reasons, such as a full disk, staged bytes stay
	}
	if blob.Archive == filetable.ArchiveFragments {
		return p.Resumed, nil // removed when its files are assembled
	}
	return p.Resumed, p.Remove()
}

// unpacker returns an unpacker: a free one, so that the archive is unpacked while it arrives;
// otherwise the archive is fetched first.
func (b *blobFetch) unpacker(ctx context.Context, p *staging.Partial) (*transfer.Slot, error) {
	pool := b.e.Scheduler.Unpackers
	if sl := pool.Try(ctx, b.flow, b.sources.FirstKey()); sl != nil {
		return sl, nil
	}
	if err := b.stream(ctx, p, func([]byte) error { return nil }, func() {}); err != nil {
		return nil, err
	}
	return pool.Acquire(ctx, b.flow, b.sources.FirstKey())
}

// transfer returns the parameters for fetching a blob.
func (b *blobFetch) transfer(blob filetable.Blob) transfer.Fetch {
	return transfer.Fetch{
		Scheduler: b.e.Scheduler, Blob: blob.Digest, Size: blob.Size, From: &b.sources, Flow: b.flow,
		Received: &b.bytes, Corrupt: &b.e.Files.Counts.Corrupt, Log: b.e.Log,
	}
}

// stream fetches the chunks of an archive and passes them to consume in order. If the server does
// not support ranges it starts again, see transfer.Fetch.All.
func (b *blobFetch) stream(ctx context.Context, p *staging.Partial, consume func([]byte) error, anew func()) error {
	from := b.transfer(b.target.Blob)
	return from.All(ctx, p.Chunks(), func(i int, sl *transfer.Slot) error {
		off, n := p.Chunk(i)
		buf := sl.Buf[:n]
		if p.Has(i) {
			if _, err := p.ReadAt(buf, off); err == nil {
				return nil
			}
			b.bytes.Add(-n) // marked, but its file is missing
		}
		if err := b.e.Objects.Room(n); err != nil {
			return err
		}
		if _, err := from.Range(sl.Context, sl, buf, off, nil); err != nil {
			return err
		}
		defer b.flow.Enter(transfer.Disk)()
		return p.Write(i, buf)
	}, func(i int, sl *transfer.Slot) error {
		defer b.flow.Enter(transfer.InOrder)()
		_, n := p.Chunk(i)
		return consume(sl.Buf[:n])
	}, func() {
		b.noRanges()
		b.bytes.Store(p.Present())
		anew()
	})
}
