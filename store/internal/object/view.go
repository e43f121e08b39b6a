package object

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
)

// ViewsDir has a directory for each view, below that of a store. Its files are hard links to
// objects.
const ViewsDir = "views"

// ViewPath returns the path of an object in a view, below the root of its store.
func ViewPath(view string, d digest.Digest) string { return filepath.Join(ViewsDir, view, Name(d)) }

// MakeView creates the directory of a view, if needed, and reports whether it existed.
func (s *Objects) MakeView(view string) (there bool, err error) {
	dir := filepath.Join(ViewsDir, view)
	if _, err := s.o.Root.Lstat(dir); err == nil {
		return true, nil
	}
	return false, s.o.Root.MkdirAll(dir, 0o700)
}

// Removals returns a number that increases whenever something is removed from views.
func (s *Objects) Removals() int64 { return s.removals.Load() }

// Granted reports whether an object is in a view.
func (s *Objects) Granted(view string, d digest.Digest) bool {
	there, err := s.o.Root.Lstat(ViewPath(view, d))
	if err != nil {
		return false
	}
	object, err := s.o.Root.Lstat(Path(d))
	return err == nil && os.SameFile(there, object)
}

// Grant adds an object to a view. It is not durable, so it is repeated before a mount. It returns
// an error that is fs.ErrNotExist if there is no such object.
func (s *Objects) Grant(view string, d digest.Digest) error {
	if s.Granted(view, d) {
		return nil
	}
	s.collecting.RLock() // a file that is set aside now is removed from all views
	defer s.collecting.RUnlock()
	to := ViewPath(view, d)
	if err := s.o.Root.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	name := s.temp()
	if err := s.o.Root.Link(Path(d), name); err != nil {
		return err
	}
	err := s.o.Root.Rename(name, to)
	// A rename to another name of the same file has no effect.
	if rerr := s.o.Root.Remove(name); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

// linked reports whether a file may have other names, such as those in views.
func (s *Objects) linked(path string) bool {
	info, err := s.o.Root.Lstat(path)
	return err != nil || info.Sys().(*syscall.Stat_t).Nlink > 1
}

// withhold removes files that are no longer objects from all views.
func (s *Objects) withhold(files ...digest.Digest) error {
	if len(files) == 0 {
		return nil
	}
	views, err := s.views()
	for _, view := range views {
		for _, d := range files {
			switch rerr := s.o.Root.Remove(ViewPath(view, d)); {
			case rerr == nil:
				s.removals.Add(1)
			case !errors.Is(rerr, fs.ErrNotExist):
				err = errors.Join(err, rerr)
			}
		}
	}
	return err
}

// views returns the names of the views, which are those of references, such as "snapshot/1".
func (s *Objects) views() (names []string, err error) {
	paths, err := fs.Glob(s.o.Root.FS(), filepath.Join(ViewsDir, "*", "*"))
	for _, p := range paths {
		name, _ := filepath.Rel(ViewsDir, p)
		names = append(names, name)
	}
	return names, err
}

// sweepViews removes the views without a reference.
func (s *Objects) sweepViews() error {
	views, err := s.views()
	if err != nil || len(views) == 0 {
		return err
	}
	referred := map[string]bool{}
	for _, r := range s.o.DB.Refs("") {
		referred[r.Name] = true
	}
	return s.RemoveViews(slices.DeleteFunc(views, func(view string) bool { return referred[view] })...)
}

// RemoveViews removes views, with all that is in them. It ignores names that no view has, such as those of pins.
func (s *Objects) RemoveViews(views ...string) error {
	for _, view := range views {
		if !fs.ValidPath(view) || strings.Count(view, "/") != 1 {
			continue
		}
		dir := filepath.Join(ViewsDir, view)
		if _, err := s.o.Root.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := s.o.Root.RemoveAll(dir)
		if s.removals.Add(1); err != nil {
			return err
		}
	}
	return nil
}
