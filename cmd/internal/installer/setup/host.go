package setup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/installer/node"
	"github.com/ballast-dev/ballast/store/durable"
	"golang.org/x/sys/unix"
)

// lockDir is locked by a set-up that runs. Only root can open it: what others can open, they can lock too.
const lockDir = "/run/ballast-setup"

// Lock waits until no other set-up of a host runs, on the host itself or in a pod; after a second it calls waits. The
// lock is on a directory, which release removes.
func Lock(ctx context.Context, root string, waits func()) (release func() error, err error) {
	name, err := hostAt(root).Path(lockDir)
	if err != nil {
		return nil, err
	}
	for {
		if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		dir, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another set-up has just ended
		}
		if err != nil {
			return nil, err
		}
		if err := lock(ctx, dir, waits); err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		locked, err := dir.Stat()
		if err != nil {
			return nil, errors.Join(err, dir.Close())
		}
		if now, err := os.Stat(name); err == nil && os.SameFile(locked, now) {
			return func() error { return errors.Join(os.Remove(name), dir.Close()) }, nil
		}
		if err := dir.Close(); err != nil { // it was removed, and can be there anew
			return nil, err
		}
	}
}

// lock waits for the lock of a directory, and calls waits after a second.
func lock(ctx context.Context, dir *os.File, waits func()) error {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := durable.Lock(soon, dir)
	if err != nil && soon.Err() != nil && ctx.Err() == nil {
		waits()
		err = durable.Lock(ctx, dir)
	}
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("another set-up runs: %w", ctx.Err())
	}
	return err
}

// A host is the file system of a machine that is changed.
type host struct{ node.Host }

// hostAt returns the host with a root directory in this process.
func hostAt(root string) host { return host{node.Host{Root: filepath.Clean("/" + root)}} }

// missingDirs returns the missing directories above a path, the outermost first.
func (h host) missingDirs(p string) []string {
	var dirs []string
	for d := filepath.Dir(p); d != "/" && d != "." && !h.IsDir(d); d = filepath.Dir(d) {
		dirs = append([]string{d}, dirs...)
	}
	return dirs
}

// mkdir makes a directory and those above it, durably.
func (h host) mkdir(p string, mode fs.FileMode) error {
	for _, d := range append(h.missingDirs(p), p) {
		if h.IsDir(d) {
			continue
		}
		name, err := h.Path(d)
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

// sweep removes what a crash has left of the writing of a file.
func (h host) sweep(p string) error {
	name, err := h.Follow(p)
	if err != nil {
		return nil // no file can be there
	}
	if err := durable.Sweep(name); err != nil && !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	return nil
}

// ownerOf returns the owner and the group of a file of this process's file system, or -1 if it does not exist.
func ownerOf(name string) (uid, gid int, err error) {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, -1, nil
	}
	if err != nil {
		return 0, 0, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return int(stat.Uid), int(stat.Gid), nil
}

// write replaces a file, durably; it keeps its owner. A symbolic link to a file is kept, and that file is replaced.
func (h host) write(p string, b []byte, mode fs.FileMode) error {
	if err := h.mkdir(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	name, err := h.Follow(p)
	if err != nil {
		return err
	}
	uid, gid, err := ownerOf(name)
	if err != nil {
		return err
	}
	return durable.CopyFile(name, bytes.NewReader(b), mode, uid, gid)
}

// copy replaces a program durably by a file of this process's file system; a process that runs the old one keeps it.
func (h host) copy(from, p string, mode fs.FileMode) error {
	if err := h.mkdir(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	name, err := h.Path(p)
	if err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	return durable.CopyFile(name, src, mode, -1, -1)
}

// remove removes a file or an empty directory. It is not an error if it does not exist, or if the
// directory is not empty. A symbolic link to it is kept, as by write.
func (h host) remove(p string) error {
	name, err := h.Follow(p)
	if err != nil {
		return err
	}
	return remove(name)
}

// unlink is remove for a symbolic link itself.
func (h host) unlink(p string) error {
	name, err := h.Path(p)
	if err != nil {
		return err
	}
	return remove(name)
}

// remove removes a file, link or empty directory of this process's file system.
func remove(name string) error {
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
	name, err := h.Follow(p)
	if err != nil {
		return err
	}
	return os.Chmod(name, mode)
}

func syncDir(name string) error {
	dir, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	return errors.Join(durable.Sync(dir, "."), dir.Close())
}
