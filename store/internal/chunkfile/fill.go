package chunkfile

import (
	"context"
	"errors"
	"fmt"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"golang.org/x/sync/errgroup"
)

// errUnread means that staged bytes cannot be read, and are fetched again.
var errUnread = errors.New("staged bytes cannot be read")

// Fill fetches all of the file and verifies it. Others may fetch parts of it concurrently. Unless
// its chunks are verified as parts of it (Layout.Stated), the file is hashed in order, which can
// return a *verify.Error: while bytes arrive or, if readers wait and flow is in the background,
// afterwards, but not after limit. If the server does not support ranges it starts again, see
// transfer.Fetch.All.
//
// What readers get because it was synced in this boot counts as present at first, is verified beside the rest, and is
// fetched again if it is damaged.
//
// It returns the chain of a file without digests if the Set keeps Chains.
func (f *File) Fill(ctx context.Context, flow *transfer.Flow, limit *Patience, anew func()) (verify.Chain, error) {
	st, err := f.open()
	if err != nil {
		return nil, err
	}
	defer f.done(st)
	w := &whole{f: f, st: st, flow: flow, limit: limit}
	for {
		w.reset()
		use := w.use
		beside, stop := context.WithCancel(ctx)
		var checks errgroup.Group
		if f.Layout.Stated {
			use = nil
			if !w.sure {
				checks.Go(func() error { return w.recheck(beside) })
			}
		}
		w.from = f.Transfer(flow)
		err := w.from.All(ctx, st.p.Chunks(), w.load, use, func() {
			w.reset()
			anew()
		})
		stop()
		if err = errors.Join(err, checks.Wait()); err == nil {
			err = w.finish(ctx)
		}
		if w.sure || !w.doubts(err) {
			return w.chain, err
		}
		if err := w.giveWay(ctx); err != nil {
			return nil, err
		}
		w.sure = true
	}
}

// doubts reports whether the file may be right, after a fill that was not sure and returned err: if what is damaged
// is fetched again.
func (w *whole) doubts(err error) bool {
	var not *verify.Error
	switch l := w.f.Layout; {
	case errors.Is(err, errUnread):
		return true
	case err == nil && !l.Stated, err != nil && (l.Raw() || !errors.As(err, &not) || errors.Is(err, transfer.ErrWrong)):
		return false
	}
	for g := range w.st.p.Chunks() {
		if !w.f.has(w.st, g, true) {
			return true
		}
	}
	return false
}

// load loads group g into a buffer: from disk if w needs it, or with fetchGroup unless another call is
// fetching it.
func (w *whole) load(g int, sl *transfer.Slot) error {
	f, st := w.f, w.st
	for try := 0; ; try++ {
		c, mine := f.claim(st, g, sl.Flow(), w.sure)
		switch {
		case c == nil && (w.hashesLater() || f.read(st, g, sl.Buf) == nil):
			return nil
		case c == nil: // it cannot be read: the next claim fetches it
			continue
		case mine:
			err := f.fetchGroup(st, sl, g, c, w.from)
			f.endCall(c, g, err)
			return err
		}
		select {
		case <-c.done:
		case <-sl.Context.Done():
			return context.Cause(sl.Context)
		}
		// A reader's lack of ranges does not affect a sequential fetch.
		if c.err != nil && try > 0 && !errors.Is(c.err, transfer.ErrRevoked) && !errors.Is(c.err, transfer.ErrNoRanges) {
			return c.err
		}
	}
}

// recheck verifies the groups that count as present unless w is sure, until ctx ends.
func (w *whole) recheck(ctx context.Context) error {
	for g := range w.st.p.Chunks() {
		if w.f.has(w.st, g, true) || !w.f.has(w.st, g, false) {
			continue
		}
		if w.giveWay(ctx) != nil || ctx.Err() != nil {
			return nil
		}
		if err := w.f.set.aside(func(buf []byte) error { _, err := w.f.recheck(w.st, g, buf); return err }); err != nil {
			return err
		}
	}
	return nil
}

// recheck reads group g from the stage into buf, and reports whether it is right, as far as that can be verified.
func (f *File) recheck(st *stage, g int, buf []byte) (right bool, err error) {
	readable := f.has(st, g, false)
	if f.read(st, g, buf) != nil {
		return false, nil
	}
	_, n := st.p.Chunk(g)
	if f.Layout.right(g, buf[:n]) {
		f.setState(g, g, verified)
		return true, nil
	}
	f.setState(g, g, suspect)
	f.damaged(g, nil)
	if readable {
		err = f.set.Finder.Wrong(f)
	}
	return false, err
}

// read reads group g from the stage into buf. What cannot be read is no longer present.
func (f *File) read(st *stage, g int, buf []byte) error {
	off, n := st.p.Chunk(g)
	_, err := st.data.ReadAt(buf[:n], off)
	if err == nil {
		return nil
	}
	f.setState(g, g, suspect)
	f.damaged(g, err)
	return fmt.Errorf("%w: %w", errUnread, err)
}

// damaged reports that the disk has lost staged bytes.
func (f *File) damaged(g int, err error) {
	f.set.Counts.Corrupt.Add(1)
	off, n := f.Layout.Part(g)
	f.set.Log.Warn("staged bytes are damaged and are fetched again", "file", f.Path, "digest", f.Digest, "offset", off, "size", n, "err", err)
}
