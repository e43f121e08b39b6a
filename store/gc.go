package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
)

// partialTTL is how long an unfinished fetch stays that nobody goes on with.
const partialTTL = 24 * time.Hour

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

// roots returns what must stay beside that which is recorded as needed: what running hydrations
// bring, and what is kept for a moment. It is taken before the transaction that uses it: what
// stops being a root meanwhile is recorded as needed by then.
func (s *Store) roots() meta.Roots {
	now := time.Now()
	var r meta.Roots
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, at := range s.kept {
		if len(s.hydrations) == 0 && now.Sub(at) > keepTime {
			delete(s.kept, d)
			continue
		}
		r.Objects = append(r.Objects, d)
	}
	for d, h := range s.hydrations {
		r.Tables = append(r.Tables, d)
		for _, u := range h.units {
			r.Blobs = append(r.Blobs, u.blob.Digest)
		}
	}
	return r
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
	images, err := s.db.Expire(o.DryRun)
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
	if _, err := s.db.Expire(false); err != nil {
		return 0, err
	}
	n, bytes, err := s.collectObjects(func(int64) int64 { return want }, false)
	if n > 0 {
		s.log.Info("evicted to make room", "objects", n, "bytes", bytes)
	}
	return bytes, err
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
	gone, err := s.db.Evict(s.roots(), want, dryRun)
	if err != nil {
		return 0, 0, err
	}
	for _, o := range gone {
		bytes += o.Size
	}
	if dryRun {
		return len(gone), bytes, nil
	}
	for _, o := range gone {
		if err := s.root.Remove(objectPath(o.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, bytes, err
		}
		n++
	}
	return n, bytes, nil
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
