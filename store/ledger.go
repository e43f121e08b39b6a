package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/dustin/go-humanize"
	"github.com/opencontainers/go-digest"
)

// A ledger records the space reserved by work that has not written it yet, in bytes.
type ledger struct {
	admitting sync.Mutex // held while a reservation is admitted

	mu   sync.Mutex // guards open
	open map[*reservation]bool
}

// A reservation is the space that a table still needs from a group of sources: for a hydration, or
// for exposed files until their hydration takes it over.
type reservation struct {
	table digest.Digest
	group string
	early bool // of exposed files
	left  func() int64
}

// same reports whether two reservations are for the same files.
func (r *reservation) same(other *reservation) bool {
	return r.table == other.table && r.group == other.group
}

// others returns the bytes reserved by others, and whether a hydration of the same files has a
// reservation.
func (l *ledger) others(r *reservation) (n int64, hydrating bool) {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, o := range all {
		left := o.left()
		switch {
		case !r.same(o) || !o.early && !r.early:
			n += left
		case !o.early:
			hydrating = true
		}
		if o.early && left == 0 { // complete, or no longer exposed
			l.remove(o)
		}
	}
	return n, hydrating
}

// add adds a reservation. It replaces that of the same exposed files.
func (l *ledger) add(r *reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.open, func(o *reservation, _ bool) bool { return o.early && r.same(o) })
	if l.open == nil {
		l.open = map[*reservation]bool{}
	}
	l.open[r] = true
}

func (l *ledger) remove(r *reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, r)
}

// Reserve implements hydrate.Objects.
func (h host) Reserve(ctx context.Context, table digest.Digest, group string, need int64, left func() int64) (release func(), err error) {
	r := &reservation{table: table, group: group, left: left}
	return func() { h.ledger.remove(r) }, h.reserve(ctx, need, r)
}

// reserveExposed reserves space for the exposed files of a table from a group of sources, until
// they are complete, no longer exposed, or hydrated.
func (s *Store) reserveExposed(ctx context.Context, table digest.Digest, group string) error {
	left := func() (n int64) {
		files := map[digest.Digest]*exposure{}
		s.mu.Lock()
		for _, x := range s.exposures.of(table) {
			if x.tables[table] == group {
				files[x.digest] = x
			}
		}
		s.mu.Unlock()
		for _, x := range files {
			n += x.size
			if x.file != nil {
				n -= max(x.file.Present(), x.staged)
			}
		}
		return n
	}
	return s.reserve(ctx, left(), &reservation{table: table, group: group, early: true, left: left})
}

// reserve admits r if need bytes fit on the disk and into the quota beside the other reservations.
// It evicts objects if needed.
func (s *Store) reserve(ctx context.Context, need int64, r *reservation) error {
	want, short := s.admit(ctx, need, r)
	if short == nil || want == 0 {
		return short
	}
	if _, err := s.evict(ctx, want); err != nil {
		return err
	}
	_, short = s.admit(ctx, need, r)
	return short
}

// admit adds r if need bytes fit. Otherwise it returns how many bytes are missing, 0 if that is not known, and
// an error.
func (s *Store) admit(ctx context.Context, need int64, r *reservation) (want int64, err error) {
	s.ledger.admitting.Lock()
	defer s.ledger.admitting.Unlock()
	others, hydrating := s.ledger.others(r)
	if hydrating {
		return 0, nil
	}
	if need > 0 {
		u, err := s.Usage(ctx)
		if err != nil {
			return 0, err
		}
		if short := need + others + s.o.Reserve - u.Free; short > 0 {
			want, err = short, fmt.Errorf("the model needs %s more, other fetches %s, and %s stay in reserve, but %s has %s free and no unused objects to remove: %w",
				size(need), size(others), size(s.o.Reserve), s.dir, size(u.Free), errdefs.ErrResourceExhausted)
		}
		if over := need + others + u.Unique + u.Partial - s.o.Evict.Quota; s.o.Evict.Quota > 0 && over > 0 {
			want, err = max(want, over), cmp.Or(err, fmt.Errorf("the model needs %s more, other fetches %s; of the quota of %s, %s are in use, with no unused objects to remove: %w",
				size(need), size(others), size(s.o.Evict.Quota), size(u.Unique+u.Partial), errdefs.ErrResourceExhausted))
		}
		if err != nil {
			return want, err
		}
	}
	s.ledger.add(r)
	return 0, nil
}

// Room implements hydrate.Objects and chunkfile.Finder: n more bytes must leave the reserve free.
func (h host) Room(n int64) error {
	free, _, err := h.free()
	if err != nil {
		return err
	}
	if free-n < h.o.Reserve {
		return fmt.Errorf("%s do not fit: %s are free on %s, and %s stay in reserve: %w", size(n), size(free), h.dir, size(h.o.Reserve), errdefs.ErrResourceExhausted)
	}
	return nil
}

// size formats n bytes for messages.
func size(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }
