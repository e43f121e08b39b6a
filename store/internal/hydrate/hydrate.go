package hydrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// parallelSyncs is the number of files that are synced concurrently. Sequential syncs each wait for
// a write of the file system's journal, which concurrent ones share: 1,216 files in groups of 32
// take 0.2 of the time on ext4, as little as one syncfs for each group, which would also wait for
// other writers.
const parallelSyncs = 32

// syncAll is the number of members of an archive from which on the whole file system is synced at once, as for the
// tree that shows them (snapshotter/tree): 10,000 members then cost no open, fsync and close each.
const syncAll = 512

// together calls do for all concurrently, to share syncs, and returns the first error.
func together[T any](all []T, do func(T) error) error {
	var g errgroup.Group
	g.SetLimit(parallelSyncs)
	for _, one := range all {
		g.Go(func() error { return do(one) })
	}
	return g.Wait()
}

// Options are the settings of one Hydrate.
type Options struct {
	// Sources are tried in order.
	Sources []transfer.Source

	// Progress, if not nil, is called about five times a second and once at the end, in the
	// goroutine of Hydrate, with all targets of the table.
	Progress func([]Progress)

	// Background gives the work a lower priority than awaited work and readers.
	Background bool

	// Limiter, if not nil, limits what the work starts to download, while it is in the background: until a reader or
	// a caller without Background waits for it.
	Limiter *transfer.Limiter
}

// Hydrate returns when every file of the table is a complete, verified object. Blobs that are
// present, or whose contents are, are not fetched; a blob that is being fetched is waited for. If
// ctx ends first, the work continues for Linger.
func (e *Engine) Hydrate(ctx context.Context, d digest.Digest, t *filetable.Table, o Options) (err error) {
	ctx, end := span.Start(ctx, span.Hydrate, span.Digest(d))
	defer func() { end(err) }()
	for {
		h, joined, err := e.hydration(ctx, d, t, o)
		if err != nil {
			return err
		}
		err = e.follow(ctx, h, o.Progress)
		if ctx.Err() != nil || e.ctx.Err() != nil || err == nil || !joined {
			return err
		}
		// Its sources or credentials may have been worse, or it was already ending: start an own
		// hydration.
	}
}

// follow waits for the end of a hydration.
func (e *Engine) follow(ctx context.Context, h *hydration, progress func([]Progress)) error {
	defer e.leave(h)
	if progress == nil {
		progress = func([]Progress) {}
	}
	tick := time.NewTicker(ProgressEvery)
	defer tick.Stop()
	for {
		select {
		case <-h.done:
			progress(h.progress())
			return h.err
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			progress(h.progress())
		}
	}
}

// hydration returns the running hydration of a table with one more waiter, or starts one.
func (e *Engine) hydration(ctx context.Context, d digest.Digest, t *filetable.Table, o Options) (h *hydration, joined bool, err error) {
	h = &hydration{table: d, group: transfer.GroupKey(o.Sources), done: make(chan struct{}), list: o.Sources, limiter: o.Limiter}
	h.from.Set(h.key(), h.list)
	e.mu.Lock()
	if e.hydrations[h.key()] == nil { // plan without holding mu: a table can be large
		e.mu.Unlock()
		h.plan(e.begun(Plan(t, h.group)))
		e.mu.Lock()
	}
	defer e.mu.Unlock()
	if e.closed {
		return nil, false, errClosed
	}
	if old := e.hydrations[h.key()]; old != nil {
		h, joined = old, true
		h.renew(o.Sources)
	} else {
		e.start(span.Under(e.ctx, ctx), h, t)
	}
	if !o.Background {
		h.await()
	}
	h.waiters++
	if h.linger != nil {
		h.linger.Stop()
		h.linger, h.ends = nil, time.Time{}
	}
	return h, joined, nil
}

// start starts the work of a hydration. The caller holds mu.
func (e *Engine) start(ctx context.Context, h *hydration, t *filetable.Table) {
	ctx, cancel := context.WithCancelCause(ctx)
	h.cancel, h.started = cancel, time.Now()
	e.hydrations[h.key()] = h
	close(e.began)
	e.began = make(chan struct{})
	e.work.Go(h.measure)
	e.work.Go(func() {
		left, err := e.run(ctx, h, t)
		if errors.Is(err, context.Canceled) {
			err = cmp.Or(context.Cause(ctx), err)
		}
		cancel(nil)
		e.end(h, e.Objects.Ended(h.table, t, h.group, err))
		for _, dir := range left { // after the waiters are informed; remaining files are collected later
			if err := e.Area.Tidy(dir); err != nil {
				e.Log.Warn("unneeded staged files cannot be removed", "directory", dir, "err", err)
			}
		}
	})
}

// end informs the waiters that a hydration has ended.
func (e *Engine) end(h *hydration, err error) {
	defer close(h.done)
	h.err = err
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.hydrations, h.key())
	if h.linger != nil {
		h.linger.Stop()
	}
}

// Running returns the progress of a table, and whether it is being hydrated.
func (e *Engine) Running(table digest.Digest) ([]Progress, bool) {
	for _, h := range e.of(table) {
		return h.progress(), true
	}
	return nil, false
}

// Awaited reports whether a Hydrate that is not in the background waits for a table. Such work does
// not stop when the scheduler is paused.
func (e *Engine) Awaited(table digest.Digest) bool {
	return slices.ContainsFunc(e.of(table), func(h *hydration) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.awaited
	})
}

// Await gives the fetch of a file the priority of awaited work, because a reader waits for the
// whole file.
func (e *Engine) Await(table digest.Digest, file digest.Digest) {
	for _, h := range e.of(table) {
		h.awaitFile(file)
	}
}

func (e *Engine) of(table digest.Digest) (out []*hydration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.hydrations {
		if h.table == table {
			out = append(out, h)
		}
	}
	return out
}

// leave removes a waiter. The last one starts the linger timer.
func (e *Engine) leave(h *hydration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.waiters--; h.waiters > 0 || e.hydrations[h.key()] != h {
		return
	}
	h.mu.Lock()
	awaited := h.awaited
	h.mu.Unlock()
	if !awaited { // background callers do not come back
		h.cancel(nil)
		return
	}
	h.linger, h.ends = time.AfterFunc(e.Linger, func() { h.cancel(errAbandoned) }), time.Now().Add(e.Linger)
}

// run executes a hydration. left are directories of the area that it no longer needs.
func (e *Engine) run(ctx context.Context, h *hydration, t *filetable.Table) (left []string, err error) {
	e.Objects.Began(h.table, h.group)
	if err := e.PutInline(t); err != nil {
		return nil, err
	}
	assemblies, places, err := e.ownAssemblies(ctx, h, t)
	defer e.release(h, assemblies...)
	if err != nil {
		return nil, err
	}
	for _, a := range assemblies {
		e.Area.Hold(a.dir)
		defer e.Area.Drop(a.dir)
	}
	missing, err := e.missing(h, t, places)
	if err != nil {
		return nil, err
	}
	for _, i := range missing {
		for _, dir := range h.targets[i].dirs() {
			e.Area.Hold(dir)
			defer e.Area.Drop(dir)
		}
	}
	need, err := e.need(h, missing, assemblies)
	if err != nil {
		return nil, err
	}
	release, err := e.Objects.Reserve(h.table, h.group, need, h.left)
	if err != nil {
		return nil, err
	}
	defer release()
	for _, a := range assemblies {
		if err := a.begin(e); err != nil {
			return nil, err
		}
	}
	wish := e.wish(h, t, e.Objects.Order(h.table, h.group), missing)
	defer wish.release(e, h)
	if err := e.fetchTargets(ctx, h, missing, wish, assemblies); err != nil {
		return nil, err
	}
	for _, a := range assemblies {
		if !a.copied {
			continue
		}
		if err := a.publish(ctx, e, &h.from, h.group); err != nil {
			return nil, err
		}
	}
	for i := range h.targets {
		if places[h.targets[i].Blob.Digest] != nil {
			left = append(left, h.targets[i].archiveDir())
		}
	}
	return left, nil
}

// PutInline makes the inline and the empty files of a table objects.
func (e *Engine) PutInline(t *filetable.Table) error {
	var files []filetable.File
	for _, f := range t.Files {
		if src := f.Source; src != nil && len(src.Parts) == 0 && (src.Blob == "" || f.Size == 0) {
			files = append(files, f)
		}
	}
	return together(files, func(f filetable.File) error {
		if _, err := e.Objects.PutBytes(f.Source.Inline); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		return nil
	})
}

// missing returns the missing targets in the order that loaders have. It sets where each is staged.
func (e *Engine) missing(h *hydration, t *filetable.Table, places map[digest.Digest][]staging.Piece) ([]int, error) {
	members := membersByBlob(t)
	var missing []int
	for i := range h.targets {
		target := &h.targets[i]
		ok, err := e.hasTarget(target, places, &h.from)
		if err != nil {
			return nil, err
		}
		if ok {
			h.finish(i, StatePresent)
			continue
		}
		target.pieces, err = piecesOf(target.Blob, members[target.Blob.Digest], places[target.Blob.Digest])
		if err != nil {
			return nil, target.wrap(err)
		}
		missing = append(missing, i)
	}
	order := fragmentOrder(t)
	slices.SortStableFunc(missing, func(a, b int) int { return h.targets[a].compare(&h.targets[b], order) })
	return missing, nil
}

// hasTarget reports whether the content of a target is present. Fragments are missing if they are
// in places.
func (e *Engine) hasTarget(t *Target, places map[digest.Digest][]staging.Piece, from *transfer.Sources) (bool, error) {
	if t.Blob.Archive == filetable.ArchiveFragments {
		return places[t.Blob.Digest] == nil, nil
	}
	if len(t.Files) == 0 {
		return e.Objects.Has(t.Blob, from)
	}
	for _, f := range t.Files {
		ok, err := e.Objects.Has(filetable.Blob{Digest: f.File.Digest, Size: f.File.Size}, from)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// need returns the minimum disk space that the missing targets still need, in bytes.
func (e *Engine) need(h *hydration, missing []int, assemblies []*assembly) (need int64, err error) {
	for _, i := range missing {
		t := &h.targets[i]
		need += t.Blob.Size + t.unpacked()
		for _, dir := range t.dirs() {
			n, err := e.Area.Allocated(dir)
			if err != nil {
				return 0, err
			}
			need -= n
		}
	}
	for _, a := range assemblies {
		n, err := e.Area.Allocated(a.dir)
		if err != nil {
			return 0, err
		}
		need -= n
	}
	return max(0, need), nil
}

// unpacked returns the minimum unpacked size of a target, in bytes.
func (t *Target) unpacked() int64 {
	if t.Blob.Codec == filetable.CodecNone {
		return 0
	}
	return t.Blob.Size
}

// piecesOf returns where a blob is staged.
func piecesOf(b filetable.Blob, members []filetable.Member, fragments []staging.Piece) ([]staging.Piece, error) {
	switch {
	case b.Archive == filetable.ArchiveFragments:
		return fragments, nil
	case b.PlainTar():
		return staging.TarPieces(members, b.Size)
	default:
		return staging.RawPieces(b.Size), nil
	}
}

func membersByBlob(t *filetable.Table) map[digest.Digest][]filetable.Member {
	out := map[digest.Digest][]filetable.Member{}
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob != "" {
			m := filetable.Member{Path: f.Path, Type: filetable.TypeReg, Size: f.Source.Size, Offset: f.Source.Offset}
			out[f.Source.Blob] = append(out[f.Source.Blob], m)
		}
	}
	return out
}
