package transfer

import (
	"context"
	"fmt"
	"io"
)

// A Whole reads a blob in order from servers without ranges: from bodies that begin at the first byte
// of the blob. Close ends it.
type Whole struct {
	Fetch
	body   io.ReadCloser
	src    Source
	at     int64
	cancel context.CancelCauseFunc // of the request
}

// ReadAt fills buf from offset off, which is best not before the end of the last read: to go back is
// to begin anew. It asks sources as Range does. A request lives on after a read, so ctx has to as well;
// it ends when hold is revoked during a read.
func (w *Whole) ReadAt(ctx context.Context, hold *Slot, buf []byte, off int64) error {
	var last error
	out := map[string]error{}
	for try := range maxTries {
		if try > 0 {
			if err := pause(hold.Context, try, last); err != nil {
				return err
			}
		}
		alive := false
		order := w.From.Order()
		for _, src := range order {
			if out[src.Key()] != nil {
				continue
			}
			err := w.try(ctx, src, hold, buf, off)
			if err == nil {
				return nil
			}
			w.Close()
			if hold.Context.Err() != nil {
				return context.Cause(hold.Context)
			}
			if final(err) {
				out[src.Key()] = err
			} else {
				last, alive = err, true
			}
		}
		if !alive {
			return worst(order, out)
		}
	}
	return fmt.Errorf("bytes from %d, from a server without ranges: %w", off, last)
}

func (w *Whole) try(ctx context.Context, src Source, hold *Slot, buf []byte, off int64) error {
	if w.body == nil || w.at > off || w.src.Key() != src.Key() {
		w.Close()
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

// Close ends the request that runs.
func (w *Whole) Close() {
	if w.body != nil {
		w.body.Close() // only read from
		w.cancel(nil)
		w.body = nil
	}
}
