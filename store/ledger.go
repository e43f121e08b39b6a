package store

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/dustin/go-humanize"
	"github.com/opencontainers/go-digest"
)

// A ledger records the space reserved by work that has not written it yet, in bytes.
type ledger struct {
	admitting sync.Mutex // held while a reservation is admitted
	fitting   sync.Mutex // held while Store.Fits evicts: what one evicts, others need not

	mu    sync.Mutex // guards the following
	open  map[reserved][]*reservation
	total int64 // sum of known
}

// reserved are the files of a table from a group of sources.
type reserved struct {
	table digest.Digest
	group string
}

// A reservation is the space that files still need: for a hydration, or for exposed files until their
// hydration takes it over.
type reservation struct {
	reserved
	early bool // of exposed files
	left  func() int64
	known int64 // left when it was last asked, which is not less than now; guarded by ledger.mu
}

// others returns the bytes reserved by others, at most, and whether a hydration of the same files has a
// reservation.
func (l *ledger) others(r *reservation) (n int64, hydrating bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = l.total
	for _, o := range l.open[r.reserved] {
		if o.early || r.early {
			n -= o.known
			hydrating = hydrating || !o.early
		}
	}
	return n, hydrating
}

// sum returns the bytes that all have reserved, at most.
func (l *ledger) sum() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// ask asks all reservations how much is left, and removes those of exposed files that are complete or no
// longer exposed. There can be many, so it is done only when something seems not to fit.
func (l *ledger) ask() {
	l.mu.Lock()
	var all []*reservation
	for _, list := range l.open {
		all = append(all, list...)
	}
	l.mu.Unlock()
	for _, r := range all {
		left := r.left()
		l.mu.Lock()
		if slices.Contains(l.open[r.reserved], r) {
			l.total += left - r.known
			r.known = left
		}
		l.mu.Unlock()
		if r.early && left == 0 {
			l.remove(r)
		}
	}
}

// add adds a reservation of n bytes. It replaces that of the same exposed files.
func (l *ledger) add(r *reservation, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(r.reserved, func(o *reservation) bool { return o.early })
	if l.open == nil {
		l.open = map[reserved][]*reservation{}
	}
	r.known = max(n, 0)
	l.total += r.known
	l.open[r.reserved] = append(l.open[r.reserved], r)
}

func (l *ledger) remove(r *reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(r.reserved, func(o *reservation) bool { return o == r })
}

// drop removes reservations of files. The caller holds mu.
func (l *ledger) drop(of reserved, which func(*reservation) bool) {
	rest := slices.DeleteFunc(l.open[of], func(o *reservation) bool {
		if !which(o) {
			return false
		}
		l.total -= o.known
		return true
	})
	if len(rest) == 0 {
		delete(l.open, of)
		return
	}
	l.open[of] = rest
}

// reserve admits r if need bytes fit on the disk and into the quota beside the other reservations.
// It evicts objects if needed.
func (s *Store) reserve(need int64, r *reservation) error {
	return s.fit(func() (int64, error) { return s.admit(need, r) })
}

// fit returns the error of check. While check says how many bytes are missing, it asks first how much of the
// reservations is left, and then evicts as many bytes.
func (s *Store) fit(check func() (want int64, err error)) error {
	want, err := check()
	if want > 0 {
		s.ledger.ask()
		want, err = check()
	}
	if want > 0 {
		if _, err := s.evict(want); err != nil {
			return err
		}
		_, err = check()
	}
	return err
}

// admit adds r if need bytes fit. Otherwise it returns how many bytes are missing, 0 if that is not known, and
// an error.
func (s *Store) admit(need int64, r *reservation) (want int64, err error) {
	s.ledger.admitting.Lock()
	defer s.ledger.admitting.Unlock()
	others, hydrating := s.ledger.others(r)
	if hydrating {
		return 0, nil
	}
	if need > 0 {
		u, err := s.Usage()
		if err != nil {
			return 0, err
		}
		if short := need + others + s.o.Reserve - u.Free; short > 0 {
			want, err = short, fmt.Errorf("the model needs %s more%s, and %s stay in reserve, but %s has %s free and no unused objects to remove; \"ballast df\" shows what takes space: %w",
				size(need), besides(others), size(s.o.Reserve), s.dir, size(u.Free), errdefs.ErrResourceExhausted)
		}
		if over := need + others + u.Unique + u.Partial - s.o.Evict.Quota; s.o.Evict.Quota > 0 && over > 0 {
			want, err = max(want, over), cmp.Or(err, fmt.Errorf("the model needs %s more%s; of the quota of %s, %s are in use, with no unused objects to remove; \"ballast df\" shows what takes space: %w",
				size(need), besides(others), size(s.o.Evict.Quota), size(u.Unique+u.Partial), errdefs.ErrResourceExhausted))
		}
		if err != nil {
			return want, err
		}
	}
	s.ledger.add(r, need)
	return 0, nil
}

// besides describes the bytes that others need.
func besides(others int64) string {
	if others == 0 {
		return ""
	}
	return ", other downloads " + size(others)
}

// Room returns errdefs.ErrResourceExhausted unless n more bytes leave the reserve free. It implements
// hydrate.Objects and chunkfile.Finder.
func (s *Store) Room(n int64) error {
	free, _, err := s.free()
	if err != nil {
		return err
	}
	if free-n < s.o.Reserve {
		return fmt.Errorf("%s do not fit: %s are free on %s, and %s stay in reserve: %w", size(n), size(free), s.dir, size(s.o.Reserve), errdefs.ErrResourceExhausted)
	}
	return nil
}

// Fits returns errdefs.ErrResourceExhausted if n more bytes, and what is reserved, exceed the quota, and what can be
// removed is not enough. It implements hydrate.Objects.
func (s *Store) Fits(n int64) error {
	if s.o.Evict.Quota == 0 {
		return nil
	}
	s.ledger.fitting.Lock()
	defer s.ledger.fitting.Unlock()
	return s.fit(func() (want int64, err error) {
		u, err := s.Usage()
		if err != nil {
			return 0, err
		}
		if over := u.Unique + u.Partial + s.ledger.sum() + n - s.o.Evict.Quota; over > 0 {
			return over, fmt.Errorf("%s are more than the quota of %s allows; \"ballast df\" shows what takes space: %w", size(over), size(s.o.Evict.Quota), errdefs.ErrResourceExhausted)
		}
		return 0, nil
	})
}

// size formats n bytes for messages.
func size(n int64) string { return humanize.Bytes(uint64(max(n, 0))) }
