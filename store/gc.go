package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// partialTTL is how long an unfinished fetch stays that nobody goes on with.
const partialTTL = 24 * time.Hour

// imageTTL is how long an image without references stays resolvable by its digest. It costs
// its manifest, config and table only.
const imageTTL = 7 * 24 * time.Hour

// keepTime is how long an object without a reference stays in any case after it was made or
// found: whoever made it needs a moment to refer to it.
const keepTime = time.Minute

// keep protects an object that was just made or found, until a reference or an image that
// needs it is recorded, for keepTime at most, or as long as anything is being fetched.
func (s *Store) keep(d digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[d] = time.Now()
}

// handOver ends the protection of keep: something recorded needs the objects.
func (s *Store) handOver(objects []digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range objects {
		delete(s.kept, d)
	}
}

// live returns the objects that must stay: those of tables with a reference that has not
// expired or a running fetch, the documents of images, and what is kept for a moment.
func (s *Store) live(tx *bbolt.Tx) (map[digest.Digest]bool, error) {
	live := map[digest.Digest]bool{}
	tables := map[digest.Digest]bool{}
	now := time.Now()
	err := each(tx, bucketRefs, func(_ string, r Ref) error {
		if r.Expires.IsZero() || r.Expires.After(now) {
			tables[r.Table] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var fetching []digest.Digest // blobs
	s.mu.Lock()
	for d, at := range s.kept {
		if len(s.hydrations) == 0 && now.Sub(at) > keepTime {
			delete(s.kept, d)
			continue
		}
		live[d] = true
	}
	for d, h := range s.hydrations {
		tables[d] = true
		for _, u := range h.units {
			fetching = append(fetching, u.blob.Digest)
		}
	}
	s.mu.Unlock()
	for _, b := range fetching {
		live[b] = true
		contents, err := load[[]filetable.Member](tx, bucketContents, b.String())
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		for _, c := range contents {
			live[c.Digest] = true
		}
	}
	for d := range tables {
		live[d] = true
		t, err := load[tableRecord](tx, bucketTables, d.String())
		if errdefs.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		for _, o := range t.Objects {
			live[o] = true
		}
	}
	err = each(tx, bucketImages, func(_ string, im Image) error {
		live[im.Manifest], live[im.Config], live[im.Table] = true, true, true
		return nil
	})
	return live, err
}

// GCOptions says what to collect.
type GCOptions struct {
	// Keep is how many bytes of objects without a reference may stay; those used last
	// stay. Zero frees all.
	Keep int64

	// DryRun only counts.
	DryRun bool
}

// GCResult says what was, or would be, freed.
type GCResult struct {
	Objects  int   `json:"objects"`
	Bytes    int64 `json:"bytes"`
	Partials int   `json:"partials"`
	Images   int   `json:"images"`
}

// GC removes objects that no reference and no fetch needs, oldest use first, unfinished
// fetches that are idle for a day, images that nothing uses for a week, and references that
// have expired.
func (s *Store) GC(ctx context.Context, o GCOptions) (GCResult, error) {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	var r GCResult
	images, err := s.collectRecords(o.DryRun)
	if err != nil {
		return r, err
	}
	r.Images = images
	if r.Partials, err = s.collectPartials(o.DryRun); err != nil {
		return r, err
	}
	objects, bytes, err := s.collectObjects(func(total int64) int64 { return total - o.Keep }, o.DryRun)
	r.Objects, r.Bytes = objects, bytes
	if err == nil && !o.DryRun && objects+images+r.Partials > 0 {
		s.log.Info("collected", "objects", objects, "bytes", bytes, "partials", r.Partials, "images", images)
	}
	return r, err
}

// evict frees about want bytes of objects that nothing needs.
func (s *Store) evict(ctx context.Context, want int64) (int64, error) {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	if _, err := s.collectRecords(false); err != nil {
		return 0, err
	}
	n, bytes, err := s.collectObjects(func(int64) int64 { return want }, false)
	if n > 0 {
		s.log.Info("evicted to make room", "objects", n, "bytes", bytes)
	}
	return bytes, err
}

// collectRecords drops expired references, unused images, and what is known of tables and
// archives whose objects are gone.
func (s *Store) collectRecords(dryRun bool) (images int, err error) {
	now := time.Now()
	update := s.db.Update
	if dryRun {
		update = s.db.View
	}
	err = update(func(tx *bbolt.Tx) error {
		used := map[digest.Digest]bool{}
		var drop []struct{ bucket, key []byte }
		mark := func(bucket []byte, key string) {
			drop = append(drop, struct{ bucket, key []byte }{bucket, []byte(key)})
		}
		err := each(tx, bucketRefs, func(key string, r Ref) error {
			if !r.Expires.IsZero() && r.Expires.Before(now) {
				mark(bucketRefs, key)
			} else {
				used[r.Table] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = each(tx, bucketImages, func(key string, im Image) error {
			if !used[im.Table] && now.Sub(im.Used) > imageTTL {
				mark(bucketImages, key)
				images++
			}
			used[im.Table] = true
			return nil
		})
		if err != nil {
			return err
		}
		there := func(d digest.Digest) bool { return tx.Bucket(bucketObjects).Get([]byte(d)) != nil }
		err = each(tx, bucketContents, func(key string, cs []filetable.Member) error {
			if !slices.ContainsFunc(cs, func(c filetable.Member) bool { return c.Type == filetable.TypeReg && there(c.Digest) }) {
				mark(bucketContents, key)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = each(tx, bucketAssembled, func(key string, a assembledRecord) error {
			if !there(a.Digest) {
				mark(bucketAssembled, key)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = each(tx, bucketShown, func(key string, _ shownRecord) error {
			if !there(digest.Digest(key)) {
				mark(bucketShown, key)
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = each(tx, bucketTables, func(key string, _ tableRecord) error {
			if tx.Bucket(bucketObjects).Get([]byte(key)) == nil && !used[digest.Digest(key)] {
				mark(bucketTables, key)
			}
			return nil
		})
		if err != nil || dryRun {
			return err
		}
		for _, d := range drop {
			if err := tx.Bucket(d.bucket).Delete(d.key); err != nil {
				return err
			}
		}
		return attribute(tx)
	})
	return images, err
}

// collectPartials removes unfinished fetches that nobody goes on with.
func (s *Store) collectPartials(dryRun bool) (n int, err error) {
	entries, err := fs.ReadDir(s.root.FS(), partialDir)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	busy := s.stagedDirs()
	fetching := len(s.hydrations) > 0
	s.mu.Unlock()
	for _, e := range entries {
		name, newest := filepath.Join(partialDir, e.Name()), "marks"
		if strings.HasPrefix(e.Name(), assemblyPrefix) {
			newest, busy[name] = "data", fetching
		}
		info, err := s.root.Lstat(filepath.Join(name, newest))
		if !e.IsDir() || busy[name] || err == nil && time.Since(info.ModTime()) < partialTTL {
			continue
		}
		n++
		if dryRun {
			continue
		}
		if err := s.root.RemoveAll(name); err != nil {
			return n, err
		}
	}
	return n, nil
}

// collectObjects removes objects that nothing needs, oldest use first, until want(total of
// them) bytes are freed. The record goes first: a file without a record is adopted again by
// Open, a record without a file would be a lie.
func (s *Store) collectObjects(want func(total int64) int64, dryRun bool) (n int, bytes int64, err error) {
	type candidate struct {
		d digest.Digest
		objectRecord
	}
	var (
		all   []candidate
		total int64
	)
	collect := func(tx *bbolt.Tx) error {
		live, err := s.live(tx)
		if err != nil {
			return err
		}
		err = each(tx, bucketObjects, func(key string, o objectRecord) error {
			if d := digest.Digest(key); !live[d] {
				all = append(all, candidate{d, o})
				total += o.Size
			}
			return nil
		})
		if err != nil {
			return err
		}
		slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.d, b.d)) })
		left := want(total)
		for i, c := range all {
			if left <= 0 {
				all = all[:i]
				break
			}
			left -= c.Size
			bytes += c.Size
		}
		if dryRun {
			return nil
		}
		return forget(tx, all, func(c candidate) digest.Digest { return c.d })
	}
	if dryRun {
		err := s.db.View(collect)
		return len(all), bytes, err
	}
	if err := s.db.Update(collect); err != nil {
		return 0, 0, err
	}
	for _, c := range all {
		if err := s.root.Remove(objectPath(c.d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, bytes, err
		}
		n++
	}
	return n, bytes, nil
}

// forget removes object records, and marks the tables that need them incomplete.
func forget[T any](tx *bbolt.Tx, gone []T, of func(T) digest.Digest) error {
	set := make(map[digest.Digest]bool, len(gone))
	for _, g := range gone {
		d := of(g)
		set[d] = true
		if err := tx.Bucket(bucketObjects).Delete([]byte(d.String())); err != nil {
			return err
		}
	}
	if err := dropChunks(tx, set); err != nil {
		return err
	}
	var broken []struct {
		key string
		tableRecord
	}
	err := each(tx, bucketTables, func(key string, t tableRecord) error {
		if t.Complete && slices.ContainsFunc(t.Objects, func(d digest.Digest) bool { return set[d] }) {
			t.Complete = false
			broken = append(broken, struct {
				key string
				tableRecord
			}{key, t})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, b := range broken {
		if err := put(tx, bucketTables, b.key, b.tableRecord); err != nil {
			return err
		}
	}
	return attribute(tx)
}

// Run evicts when space runs short, until ctx is done.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(s.o.Evict.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			want, err := s.excess(ctx)
			if err == nil && want > 0 {
				_, err = s.evict(ctx, want)
			}
			if err != nil {
				s.log.Error("evicting objects", "err", err)
			}
		}
	}
}

// excess returns how many bytes should go.
func (s *Store) excess(ctx context.Context) (int64, error) {
	u, err := s.Usage(ctx)
	if err != nil {
		return 0, err
	}
	var want int64
	if used := u.Capacity - u.Free; used > percent(u.Capacity, s.o.Evict.High) {
		want = used - percent(u.Capacity, s.o.Evict.Low)
	}
	if q := s.o.Evict.Quota; q > 0 {
		want = max(want, u.Unique+u.Partial-q)
	}
	return min(want, u.Reclaimable), nil
}

func percent(n int64, p int) int64 { return int64(math.Round(float64(n) / 100 * float64(p))) }

// sweepTemp removes what a crash left of PutBytes.
func (s *Store) sweepTemp() error {
	entries, err := fs.ReadDir(s.root.FS(), partialDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "bytes-") {
			if err := s.root.Remove(filepath.Join(partialDir, e.Name())); err != nil {
				return fmt.Errorf("remove left-over %s: %w", e.Name(), err)
			}
		}
	}
	return nil
}
