package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
)

// parallelBlobs is how many blobs of one table are fetched at the same time. Connections
// bound what crosses the wire; this only has to keep them busy when blobs are small.
const parallelBlobs = 32

// progressEvery is how often Progress is reported.
const progressEvery = 200 * time.Millisecond

// Progress is a moment of a Hydrate, for one blob.
type Progress struct {
	Blob  digest.Digest `json:"digest"`
	Name  string        `json:"file,omitempty"` // the path of a file in it, for people
	Total int64         `json:"total"`          // bytes
	Done  int64         `json:"completed"`      // bytes present
	State string        `json:"status"`         // "waiting", "downloading", "verifying", "complete", "present"
}

// HydrateOptions are the settings of one Hydrate.
type HydrateOptions struct {
	// Sources are asked in order; the next one after an error.
	Sources []transfer.Source

	// Progress, if not nil, is called about five times a second and once at the end,
	// from the goroutine of Hydrate, with all blobs of the table.
	Progress func([]Progress)

	// Background says that nobody waits for the end: it gives way to all others, and to
	// readers.
	Background bool
}

// A hydration brings the blobs of one table. There is at most one per table.
type hydration struct {
	table  digest.Digest
	units  []unit
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed

	waiters int         // guarded by Store.mu
	linger  *time.Timer // guarded by Store.mu; runs while nobody waits

	mu      sync.Mutex // guards what follows
	awaited bool       // somebody waits for the end
	blobs   []Progress // by index of units
	jobs    []*job     // the same; nil while waiting
}

// Hydrate returns when every file of the table is a complete, verified object. Blobs that
// are there already, or whose contents are, are not fetched; a blob that is being fetched
// is waited for. If ctx ends first, the work goes on for Options.Linger.
//
// It returns errdefs.ErrResourceExhausted if the space does not suffice, *verify.Error if
// bytes are wrong, and errdefs.ErrInvalidArgument if an archive breaks a rule.
func (s *Store) Hydrate(ctx context.Context, table digest.Digest, o HydrateOptions) error {
	for {
		joined, err := s.hydrate(ctx, table, o)
		if ctx.Err() != nil || s.ctx.Err() != nil {
			return err
		}
		// One that was ending when we joined it is no answer, and another's
		// registries and credentials may be worse than ours.
		if !errors.Is(err, context.Canceled) && (err == nil || !joined) {
			return err
		}
	}
}

func (s *Store) hydrate(ctx context.Context, table digest.Digest, o HydrateOptions) (joined bool, err error) {
	h, joined, err := s.hydration(ctx, table, o)
	if err != nil {
		return joined, err
	}
	defer s.leave(h)
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-h.done:
			if o.Progress != nil {
				o.Progress(h.progress())
			}
			return joined, h.err
		case <-ctx.Done():
			return joined, ctx.Err()
		case <-tick.C:
			if o.Progress != nil {
				o.Progress(h.progress())
			}
		}
	}
}

// hydration returns the running hydration of a table with one more waiter, or starts one.
func (s *Store) hydration(ctx context.Context, table digest.Digest, o HydrateOptions) (h *hydration, joined bool, err error) {
	t, err := s.Table(ctx, table)
	if err != nil {
		return nil, false, err
	}
	units := unitsOf(t)
	// A collection that began before has ended: what it left is what we find.
	s.gcMu.RLock()
	defer s.gcMu.RUnlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, errClosed
	}
	h, joined = s.hydrations[table]
	if !joined {
		hctx, cancel := context.WithCancel(s.ctx)
		h = &hydration{table: table, cancel: cancel, done: make(chan struct{})}
		h.plan(units)
		s.hydrations[table] = h
		s.work.Go(func() {
			defer close(h.done)
			s.tell(table, nil)
			h.err = s.bring(hctx, h, t, o.Sources)
			cancel()
			if h.err != nil {
				s.tell(table, h.err)
			}
			s.mu.Lock()
			delete(s.hydrations, table)
			for _, u := range h.units {
				s.dropJob(u.lazy)
			}
			if h.linger != nil {
				h.linger.Stop()
			}
			s.mu.Unlock()
		})
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

// Hydrating returns the state of the blobs of a table that is being hydrated, and whether it is.
func (s *Store) Hydrating(table digest.Digest) ([]Progress, bool) {
	s.mu.Lock()
	h, ok := s.hydrations[table]
	s.mu.Unlock()
	if !ok {
		return nil, false
	}
	return h.progress(), true
}

// leave takes a waiter away. The last one starts the clock.
func (s *Store) leave(h *hydration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.waiters--; h.waiters > 0 || s.hydrations[h.table] != h {
		return
	}
	h.mu.Lock()
	awaited := h.awaited
	h.mu.Unlock()
	if !awaited { // who waits for nothing does not come back
		h.cancel()
		return
	}
	h.linger = time.AfterFunc(s.o.Linger, h.cancel)
}

// plan takes the units of a table.
func (h *hydration) plan(units []unit) {
	h.units = units
	for _, u := range units {
		h.blobs = append(h.blobs, Progress{Blob: u.blob.Digest, Name: u.name, Total: u.blob.Size, State: stateWaiting})
	}
	h.jobs = make([]*job, len(h.units))
}

func (h *hydration) progress() []Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := slices.Clone(h.blobs)
	for i, j := range h.jobs {
		if j != nil && out[i].State == stateWaiting {
			out[i].State, _ = j.state.Load().(string)
			out[i].Done = min(j.present(), out[i].Total)
		}
	}
	return out
}

// started takes note of the job of a unit.
func (h *hydration) started(i int, j *job) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.jobs[i] = j
	if h.awaited {
		j.await()
	}
}

// await says that somebody waits for the end.
func (h *hydration) await() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.awaited = true
	for _, j := range h.jobs {
		if j != nil {
			j.await()
		}
	}
}

func (h *hydration) settle(i int, state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blobs[i].State, h.blobs[i].Done = state, h.blobs[i].Total
}

// bring is the work of a hydration.
func (s *Store) bring(ctx context.Context, h *hydration, t *filetable.Table, fetchers []transfer.Source) error {
	if err := s.putInline(ctx, t); err != nil {
		return err
	}
	if slices.ContainsFunc(t.Blobs, func(b filetable.Blob) bool { return b.Archive == filetable.ArchiveFragments }) {
		select {
		case s.assembling <- struct{}{}:
			defer func() { <-s.assembling }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	assemblies, places, err := s.assemblies(t)
	if err != nil {
		return err
	}
	missing, err := s.missing(h, t, places, fetchers)
	if err != nil {
		return err
	}
	if err := s.preflight(ctx, h, missing, assemblies); err != nil {
		return err
	}
	for _, a := range assemblies {
		if err := a.begin(s); err != nil {
			return err
		}
	}
	if err := s.bringUnits(ctx, h, missing, assemblies, fetchers); err != nil {
		return err
	}
	for _, a := range assemblies {
		if err := a.publish(s); err != nil {
			return err
		}
	}
	for d := range places {
		if err := s.root.RemoveAll(partialName(d)); err != nil {
			return err
		}
	}
	return s.settleTable(h.table, t)
}

// missing returns the units that are not there, the smallest first: readers look at headers,
// configs and tokenizers before they look at weights. It says where each is staged.
func (s *Store) missing(h *hydration, t *filetable.Table, places map[digest.Digest][]piece, fetchers []transfer.Source) ([]int, error) {
	members := membersByBlob(t)
	var missing []int
	for i := range h.units {
		u := &h.units[i]
		ok, err := s.hasUnit(*u, places)
		if err != nil {
			return nil, err
		}
		if ok {
			h.settle(i, statePresent)
			continue
		}
		s.offerUnit(u, fetchers)
		u.pieces, err = piecesOf(u.blob, members[u.blob.Digest], places[u.blob.Digest])
		if err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", u.blob.Layer, u.blob.Digest, err)
		}
		missing = append(missing, i)
	}
	slices.SortStableFunc(missing, func(a, b int) int { return cmp.Compare(h.units[a].rank(), h.units[b].rank()) })
	return missing, nil
}

// offerUnit makes a unit readable that is brought by its chunks.
func (s *Store) offerUnit(u *unit, fetchers []transfer.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.file != nil {
		u.lazy = s.offer(*u.file, u.how, fetchers)
	} else if l := s.lazy[u.blob.Digest]; l != nil && l.how != nil && u.blob.Archive == filetable.ArchiveNone {
		l.jobs++ // readers bring it by chunks, with digests or without
		u.lazy, u.how = l, l.how
	}
}

// bringUnits fetches units, and hashes the files that are put together of them meanwhile.
func (s *Store) bringUnits(ctx context.Context, h *hydration, missing []int, assemblies []*assembly, fetchers []transfer.Source) error {
	verified := map[digest.Digest]chan struct{}{}
	for _, i := range missing {
		verified[h.units[i].blob.Digest] = make(chan struct{})
	}
	all, ctx := errgroup.WithContext(ctx)
	for _, a := range assemblies {
		all.Go(func() error {
			return a.complete(ctx, s, func(ctx context.Context, d digest.Digest) error {
				select {
				case <-verified[d]:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
	}
	all.Go(func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(parallelBlobs)
		for _, i := range missing {
			g.Go(func() error {
				u := h.units[i]
				err := s.fetchBlob(ctx, u, fetchers, func(j *job) { h.started(i, j) })
				if err == nil {
					h.settle(i, stateComplete)
					close(verified[u.blob.Digest])
				}
				return err
			})
		}
		return g.Wait()
	})
	return all.Wait()
}

// piecesOf says where a blob is staged.
func piecesOf(b filetable.Blob, members []filetable.Member, fragments []piece) ([]piece, error) {
	switch {
	case b.Archive == filetable.ArchiveFragments:
		return fragments, nil
	case b.Archive == filetable.ArchiveTar && b.Codec == filetable.CodecNone:
		return tarPieces(members, b.Size)
	default:
		return rawPieces(b.Size), nil
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

// hasUnit is hasBlob for a unit; of fragments, places has those that are needed still.
func (s *Store) hasUnit(u unit, places map[digest.Digest][]piece) (bool, error) {
	if u.blob.Archive == filetable.ArchiveFragments {
		return places[u.blob.Digest] == nil, nil
	}
	return s.hasBlob(u.blob)
}

// hasBlob says whether what a blob brings is there. It returns a *verify.Error if the
// object is there with another size than the table says.
func (s *Store) hasBlob(b filetable.Blob) (bool, error) {
	if b.Archive == filetable.ArchiveNone {
		if !s.has(b.Digest) {
			return false, nil
		}
		info, err := s.root.Lstat(objectPath(b.Digest))
		if err != nil {
			return false, err
		}
		return true, verify.Compare(b.Digest, b.Digest, b.Size, info.Size())
	}
	contents, err := s.contents(b.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for _, c := range contents {
		if c.Type == filetable.TypeReg && !s.has(c.Digest) {
			return false, nil
		}
	}
	return true, nil
}

func (s *Store) contents(blob digest.Digest) (c []filetable.Member, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c, err = load[[]filetable.Member](tx, bucketContents, blob.String())
		return err
	})
	return c, err
}

// settleTable records what a table needs, now that all of it is known.
func (s *Store) settleTable(d digest.Digest, t *filetable.Table) error {
	rec, err := s.resolveRecord(d, t)
	if err != nil {
		return err
	}
	rec.Complete = true
	held := false
	err = s.db.Update(func(tx *bbolt.Tx) error {
		now := time.Now().UTC()
		rec.Used = now
		for _, d := range rec.Objects {
			o, err := load[objectRecord](tx, bucketObjects, d.String())
			if err != nil {
				return err
			}
			o.Used = now
			if err := put(tx, bucketObjects, d.String(), o); err != nil {
				return err
			}
		}
		if err := put(tx, bucketTables, d.String(), rec); err != nil {
			return err
		}
		err := each(tx, bucketRefs, func(_ string, r Ref) error {
			held = held || r.Table == d
			return nil
		})
		if err != nil {
			return err
		}
		return attribute(tx)
	})
	if err != nil {
		return err
	}
	if held {
		s.handOver(rec.Objects)
		return nil
	}
	for _, d := range rec.Objects {
		s.keep(d)
	}
	return nil
}

// resolveRecord lists the objects that a table needs. With errdefs.ErrUnavailable, when not all
// of them are known, it still lists those that are.
func (s *Store) resolveRecord(d digest.Digest, t *filetable.Table) (tableRecord, error) {
	rec := tableRecord{Objects: []digest.Digest{d}, Used: time.Now().UTC()}
	files, err := s.resolve(t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return rec, err
	}
	for _, f := range files {
		if f.Type == filetable.TypeReg {
			rec.Logical += f.Size
			if f.Digest != "" {
				rec.Objects = append(rec.Objects, f.Digest)
			}
		}
	}
	slices.Sort(rec.Objects)
	rec.Objects = slices.Compact(rec.Objects)
	return rec, err
}
