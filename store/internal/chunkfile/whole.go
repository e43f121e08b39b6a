package chunkfile

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
)

// Hashing a whole file uses a processor that chunks for readers need. Background work therefore
// hashes only after no reader has progressed for quiet, or after it has waited for patience.
const (
	quiet    = 300 * time.Millisecond
	patience = 5 * time.Minute
)

// A Patience is the time for which the hashing of several files waits for readers, from the first wait on.
// The zero value works.
type Patience struct{ end atomic.Pointer[time.Time] }

// over reports whether the time is over. The first call starts it.
func (p *Patience) over() bool {
	end := time.Now().Add(patience)
	p.end.CompareAndSwap(nil, &end)
	return !time.Now().Before(*p.end.Load())
}

// A whole computes the digest of a file over its groups in order as they arrive. Groups that are
// skipped are read from disk at the end.
type whole struct {
	f     *File
	st    *stage
	flow  *transfer.Flow
	from  transfer.Fetch // of the current fill
	limit *Patience
	sure  bool // see File.has
	hash  verify.Hash
	next  int          // the first group that is not in hash
	chain verify.Chain // of the groups in hash, if it is kept
	after atomic.Bool  // further groups are hashed at the end
}

// reset begins again with the first group.
func (w *whole) reset() {
	w.hash, w.next, w.chain = verify.NewHash(), 0, nil
	w.after.Store(false)
}

// hashesLater reports whether arriving groups are hashed later, or not at all.
func (w *whole) hashesLater() bool {
	if w.f.Layout.Stated || w.after.Load() {
		return true
	}
	if w.readerPause() > 0 {
		w.after.Store(true)
	}
	return w.after.Load()
}

// readerPause returns how long the work must wait for readers.
func (w *whole) readerPause() time.Duration {
	last := w.f.set.lastActive.Load()
	if w.flow.Class() != transfer.Background || last == nil {
		return 0
	}
	return min(quiet, quiet-time.Since(*last))
}

// giveWay waits for readers, if the work must.
func (w *whole) giveWay(ctx context.Context) error {
	for d := w.readerPause(); d > 0 && !w.limit.over(); d = w.readerPause() {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// use hashes group g from a buffer. It is called sequentially.
func (w *whole) use(g int, sl *transfer.Slot) error {
	if w.hashesLater() {
		return nil
	}
	return w.add(g, sl)
}

func (w *whole) add(g int, sl *transfer.Slot) error {
	defer sl.Flow().Enter(transfer.InOrder)()
	off, n := w.st.p.Chunk(g)
	w.next = g + 1
	if w.f.set.Chains && w.f.Layout.Raw() && w.f.Size > verify.Window {
		return w.chain.Add(w.hash, sl.Buf[:n], off, w.f.Size)
	}
	_, err := w.hash.Write(sl.Buf[:n])
	return err
}

// finish returns nil if all groups are present and the file is right.
func (w *whole) finish(ctx context.Context) error {
	f := w.f
	for g := range w.st.p.Chunks() {
		if err := f.checkPresent(w.st, g, w.sure); err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
		if f.Layout.Stated || g < w.next {
			continue
		}
		if err := w.giveWay(ctx); err != nil {
			return err
		}
		if err := f.withBuffer(ctx, w.flow, func(sl *transfer.Slot) error {
			if err := f.read(w.st, g, sl.Buf); err != nil {
				return err
			}
			return w.add(g, sl)
		}); err != nil {
			return err
		}
	}
	if f.Layout.Stated {
		return nil
	}
	return verify.Compare(f.Digest, w.hash.Digest(), f.Size, f.Size)
}
