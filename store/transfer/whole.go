package transfer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// A Get fills buf with the bytes of a blob from offset off on, for the holder of a slot of
// Scheduler.Buffers, and returns the source of the last bytes.
type Get func(sl *Slot, buf []byte, off int64) (from Source, err error)

// Get is Range for the work of a slot.
func (f Fetch) Get(sl *Slot, buf []byte, off int64) (from Source, err error) {
	f.Flow = sl.Flow()
	return f.Range(sl.Context, sl, buf, off)
}

// All fills n chunks and uses them in order, unless use is nil (Pool.Ordered); fill gets bytes of
// the blob with get. If the server does not support ranges, All calls anew, and fills and uses all
// chunks again, one after the other, so that the blob is read sequentially.
func (f Fetch) All(ctx context.Context, n int, fill func(i int, sl *Slot, get Get) error, use func(int, *Slot) error, anew func()) error {
	buffers := f.Scheduler.Buffers
	err := buffers.Ordered(ctx, f.Flow, f.From.Payer, n, func(i int, sl *Slot) error { return fill(i, sl, f.Get) }, use)
	if !errors.Is(err, ErrNoRanges) {
		return err
	}
	anew()
	w := whole{Fetch: f}
	w.Received = new(atomic.Int64) // bytes that are fetched twice count once
	defer w.close()
	get := func(sl *Slot, buf []byte, off int64) (Source, error) {
		src, err := w.readAt(ctx, sl, buf, off)
		if err == nil {
			f.Received.Add(int64(len(buf)))
		}
		return src, err
	}
	for i := range n {
		err := buffers.With(ctx, f.Flow, f.From.Payer, func(sl *Slot) error {
			if err := fill(i, sl, get); err != nil || use == nil {
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
	Fetch
	body   io.ReadCloser
	src    Source
	at     int64
	cancel context.CancelCauseFunc // of the request
}

// readAt fills buf from offset off, preferably not before the end of the last read, since going
// back means starting again. It tries sources as Range does. A request, and therefore ctx, outlives
// a read; it ends when hold is revoked during a read.
func (w *whole) readAt(ctx context.Context, hold *Slot, buf []byte, off int64) (Source, error) {
	if w.body != nil && w.at <= off { // another source would begin at the first byte
		leave := w.Flow.Enter(Network)
		err := w.try(ctx, w.src, hold, buf, off)
		leave()
		switch {
		case err == nil:
			return w.src, nil
		case hold.Context.Err() != nil:
			w.close()
			return w.src, context.Cause(hold.Context)
		}
		w.close()
	}
	return w.inTurn(hold.Context, off, func(src Source) (progress bool, err error) {
		if err = w.try(ctx, src, hold, buf, off); err != nil {
			w.close()
		}
		return false, err
	})
}

func (w *whole) try(ctx context.Context, src Source, hold *Slot, buf []byte, off int64) error {
	if w.body == nil || w.at > off || w.src.Key() != src.Key() {
		w.close()
		ctx, cancel := context.WithCancelCause(ctx)
		body, start, err := src.Fetch(ctx, w.Blob, w.Size, 0, w.Size)
		if err != nil {
			cancel(nil)
			return err
		}
		w.cancel = cancel
		w.body, w.at, w.src = body, start, src
	}
	cancel := w.cancel // of this request: the function may run when a later one has begun
	defer context.AfterFunc(hold.Context, func() { cancel(context.Cause(hold.Context)) })()
	n, err := io.CopyN(io.Discard, w.body, off-w.at)
	if w.at += n; err != nil {
		return err
	}
	m, err := w.read(hold.Context, w.body, buf, hold)
	if m > 0 {
		w.From.addProvider(src.Key(), IsPrivate(w.body))
	}
	w.at += int64(m)
	src.Endpoint.count(m)
	w.Flow.count(src.Endpoint, m)
	return err
}

// close ends the current request.
func (w *whole) close() {
	if w.body != nil {
		w.body.Close() // opened for reading
		w.cancel(nil)
		w.body = nil
	}
}
