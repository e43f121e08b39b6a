package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// A ledger has what is reserved on the disk, in bytes, by work that has not written it yet.
type ledger struct {
	admitting sync.Mutex // held while one more is let in

	mu   sync.Mutex // guards open
	open map[*reservation]bool
}

// A reservation is the room that one hydration still needs.
type reservation struct{ left func() int64 }

// reserved returns the bytes that are still to be written.
func (l *ledger) reserved() (n int64) {
	l.mu.Lock()
	var all []*reservation
	for r := range l.open {
		all = append(all, r)
	}
	l.mu.Unlock()
	for _, r := range all {
		n += r.left()
	}
	return n
}

// add makes a reservation, until release.
func (l *ledger) add(left func() int64) (release func()) {
	r := &reservation{left}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = map[*reservation]bool{}
	}
	l.open[r] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, r)
	}
}

// Reserve implements hydrate.Objects.
func (h host) Reserve(ctx context.Context, need int64, left func() int64) (release func(), err error) {
	return h.reserve(ctx, need, left)
}

// reserve makes sure that need bytes fit on the disk and into the quota, beside what others have
// reserved, evicting if need be.
func (s *Store) reserve(ctx context.Context, need int64, left func() int64) (release func(), err error) {
	if need <= 0 {
		return func() {}, nil
	}
	s.ledger.admitting.Lock()
	defer s.ledger.admitting.Unlock()
	for evicted := false; ; evicted = true {
		u, err := s.Usage(ctx)
		if err != nil {
			return nil, err
		}
		others := s.ledger.reserved()
		short, over := need+others+s.o.Reserve-u.Free, int64(0)
		if s.o.Evict.Quota > 0 {
			over = need + others + u.Unique + u.Partial - s.o.Evict.Quota
		}
		switch {
		case short <= 0 && over <= 0:
			return s.ledger.add(left), nil
		case !evicted:
			if _, err := s.evict(ctx, max(short, over)); err != nil {
				return nil, err
			}
		case short > 0:
			return nil, fmt.Errorf("the model needs %d more bytes, other fetches %d, and %d stay in reserve, but %s has %d free and nothing more to evict: %w",
				need, others, s.o.Reserve, s.dir, u.Free, errdefs.ErrResourceExhausted)
		default:
			return nil, fmt.Errorf("the model needs %d more bytes, other fetches %d; of the quota of %d there are %d in use and nothing more to evict: %w",
				need, others, s.o.Evict.Quota, u.Unique+u.Partial, errdefs.ErrResourceExhausted)
		}
	}
}

// Room implements hydrate.Objects and chunkfile.Finder: n bytes more must leave what stays in reserve.
func (h host) Room(n int64) error {
	free, _, err := h.free()
	if err != nil {
		return err
	}
	if free-n < h.o.Reserve {
		return fmt.Errorf("%d bytes do not fit: %d are free on %s, and %d stay in reserve: %w", n, free, h.dir, h.o.Reserve, errdefs.ErrResourceExhausted)
	}
	return nil
}
