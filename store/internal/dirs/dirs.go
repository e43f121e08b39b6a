// Package dirs is os.Root with some directories that stay open. os.Root opens each directory of a path for each
// operation, which for a small file costs more than the file: 27 of 110 system calls, on the way from a range of
// bytes to an object, were such opens.
package dirs

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// A Root is an os.Root. Open, OpenFile, Rename, Remove, MkdirAll, Size and Sync are faster for paths whose directory
// stays open: there, the last element of a path must not be a symbolic link, and a directory must not be removed or
// replaced while the Root is open.
//
// Its methods are safe for concurrent use.
type Root struct {
	*os.Root
	keep func(dir string) bool
	most int // directories that stay open

	mu   sync.RWMutex // guards open
	open map[string]*os.File
}

// Open opens a directory. Those below it for which keep returns true stay open from their first use on until Close,
// but no more than a quarter of the files that the process may open.
func Open(name string, keep func(dir string) bool) (*Root, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	r := &Root{Root: root, keep: keep, open: map[string]*os.File{}, most: math.MaxInt}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		r.most = int(min(limit.Cur/4, math.MaxInt))
	}
	return r, nil
}

// Close closes the directories and the os.Root. Further calls do nothing.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, f := range r.open {
		errs = append(errs, f.Close())
	}
	clear(r.open)
	return errors.Join(append(errs, r.Root.Close())...)
}

// Keep opens a directory and keeps it open until done. If it is replaced meanwhile and kept again, paths lead to the
// latest one.
func (r *Root) Keep(name string) (dir *os.File, done func() error, err error) {
	dir, err = r.Root.Open(name)
	if err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open[name] = dir
	return dir, func() error {
		r.mu.Lock()
		if r.open[name] == dir {
			delete(r.open, name)
		}
		r.mu.Unlock()
		return dir.Close()
	}, nil
}

// dir returns a directory that stays open, or nil for another one.
func (r *Root) dir(name string) (*os.File, error) {
	r.mu.RLock()
	f := r.open[name]
	r.mu.RUnlock()
	if f != nil || !r.keep(name) {
		return f, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.open[name]; f != nil || len(r.open) >= r.most {
		return f, nil
	}
	f, err := r.Root.Open(name)
	if err == nil {
		r.open[name] = f
	}
	return f, err
}

// at calls do with the directory of a path, if it stays open, and the last element; otherwise it returns false.
func (r *Root) at(op, name string, do func(dir int, base string) error) (ok bool, err error) {
	dir, base := filepath.Split(filepath.Clean(name))
	if !filepath.IsLocal(name) || base == "." {
		return false, nil
	}
	f, err := r.dir(filepath.Clean(dir))
	if f == nil || err != nil {
		return err != nil, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return true, err
	}
	// It is not closed meanwhile; if it was closed just before, it is no longer kept.
	if conn.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = do(int(fd), base)
		}
	}) != nil {
		return false, nil
	}
	if err != nil {
		err = &fs.PathError{Op: op, Path: name, Err: err}
	}
	return true, err
}

// Open opens a file for reading.
func (r *Root) Open(name string) (*os.File, error) { return r.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile opens a file, as os.OpenFile.
func (r *Root) OpenFile(name string, flag int, mode fs.FileMode) (f *os.File, err error) {
	ok, err := r.at("open", name, func(dir int, base string) error {
		fd, err := unix.Openat(dir, base, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
		if err == nil {
			f = os.NewFile(uintptr(fd), name)
		}
		return err
	})
	if !ok {
		return r.Root.OpenFile(name, flag, mode)
	}
	return f, err
}

// Remove removes a file, or an empty directory.
func (r *Root) Remove(name string) error {
	ok, err := r.at("remove", name, func(dir int, base string) error {
		err := unix.Unlinkat(dir, base, 0)
		if errors.Is(err, unix.EISDIR) {
			err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
		}
		return err
	})
	if !ok {
		return r.Root.Remove(name)
	}
	return err
}

// Rename renames a file.
func (r *Root) Rename(from, to string) error {
	ok, err := r.at("rename", to, func(dir int, base string) error {
		done, err := r.at("rename", from, func(from int, old string) error { return unix.Renameat(from, old, dir, base) })
		if !done {
			err = r.Root.Rename(from, to)
		}
		return err
	})
	if !ok {
		return r.Root.Rename(from, to)
	}
	return err
}

// MkdirAll is os.Root.MkdirAll.
func (r *Root) MkdirAll(name string, mode fs.FileMode) error {
	r.mu.RLock()
	there := r.open[name] != nil
	r.mu.RUnlock()
	if there {
		return nil
	}
	return r.Root.MkdirAll(name, mode)
}

// Size returns the size of a regular file in bytes, and false for anything else.
func (r *Root) Size(name string) (size int64, regular bool, err error) {
	ok, err := r.at("stat", name, func(dir int, base string) error {
		var st unix.Stat_t
		err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
		size, regular = st.Size, err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
		return err
	})
	if !ok {
		info, err := r.Root.Lstat(name)
		if err != nil {
			return 0, false, err
		}
		return info.Size(), info.Mode().IsRegular(), nil
	}
	return size, regular, err
}

// Sync makes the names in a directory durable.
func (r *Root) Sync(name string) error {
	f, err := r.dir(name)
	if f == nil && err == nil {
		if f, err = r.Root.Open(name); err == nil {
			defer f.Close()
		}
	}
	if err != nil {
		return err
	}
	return f.Sync()
}
