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
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// parallelBlobs is how many targets of one table are fetched at the same time. Connections
// bound what crosses the wire; this only has to keep them busy when blobs are small.
const parallelBlobs = 32

// parallelSmall is how many of them have no more than a chunk, beside those. They wait for the disk rather
// than for the wire, and the disk takes as long for many as for one.
const parallelSmall = 96

// parallelSyncs is how many files are made durable at the same time. One after the other each waits for a
// write of the file system's journal; at the same time they share it: 1,216 files in groups of 32 take 0.2
// of the time on ext4, as little as one syncfs for each group, which waits for what others write too.
const parallelSyncs = 32

// together does what waits for the disk for many, and returns the first error.
func together[T any](all []T, do func(T) error) error {
	var g errgroup.Group
	g.SetLimit(parallelSyncs)
	for _, one := range all {
		g.Go(func() error { return do(one) })
	}
	return g.Wait()
}

// ProgressEvery is how often Progress is reported.
const ProgressEvery = 200 * time.Millisecond

// Progress is a moment of a hydration, for one target.
type Progress struct {
	Blob  digest.Digest `json:"digest"`
	Name  string        `json:"file,omitempty"` // the path of a file in it, for people
	Total int64         `json:"total"`          // bytes
	Done  int64         `json:"completed"`      // bytes present
	State string        `json:"status"`         // "waiting", "downloading", "verifying", "complete", "present"
}

// Options are the settings of one Hydrate.
type Options struct {
	// Sources are asked in order; the next one after an error.
	Sources []transfer.Source

	// Progress, if not nil, is called about five times a second and once at the end,
	// from the goroutine of Hydrate, with all targets of the table.
	Progress func([]Progress)

	// Background says that nobody waits for the end: it gives way to all others, and to
	// readers.
	Background bool
}

// Hydrate returns when every file of the table is a complete, verified object. Blobs that
// are there already, or whose contents are, are not fetched; a blob that is being fetched
// is waited for. If ctx ends first, the work goes on for Linger. finish runs once for all who wait, when
// all is there.
func (e *Engine) Hydrate(ctx context.Context, d digest.Digest, t *filetable.Table, o Options, finish func() error) error {
	for {
		h, joined, err := e.hydration(d, t, o, finish)
		if err != nil {
			return err
		}
		err = e.follow(ctx, h, o.Progress)
		if ctx.Err() != nil || e.ctx.Err() != nil || err == nil || !joined {
			return err
		}
		// One that was ending when we joined it is no answer, and another's
		// credentials may be worse than ours.
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
func (e *Engine) hydration(d digest.Digest, t *filetable.Table, o Options, finish func() error) (h *hydration, joined bool, err error) {
	h = &hydration{table: d, group: transfer.GroupKey(o.Sources), done: make(chan struct{}), list: o.Sources}
	h.from.Set(h.key(), h.list)
	e.mu.Lock()
	if e.hydrations[h.key()] == nil { // a table can be large, and nobody waits for its plan but us
		e.mu.Unlock()
		h.plan(Plan(t, h.group))
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
		e.start(h, t, finish)
	}
	if !o.Background {
		h.await()
	}
	h.waiters++
	if h.linger != nil {
		h.linger.Stop()
		h.linger = nil
	}
	return h, joined, nil
}

// start begins the work of a hydration. Who calls it holds mu.
func (e *Engine) start(h *hydration, t *filetable.Table, finish func() error) {
	ctx, cancel := context.WithCancel(e.ctx)
	h.cancel = cancel
	e.hydrations[h.key()] = h
	close(e.began)
	e.began = make(chan struct{})
	e.work.Go(func() {
		left, err := e.bring(ctx, h, t)
		if err == nil {
			err = finish()
		}
		if errors.Is(err, context.Canceled) && e.ctx.Err() != nil {
			err = errClosed
		}
		cancel()
		e.end(h, err)
		for _, dir := range left { // which nobody waits for; what stays is collected
			if err := e.Area.Tidy(dir); err != nil {
				e.Log.Warn("staged files that are not needed any more stay", "directory", dir, "err", err)
			}
		}
	})
}

// end tells who waits that a hydration has ended.
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

// Running returns the state of the targets of a table that is being hydrated, and whether it is.
func (e *Engine) Running(table digest.Digest) ([]Progress, bool) {
	for _, h := range e.of(table) {
		return h.progress(), true
	}
	return nil, false
}

// Awaited says whether somebody waits until a table is complete. Such work does not stop when the
// scheduler is paused.
func (e *Engine) Awaited(table digest.Digest) bool {
	return slices.ContainsFunc(e.of(table), func(h *hydration) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.awaited
	})
}

// Await says that somebody waits for a file of a table that can be read only when all of it is there.
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

// leave takes a waiter away. The last one starts the clock.
func (e *Engine) leave(h *hydration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h.waiters--; h.waiters > 0 || e.hydrations[h.key()] != h {
		return
	}
	h.mu.Lock()
	awaited := h.awaited
	h.mu.Unlock()
	if !awaited { // who waits for nothing does not come back
		h.cancel()
		return
	}
	h.linger = time.AfterFunc(e.Linger, h.cancel)
}

// bring is the work of a hydration. left are directories of the area that it has no more use for.
func (e *Engine) bring(ctx context.Context, h *hydration, t *filetable.Table) (left []string, err error) {
	e.Objects.Registered(ctx)
	if err := e.PutInline(ctx, t); err != nil {
		return nil, err
	}
	assemblies, places, err := e.assemblies(t, h.group, &h.from)
	if err != nil {
		return nil, err
	}
	for _, a := range assemblies { // in the order of their directories: no two wait for each other
		release, err := e.exclusive(ctx, a.dir())
		if err != nil {
			return nil, err
		}
		defer release()
		e.Area.Hold(a.dir())
		defer e.Area.Drop(a.dir())
	}
	missing, err := e.missing(h, t, places)
	if err != nil {
		return nil, err
	}
	for _, i := range missing {
		for _, dir := range h.targets[i].Dirs() {
			e.Area.Hold(dir)
			defer e.Area.Drop(dir)
		}
	}
	need, err := e.need(h, missing, assemblies)
	if err != nil {
		return nil, err
	}
	release, err := e.Objects.Reserve(ctx, h.table, h.group, need, h.left)
	if err != nil {
		return nil, err
	}
	defer release()
	for _, a := range assemblies {
		if err := a.begin(e); err != nil {
			return nil, err
		}
	}
	if err := e.bringTargets(ctx, h, missing, assemblies); err != nil {
		return nil, err
	}
	for _, a := range assemblies {
		if err := a.publish(e, &h.from); err != nil {
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

// PutInline makes the files that are in the table itself, and empty ones, objects.
func (e *Engine) PutInline(ctx context.Context, t *filetable.Table) error {
	var files []filetable.File
	for _, f := range t.Files {
		if src := f.Source; src != nil && len(src.Parts) == 0 && (src.Blob == "" || f.Size == 0) {
			files = append(files, f)
		}
	}
	return together(files, func(f filetable.File) error {
		if _, err := e.Objects.PutBytes(ctx, f.Source.Inline); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
		return nil
	})
}

// missing returns the targets that are not there, the smallest first: readers look at headers,
// configs and tokenizers before they look at weights. It says where each is staged.
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
			h.settle(i, StatePresent)
			continue
		}
		target.pieces, err = piecesOf(target.Blob, members[target.Blob.Digest], places[target.Blob.Digest])
		if err != nil {
			return nil, target.wrap(err)
		}
		missing = append(missing, i)
	}
	slices.SortStableFunc(missing, func(a, b int) int { return cmp.Compare(h.targets[a].rank(), h.targets[b].rank()) })
	return missing, nil
}

// rank says when a target is brought: the lower, the earlier. Small files come first.
func (t *Target) rank() int64 {
	if len(t.Files) > 1 {
		return -1
	}
	return t.Blob.Size
}

// hasTarget says whether what a target brings is there; of fragments, places has those that are
// needed still.
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

// need returns how many bytes the missing targets still take on the disk, at least.
func (e *Engine) need(h *hydration, missing []int, assemblies []*assembly) (need int64, err error) {
	for _, i := range missing {
		t := &h.targets[i]
		need += t.Blob.Size + t.unpacked()
		for _, dir := range t.Dirs() {
			n, err := e.Area.Allocated(dir)
			if err != nil {
				return 0, err
			}
			need -= n
		}
	}
	for _, a := range assemblies {
		n, err := e.Area.Allocated(a.dir())
		if err != nil {
			return 0, err
		}
		need -= n
	}
	return max(0, need), nil
}

// unpacked returns how many bytes a target unpacks to, at least.
func (t *Target) unpacked() int64 {
	if t.Blob.Codec == filetable.CodecNone {
		return 0
	}
	return t.Blob.Size
}

// bringTargets fetches targets, and hashes the files that are put together of them meanwhile. The first
// error ends it.
func (e *Engine) bringTargets(ctx context.Context, h *hydration, missing []int, assemblies []*assembly) error {
	fragments := map[digest.Digest]chan struct{}{} // closed when verified
	for _, i := range missing {
		if b := h.targets[i].Blob; b.Archive == filetable.ArchiveFragments {
			fragments[b.Digest] = make(chan struct{})
		}
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, a := range assemblies {
		all.Go(func() error {
			return a.complete(ctx, e, func(ctx context.Context, d digest.Digest) error {
				select {
				case <-fragments[d]:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	all.Go(func() error {
		g, ctx := errgroup.WithContext(ctx)
		small, large := make(chan struct{}, parallelSmall), make(chan struct{}, parallelBlobs)
		for _, i := range missing {
			turns := large
			if h.targets[i].Blob.Size <= staging.ChunkSize {
				turns = small
			}
			turns <- struct{}{}
			g.Go(func() error {
				defer func() { <-turns }()
				if ctx.Err() != nil { // nothing starts after a failure, not even what waited for its turn
					return ctx.Err()
				}
				b, err := e.fetch(ctx, h, i)
				if err != nil {
					return err
				}
				h.from.Took(&b.sources)
				h.settle(i, StateComplete)
				if verified := fragments[b.target.Blob.Digest]; verified != nil && len(b.files) == 0 {
					close(verified)
				}
				return nil
			})
		}
		return g.Wait()
	})
	return all.Wait()
}

// piecesOf says where a blob is staged.
func piecesOf(b filetable.Blob, members []filetable.Member, fragments []staging.Piece) ([]staging.Piece, error) {
	switch {
	case b.Archive == filetable.ArchiveFragments:
		return fragments, nil
	case b.Archive == filetable.ArchiveTar && b.Codec == filetable.CodecNone:
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
