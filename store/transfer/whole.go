package transfer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// All fills n chunks and uses them in order, unless use is nil (Pool.Ordered); fill gets bytes of the blob with Range
// of f. If the server does not support ranges, All calls anew, and fills and uses all chunks again, one after the
// other, so that the blob is read sequentially.
func (f *Fetch) All(ctx context.Context, n int, fill, use func(int, *Slot) error, anew func()) error {
	buffers := f.Scheduler.Buffers
	err := buffers.Ordered(ctx, f.Flow, f.From.FirstKey, n, fill, use)
	if !errors.Is(err, ErrNoRanges) {
		return err
	}
	anew()
	f.Flow.Serve()
	f.whole = &whole{ctx: ctx, received: f.Received}
	f.Received = new(atomic.Int64) // bytes that are fetched twice count once
	defer f.whole.close()
	for i := range n {
		err := buffers.With(ctx, f.Flow, f.From.FirstKey, func(sl *Slot) error {
			if err := fill(i, sl); err != nil || use == nil {
				return err
			}
			return use(i, sl)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// A whole reads a blob sequentially from servers without ranges: from bodies that begin at the
// first byte of the blob. close ends it.
type whole struct {
	ctx      context.Context // of All: a request outlives a read
	received *atomic.Int64   // Fetch.Received

	body   io.ReadCloser
	src    Source
	at     int64
	cancel context.CancelCauseFunc // of the request
}

// has reports whether the bytes at off are still to come in the current body.
func (w *whole) has(off int64) bool { return w.body != nil && w.at <= off }

// read fills buf from offset off, preferably not before the end of the last read, since going back, or to another
// source, means starting again. An error ends the request; so does a revocation of hold during a read.
func (w *whole) read(f Fetch, src Source, hold *Slot, buf []byte, off int64) (n int, err error) {
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if !w.has(off) || w.src.Key() != src.Key() {
		w.close()
		ctx, cancel := context.WithCancelCause(w.ctx)
		stop := context.AfterFunc(hold.Context, func() { cancel(context.Cause(hold.Context)) })
		body, start, err := src.Fetch(ctx, f.Blob, f.Size, 0, f.Size)
		stop()
		if err != nil {
			cancel(nil)
			return 0, err
		}
		w.cancel = cancel
		w.body, w.at, w.src = body, start, src
	}
	cancel := w.cancel // of this request: the function may run when a later one has begun
	defer context.AfterFunc(hold.Context, func() { cancel(context.Cause(hold.Context)) })()
	skipped, err := io.CopyN(io.Discard, &dropped{answer{hold.Context, w.body, hold}, f, src.Endpoint}, off-w.at)
	if w.at += skipped; err != nil {
		return 0, err
	}
	n, err = f.receive(answer{hold.Context, w.body, nil}, src, buf, hold)
	w.at += int64(n)
	if n > 0 {
		f.From.addProvider(src.Key(), IsPrivate(w.body))
	}
	if err != nil {
		return 0, err // the next request begins at the first byte
	}
	w.received.Add(int64(n))
	return n, nil
}

// close ends the current request.
func (w *whole) close() {
	if w.body != nil {
		w.body.Close() // opened for reading
		w.cancel(nil)
		w.body = nil
	}
}
