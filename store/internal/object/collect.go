package object

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/opencontainers/go-digest"
)

// A Root says what must stay. It is asked while nothing is published.
type Root interface {
	// Live returns what is being brought.
	Live() meta.Roots

	// Sweep removes, or counts if dry, staged work that nobody goes on with.
	Sweep(dry bool) (int, error)
}

// CollectOptions say what to collect.
type CollectOptions struct {
	// Want says how many bytes of objects that nothing needs should go, of their total.
	Want func(total int64) int64

	// Staged also removes staged work that nobody goes on with.
	Staged bool

	// Room says that room is needed at once: damaged files go even if something needs them.
	Room bool

	// DryRun only counts.
	DryRun bool
}

// Collected says what was, or would be, removed.
type Collected struct {
	meta.Expired
	Objects, Partials int
	Bytes             int64 // of objects
}

// Collect removes what nothing needs. It returns errdefs.ErrFailedPrecondition, having removed nothing
// but what has expired, while it is not known what a reference needs.
func (s *Objects) Collect(root Root, o CollectOptions) (c Collected, err error) {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	if c.Expired, err = s.o.DB.Expire(o.DryRun); err != nil {
		return c, err
	}
	gone, needed, err := s.o.DB.Evict(s.roots(root.Live()), o.Want, o.DryRun)
	if err != nil {
		return c, err
	}
	for _, f := range s.Doubted() {
		if !needed(f.Digest) {
			gone = append(gone, f)
		}
	}
	for _, g := range gone {
		c.Bytes += g.Size
		c.Objects++
	}
	if !o.DryRun {
		// First: what has a name in a view takes its room still.
		if err := s.sweepViews(); err != nil {
			return c, err
		}
		if err := s.remove(gone); err != nil {
			return c, err
		}
		if err := s.collectDamaged(needed, o.Room); err != nil {
			return c, err
		}
	}
	if o.Staged {
		c.Partials, err = root.Sweep(o.DryRun)
	}
	return c, err
}

// ForgetImages forgets images and removes what nothing else needs of their documents.
func (s *Objects) ForgetImages(root Root, images []meta.Image) error {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	gone, err := s.o.DB.ForgetImages(s.roots(root.Live()), images)
	if err != nil {
		return err
	}
	return s.remove(gone)
}

// roots adds what is kept for a moment. It is taken before the transaction that uses it: what
// stops being a root meanwhile is recorded as needed by then.
func (s *Objects) roots(r meta.Roots) meta.Roots {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, at := range s.grace {
		if len(r.Tables) == 0 && time.Since(at) > graceTime {
			delete(s.grace, d)
			continue
		}
		r.Objects = append(r.Objects, d)
	}
	return r
}

// Usage adds up what is recorded.
func (s *Objects) Usage(root Root) (meta.Usage, error) { return s.o.DB.Usage(s.roots(root.Live())) }

// remove removes files of objects that are not recorded. A crash leaves some, which are doubted then.
func (s *Objects) remove(gone []meta.Sized) error {
	var digests []digest.Digest
	for _, g := range gone {
		if err := s.o.Root.Remove(Path(g.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.mu.Lock()
		delete(s.doubted, g.Digest)
		s.mu.Unlock()
		digests = append(digests, g.Digest)
	}
	return s.withhold(digests...)
}

// collectDamaged removes files that were set aside and that nothing needs, or all.
func (s *Objects) collectDamaged(needed func(digest.Digest) bool, all bool) error {
	aside, err := s.Damaged()
	if err != nil {
		return err
	}
	for _, f := range aside {
		if needed(f.Digest) && !all {
			continue
		}
		if err := s.o.Root.Remove(damagedPath(f.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sweepTemp removes what a crash left of files that were to become objects.
func (s *Objects) sweepTemp() error {
	entries, err := fs.ReadDir(s.o.Root.FS(), s.o.Temp)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tempPrefix) {
			if err := s.o.Root.Remove(filepath.Join(s.o.Temp, e.Name())); err != nil {
				return fmt.Errorf("remove left-over %s: %w", e.Name(), err)
			}
		}
	}
	return nil
}
