package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

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
	// Fetchers are asked in order; the next one after an error.
	Fetchers []Fetcher

	// Progress, if not nil, is called about five times a second and once at the end,
	// from the goroutine of Hydrate, with all blobs of the table.
	Progress func([]Progress)
}

// A hydration brings the blobs of one table. There is at most one per table.
type hydration struct {
	table  digest.Digest
	needs  []digest.Digest // its blobs
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed

	waiters int         // guarded by Store.mu
	linger  *time.Timer // guarded by Store.mu; runs while nobody waits

	mu    sync.Mutex // guards what follows
	blobs []Progress
	jobs  []*job // by index of blobs; nil while waiting
}

// Hydrate returns when every file of the table is a complete, verified object. Blobs that
// are there already, or whose contents are, are not fetched; a blob that is being fetched
// is waited for. If ctx ends first, the work goes on for Options.Linger.
//
// It returns errdefs.ErrResourceExhausted if the space does not suffice, *VerifyError if
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
	h, joined, err := s.hydration(ctx, table, o.Fetchers)
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
func (s *Store) hydration(ctx context.Context, table digest.Digest, fetchers []Fetcher) (h *hydration, joined bool, err error) {
	t, err := s.Table(ctx, table)
	if err != nil {
		return nil, false, err
	}
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
		h.plan(t)
		s.hydrations[table] = h
		s.work.Go(func() {
			defer close(h.done)
			h.err = s.bring(hctx, h, t, fetchers)
			cancel()
			s.mu.Lock()
			delete(s.hydrations, table)
			if h.linger != nil {
				h.linger.Stop()
			}
			s.mu.Unlock()
		})
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
	if h.waiters--; h.waiters == 0 && s.hydrations[h.table] == h {
		h.linger = time.AfterFunc(s.o.Linger, h.cancel)
	}
}

func (h *hydration) plan(t *Table) {
	names := map[digest.Digest]string{}
	for _, f := range t.Files {
		if f.Source == nil {
			continue
		}
		for _, src := range append(f.Source.Parts, *f.Source) {
			if src.Blob != "" && names[src.Blob] == "" {
				names[src.Blob] = f.Path
			}
		}
	}
	for _, u := range t.Unpacks {
		names[u.Blob] = u.As
	}
	for _, b := range t.Blobs {
		h.needs = append(h.needs, b.Digest)
		h.blobs = append(h.blobs, Progress{Blob: b.Digest, Name: names[b.Digest], Total: b.Size, State: stateWaiting})
	}
	h.jobs = make([]*job, len(t.Blobs))
}

func (h *hydration) progress() []Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := slices.Clone(h.blobs)
	for i, j := range h.jobs {
		if j != nil && out[i].State == stateWaiting {
			out[i].State, _ = j.state.Load().(string)
			out[i].Done = min(j.bytes.Load(), out[i].Total)
		}
	}
	return out
}

func (h *hydration) settle(i int, state string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blobs[i].State, h.blobs[i].Done = state, h.blobs[i].Total
}

// bring is the work of a hydration.
func (s *Store) bring(ctx context.Context, h *hydration, t *Table, fetchers []Fetcher) error {
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob == "" && len(f.Source.Parts) == 0 {
			if _, err := s.PutBytes(ctx, f.Source.Inline); err != nil {
				return fmt.Errorf("file %q: %w", f.Path, err)
			}
		}
	}
	if slices.ContainsFunc(t.Blobs, func(b Blob) bool { return b.Archive == ArchiveFragments }) {
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
	var missing []int
	for i, b := range t.Blobs {
		ok := places[b.Digest] == nil
		if b.Archive != ArchiveFragments {
			if ok, err = s.hasBlob(b); err != nil {
				return err
			}
		}
		if ok {
			h.settle(i, statePresent)
		} else {
			missing = append(missing, i)
		}
	}
	if err := s.preflight(ctx, h, t, missing, assemblies); err != nil {
		return err
	}
	for _, a := range assemblies {
		if err := a.begin(s); err != nil {
			return err
		}
	}
	if err := s.bringBlobs(ctx, h, t, missing, places, assemblies, fetchers); err != nil {
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

// bringBlobs fetches blobs, and hashes the files that are put together of them meanwhile.
func (s *Store) bringBlobs(ctx context.Context, h *hydration, t *Table, missing []int, places map[digest.Digest][]piece, assemblies []*assembly, fetchers []Fetcher) error {
	members := membersByBlob(t)
	verified := map[digest.Digest]chan struct{}{}
	for _, i := range missing {
		verified[t.Blobs[i].Digest] = make(chan struct{})
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
				b := t.Blobs[i]
				pieces, err := piecesOf(b, members[b.Digest], places[b.Digest])
				if err != nil {
					return fmt.Errorf("layer %d (%s): %w", b.Layer, b.Digest, err)
				}
				err = s.fetchBlob(ctx, b, pieces, fetchers, func(j *job) {
					h.mu.Lock()
					h.jobs[i] = j
					h.mu.Unlock()
				})
				if err == nil {
					h.settle(i, stateComplete)
					close(verified[b.Digest])
				}
				return err
			})
		}
		return g.Wait()
	})
	return all.Wait()
}

// piecesOf says where a blob is staged.
func piecesOf(b Blob, members []Member, fragments []piece) ([]piece, error) {
	switch {
	case b.Archive == ArchiveFragments:
		return fragments, nil
	case b.Archive == ArchiveTar && b.Codec == CodecNone:
		return tarPieces(members, b.Size)
	default:
		return rawPieces(b.Size), nil
	}
}

func membersByBlob(t *Table) map[digest.Digest][]Member {
	out := map[digest.Digest][]Member{}
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob != "" {
			m := Member{Path: f.Path, Type: TypeReg, Size: f.Source.Size, Offset: f.Source.Offset}
			out[f.Source.Blob] = append(out[f.Source.Blob], m)
		}
	}
	return out
}

// hasBlob says whether what a blob brings is there. It returns a *VerifyError if the
// object is there with another size than the table says.
func (s *Store) hasBlob(b Blob) (bool, error) {
	if b.Archive == ArchiveNone {
		if !s.has(b.Digest) {
			return false, nil
		}
		info, err := s.root.Lstat(objectPath(b.Digest))
		if err != nil {
			return false, err
		}
		return true, verify(b.Digest, b.Digest, b.Size, info.Size())
	}
	contents, err := s.contents(b.Digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for _, c := range contents {
		if c.Type == TypeReg && !s.has(c.Digest) {
			return false, nil
		}
	}
	return true, nil
}

func (s *Store) contents(blob digest.Digest) (c []content, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c, err = load[[]content](tx, bucketContents, blob.String())
		return err
	})
	return c, err
}

// preflight makes sure that what is missing fits on the disk and into the quota, beside what
// others are fetching, evicting if need be.
func (s *Store) preflight(ctx context.Context, h *hydration, t *Table, missing []int, assemblies []*assembly) error {
	var need int64
	for _, i := range missing {
		b := t.Blobs[i]
		need += b.Size - s.staged(partialName(b.Digest))
		if b.Codec != CodecNone {
			need += b.Size // what it unpacks to, at least
		}
	}
	for _, a := range assemblies {
		need -= s.staged(filepath.Join(partialDir, a.dir()))
	}
	if need <= 0 {
		return nil
	}
	for evicted := false; ; evicted = true {
		u, err := s.Usage(ctx)
		if err != nil {
			return err
		}
		others := s.outstanding(h)
		short, over := need+others+s.o.Reserve-u.Free, int64(0)
		if s.o.Evict.Quota > 0 {
			over = need + others + u.Unique + u.Partial - s.o.Evict.Quota
		}
		switch {
		case short <= 0 && over <= 0:
			return nil
		case !evicted:
			if _, err := s.evict(ctx, max(short, over)); err != nil {
				return err
			}
		case short > 0:
			return fmt.Errorf("the model needs %d more bytes, other fetches %d, and %d stay in reserve, but %s has %d free and nothing more to evict: %w",
				need, others, s.o.Reserve, s.dir, u.Free, errdefs.ErrResourceExhausted)
		default:
			return fmt.Errorf("the model needs %d more bytes, other fetches %d; of the quota of %d there are %d in use and nothing more to evict: %w",
				need, others, s.o.Evict.Quota, u.Unique+u.Partial, errdefs.ErrResourceExhausted)
		}
	}
}

// outstanding returns the bytes that other hydrations, which passed their preflight, will still
// write.
func (s *Store) outstanding(but *hydration) (n int64) {
	s.mu.Lock()
	var others []*hydration
	for _, h := range s.hydrations {
		if h != but {
			others = append(others, h)
		}
	}
	s.mu.Unlock()
	for _, h := range others {
		for _, b := range h.progress() {
			if b.State == stateDownloading {
				n += b.Total - b.Done
			}
		}
	}
	return n
}

// settleTable records what a table needs, now that all of it is known.
func (s *Store) settleTable(d digest.Digest, t *Table) error {
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
func (s *Store) resolveRecord(d digest.Digest, t *Table) (tableRecord, error) {
	rec := tableRecord{Objects: []digest.Digest{d}, Used: time.Now().UTC()}
	files, err := s.resolve(t)
	if err != nil && !errdefs.IsUnavailable(err) {
		return rec, err
	}
	for _, f := range files {
		if f.Type == TypeReg {
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
