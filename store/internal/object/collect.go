package object

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/opencontainers/go-digest"
)

// A Root defines what must stay. It is called while nothing is published.
type Root interface {
	// Live returns what is being fetched.
	Live() meta.Roots
}

// CollectOptions configure Collect.
type CollectOptions struct {
	// Want returns how many bytes of unneeded objects to remove, given their total.
	Want func(total int64) int64

	// Room means that space is needed now: damaged files are removed even if they are needed.
	Room bool

	// DryRun counts without removing.
	DryRun bool
}

// Collected reports what was, or would be, removed.
type Collected struct {
	meta.Expired
	Objects int
	Bytes   int64 // of objects

	Gone []digest.Digest // the objects
}

// Collect removes what is not needed. While the needs of a reference are unknown, it removes only
// what has expired and returns errdefs.ErrFailedPrecondition.
func (s *Objects) Collect(root Root, o CollectOptions) (c Collected, err error) {
	if c.Expired, err = s.o.DB.Expire(o.DryRun); err != nil {
		return c, err
	}
	s.collecting.Lock()
	defer s.collecting.Unlock()
	gone, needed, err := s.o.DB.Evict(s.roots(root.Live()), o.Want, o.DryRun)
	if err != nil {
		return c, err
	}
	unrecorded := s.Unrecorded()
	if !o.DryRun {
		s.unrecord(gone...) // until they are removed
	}
	for _, f := range unrecorded {
		if !needed(f.Digest) {
			gone = append(gone, f)
		}
	}
	for _, g := range gone {
		c.Bytes += g.Size
		c.Objects++
		c.Gone = append(c.Gone, g.Digest)
	}
	if !o.DryRun {
		// Views first: their links keep the space of objects.
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
	return c, nil
}

// ForgetImages removes images, and those of their documents and of more objects that nothing else needs.
func (s *Objects) ForgetImages(root Root, images []meta.Image, more ...digest.Digest) error {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	gone, err := s.o.DB.ForgetImages(s.roots(root.Live()), images, more...)
	if err != nil {
		return err
	}
	s.unrecord(gone...)
	return s.remove(gone)
}

// RemoveImages is ForgetImages with the files of the images that no other image has. It returns what was removed.
func (s *Objects) RemoveImages(root Root, images []meta.Image) (gone []meta.Sized, err error) {
	s.collecting.Lock()
	defer s.collecting.Unlock()
	only := s.o.DB.Only(images)
	s.Unprotect(only...) // also if they just arrived
	if gone, err = s.o.DB.ForgetImages(s.roots(root.Live()), images, only...); err != nil {
		return nil, err
	}
	s.unrecord(gone...)
	if err := s.sweepViews(); err != nil { // their links keep the space of objects
		return nil, err
	}
	return gone, s.remove(gone)
}

// roots adds the objects that are kept for a short time. It is called before the transaction that
// uses the result: an object that stops being a root in between is recorded as needed by then.
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

// Usage returns the disk usage of the recorded objects.
func (s *Objects) Usage(root Root) (meta.Usage, error) { return s.o.DB.Usage(s.roots(root.Live())) }

// remove removes unrecorded files. A crash leaves some, which are hashed later.
func (s *Objects) remove(gone []meta.Sized) error {
	var shown []digest.Digest
	for _, g := range gone {
		if s.linked(Path(g.Digest)) {
			shown = append(shown, g.Digest)
		}
		if err := s.o.Root.Remove(Path(g.Digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, s.withhold(shown...))
		}
		s.mu.Lock()
		delete(s.unrecorded, g.Digest)
		s.mu.Unlock()
	}
	return s.withhold(shown...)
}

// collectDamaged removes the files set aside that are not needed, or all of them.
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

// sweepTemp removes temporary files that a crash left.
func (s *Objects) sweepTemp() error {
	entries, err := fs.ReadDir(s.o.Root.FS(), s.o.Temp)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), staging.TempPrefix) {
			if err := s.o.Root.Remove(filepath.Join(s.o.Temp, e.Name())); err != nil {
				return fmt.Errorf("remove left-over %s: %w", e.Name(), err)
			}
		}
	}
	return nil
}
