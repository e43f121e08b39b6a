package dirs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Emptied is what Empty left.
type Emptied struct {
	Left []string // names in the directory that are not ballast's, or that still have files of others
	Kept string   // why the directory itself stays; "" if it was removed or did not exist
}

// Names returns the names in a directory: those that Empty would remove, and those that it would
// leave, without looking into them.
func (d Dir) Names(host string) (own, left []string, err error) {
	here, there, err := d.resolve(host)
	if err != nil {
		return nil, nil, err
	}
	entries, err := os.ReadDir(here)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	mine := !config.Shared(there) && (d.sockets != nil || d.used(here))
	for _, e := range entries {
		k := d.kind(e.Name())
		switch {
		case e.Name() == lostAndFound:
		case mine && (k == tree || k == socket && e.Type() == fs.ModeSocket || (k == mountPoint || k == mountPoints || k == roleDir) && e.IsDir()):
			own = append(own, e.Name())
		default:
			left = append(left, e.Name())
		}
	}
	return own, left, nil
}

// Empty removes from a directory of a daemon that does not run what is ballast's, and then the
// directory if it is empty. Symbolic links are not followed, except to the directory. A directory
// stays if a file system is mounted there, or if its name is a symbolic link, as both are the
// operator's. All of it stays if ballast has never used it.
//
// Empty returns errdefs.ErrFailedPrecondition, and removes nothing, if something is mounted below
// the directory.
func (d Dir) Empty(host string) (e Emptied, err error) {
	here, _, err := d.resolve(host)
	if err != nil {
		return e, err
	}
	root, err := os.OpenRoot(here)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err != nil {
		return e, err
	}
	defer root.Close()
	mounted, err := d.mounted(host)
	if err != nil {
		return e, err
	}
	if len(mounted) > 0 {
		return e, fmt.Errorf("%s is mounted, and nothing in %s was removed; unmount it first: %w", mounted[0], here, errdefs.ErrFailedPrecondition)
	}
	own, left, err := d.Names(host)
	if err != nil {
		return e, err
	}
	e.Left = left
	slices.SortStableFunc(own, func(a, z string) int { // after a crash, the rest must still be ballast's
		switch {
		case store.Marks(a) && !store.Marks(z):
			return 1
		case store.Marks(z) && !store.Marks(a):
			return -1
		}
		return strings.Compare(a, z) // the database last
	})
	for _, name := range own {
		gone, err := d.remove(root, name)
		if err != nil {
			return e, err
		}
		if !gone {
			e.Left = append(e.Left, name)
		}
	}
	e.Kept, err = d.rmdir(host, here)
	return e, err
}

// mounted returns the mount points below the directory, as paths in this process. The directory
// itself is not one of them.
func (d Dir) mounted(host string) (at []string, err error) {
	here, _, err := d.resolve(host)
	if err != nil {
		return nil, err
	}
	below, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(here, "/")+"/"), false
	})
	for _, m := range below {
		at = append(at, m.Mountpoint)
	}
	return at, err
}

// remove removes a name, and reports whether it is gone.
func (d *Dir) remove(root *os.Root, name string) (gone bool, err error) {
	switch d.kind(name) {
	case tree:
		return true, root.RemoveAll(name)
	case mountPoints:
		entries, err := fs.ReadDir(root.FS(), name)
		if err != nil {
			return false, err
		}
		for _, e := range entries {
			if digestName.MatchString(e.Name()) && e.IsDir() {
				if err := unlessUsed(root.Remove(filepath.Join(name, e.Name()))); err != nil {
					return false, err
				}
			}
		}
	}
	if d.kind(name) == roleDir {
		for _, s := range []string{roleSocket(name), roleSocket(name) + freshSuffix} {
			at := filepath.Join(name, s)
			if info, err := root.Lstat(at); err != nil || info.Mode().Type() != fs.ModeSocket {
				continue
			}
			if err := unlessUsed(root.Remove(at)); err != nil {
				return false, err
			}
		}
	}
	err = root.Remove(name)
	return err == nil || errors.Is(err, fs.ErrNotExist), unlessUsed(err)
}

// unlessUsed returns nil if err says that a directory is not empty, or that there is none.
func unlessUsed(err error) error {
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rmdir removes the directory if it is empty, and returns why it stays.
func (d *Dir) rmdir(host, here string) (kept string, err error) {
	parent := Dir{Path: filepath.Dir(d.Path)}
	above, _, err := parent.resolve(host)
	if err != nil {
		return "", err
	}
	if filepath.Join(above, filepath.Base(d.Path)) != here {
		return "it is a symbolic link to " + here, nil
	}
	switch err := unix.Rmdir(here); {
	case errors.Is(err, unix.EBUSY):
		return "a file system is mounted there", nil
	case errors.Is(err, unix.ENOTEMPTY):
		return "it is not empty", nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", &fs.PathError{Op: "rmdir", Path: here, Err: err}
	}
	return "", nil
}
