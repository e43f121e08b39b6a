package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/store/durable"
	continuity "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Lock waits until no other set-up of a host runs, on the host itself or in a pod. The lock is on a
// directory, so that it leaves no file behind.
func Lock(ctx context.Context, root string) (release func() error, err error) {
	name, err := host{filepath.Clean(root)}.follow("/run")
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return dir.Close, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, dir.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another set-up runs: %w", ctx.Err()), dir.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// maxFile limits the size of a configuration file that is read, in bytes.
const maxFile = 8 << 20 // 8 MiB

// A host is the file system of a machine, seen from this process. Paths are those of the host; symbolic
// links stay inside of it.
type host struct {
	root string
}

// path returns the path of a file of the host in this process. The file need not exist.
func (h host) path(p string) (string, error) {
	dir, err := continuity.RootPath(h.root, filepath.Dir(p)) // the last part may be a link that is to be replaced
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", p, h.root, err)
	}
	return filepath.Join(dir, filepath.Base(p)), nil
}

// read returns the content and the permissions of a file. It follows symbolic links.
func (h host) read(p string) ([]byte, fs.FileMode, error) {
	name, err := h.follow(p)
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a file: %w", name, errdefs.ErrFailedPrecondition)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes: %w", name, maxFile, errdefs.ErrFailedPrecondition)
	}
	return b, info.Mode().Perm(), err
}

// follow returns the path of a file in this process, with all symbolic links followed.
func (h host) follow(p string) (string, error) {
	name, err := continuity.RootPath(h.root, p)
	if err != nil {
		return "", fmt.Errorf("%s of %s: %w", p, h.root, err)
	}
	return name, nil
}

// text returns the content of a file, or "" if it does not exist.
func (h host) text(p string) (string, error) {
	b, _, err := h.read(p)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// exists reports whether a path exists.
func (h host) exists(p string) bool {
	name, err := h.path(p)
	if err != nil {
		return false
	}
	_, err = os.Lstat(name)
	return err == nil
}

// isDir reports whether a path is a directory, after following symbolic links.
func (h host) isDir(p string) bool {
	name, err := h.follow(p)
	if err != nil {
		return false
	}
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

// list returns the names in a directory, none if it does not exist.
func (h host) list(p string) ([]string, error) {
	name, err := h.follow(p)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// missingDirs returns the missing directories above a path, the outermost first.
func (h host) missingDirs(p string) []string {
	var dirs []string
	for d := filepath.Dir(p); d != "/" && d != "." && !h.isDir(d); d = filepath.Dir(d) {
		dirs = append([]string{d}, dirs...)
	}
	return dirs
}

// mkdir makes a directory and those above it, durably.
func (h host) mkdir(p string, mode fs.FileMode) error {
	for _, d := range append(h.missingDirs(p), p) {
		if h.isDir(d) {
			continue
		}
		name, err := h.path(d)
		if err != nil {
			return err
		}
		m := fs.FileMode(0o755)
		if d == p {
			m = mode
		}
		if err := os.Mkdir(name, m); err != nil {
			return err
		}
		if err := errors.Join(os.Chmod(name, m), syncDir(filepath.Dir(name))); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a file, durably. A symbolic link to a file is kept, and that file is replaced.
func (h host) write(p string, b []byte, mode fs.FileMode) error {
	if err := h.mkdir(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	name, err := h.follow(p)
	if err != nil {
		return err
	}
	return durable.WriteFile(name, b, mode)
}

// copy replaces a program durably by one of this process's file system; a process that runs the old
// one keeps it.
func (h host) copy(from, p string, mode fs.FileMode) error {
	if err := h.mkdir(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	name, err := h.path(p)
	if err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return durable.CopyFile(name, src, mode)
}

// remove removes a file or an empty directory. It is not an error if it does not exist, or if the
// directory is not empty.
func (h host) remove(p string) error {
	name, err := h.path(p)
	if err != nil {
		return err
	}
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		if left, err := os.ReadDir(name); err != nil || len(left) > 0 {
			return err
		}
	}
	if err := os.Remove(name); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}

// chmod sets the permissions of a file or directory.
func (h host) chmod(p string, mode fs.FileMode) error {
	name, err := h.follow(p)
	if err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

// purge removes a path with everything below it. A mount there is an error.
func (h host) purge(p string) error {
	name, err := h.path(p)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(name); err != nil {
		return err
	}
	if dir := filepath.Dir(name); h.isDir(filepath.Dir(p)) {
		return syncDir(dir)
	}
	return nil
}

// rename renames within a directory, durably.
func (h host) rename(from, to string) error {
	a, err := h.path(from)
	if err != nil {
		return err
	}
	z, err := h.path(to)
	if err != nil {
		return err
	}
	if err := os.Rename(a, z); err != nil {
		return err
	}
	return syncDir(filepath.Dir(z))
}

func syncDir(name string) error {
	dir, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	return errors.Join(durable.Sync(dir, "."), dir.Close())
}
