package transfer

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// A Get fills buf with the bytes of a blob from offset off on, for who holds a slot of
// Scheduler.Buffers, and returns the source that gave the last of them.
type Get func(sl *Slot, buf []byte, off int64) (from Source, err error)

// Get is Range for the work that a slot is for.
func (f Fetch) Get(sl *Slot, buf []byte, off int64) (from Source, err error) {
	f.Flow = sl.Flow()
	return f.Range(sl.Context, sl, buf, off)
}

// All fills n chunks and uses them in order, unless use is nil (Pool.Ordered); fill is told how to get bytes of the blob.
// From servers without ranges they come one after the other, so that the blob comes from its first byte
// to its last: anew is called before that, and then all chunks are filled and used again.
func (f Fetch) All(ctx context.Context, n int, fill func(i int, sl *Slot, get Get) error, use func(int, *Slot) error, anew func()) error {
	buffers := f.Scheduler.Buffers
	err := buffers.Ordered(ctx, f.Flow, f.From.Payer, n, func(i int, sl *Slot) error { return fill(i, sl, f.Get) }, use)
	if !errors.Is(err, ErrNoRanges) {
		return err
	}
	anew()
	w := whole{Fetch: f}
	w.Received = new(atomic.Int64) // what is brought twice counts once
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

// A whole reads a blob in order from servers without ranges: from bodies that begin at the first byte
// of the blob. close ends it.
type whole struct {
	Fetch
	body   io.ReadCloser
	src    Source
	at     int64
	cancel context.CancelCauseFunc // of the request
}

// readAt fills buf from offset off, which is best not before the end of the last read: to go back is
// to begin anew. It asks sources as Range does. A request lives on after a read, so ctx has to as well;
// it ends when hold is revoked during a read.
func (w *whole) readAt(ctx context.Context, hold *Slot, buf []byte, off int64) (Source, error) {
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
	defer context.AfterFunc(hold.Context, func() { w.cancel(context.Cause(hold.Context)) })()
	n, err := io.CopyN(io.Discard, w.body, off-w.at)
	if w.at += n; err != nil {
		return err
	}
	w.From.took(src.Key(), IsPrivate(w.body))
	m, err := w.read(hold.Context, w.body, buf, hold)
	w.at += int64(m)
	return err
}

// close ends the request that runs.
func (w *whole) close() {
	if w.body != nil {
		w.body.Close() // only read from
		w.cancel(nil)
		w.body = nil
	}
}
