package store

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// preflight makes sure that what is missing fits on the disk and into the quota, beside what
// others are fetching, evicting if need be.
func (s *Store) preflight(ctx context.Context, h *hydration, missing []int, assemblies []*assembly) error {
	var need int64
	for _, i := range missing {
		b := h.units[i].blob
		need += b.Size - s.staged(h.units[i].dir())
		if b.Codec != filetable.CodecNone {
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
