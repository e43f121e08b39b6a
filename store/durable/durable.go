// Package durable replaces small files atomically: a concurrent reader, or a reader after a crash,
// finds either the old content or the new. When a function returns, the new content is durable.
package durable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freshSuffix is the suffix of the name of a file that is being written. Others do not use it, so a file
// with this suffix is left by a crash, and is replaced by the next write.
const freshSuffix = ".ballast-new"

// Write replaces a file below dir. The directory of the file must exist. The file has the
// permissions mode, regardless of the umask. Two calls for one file must not overlap.
func Write(dir *os.Root, name string, p []byte, mode fs.FileMode) error {
	return copyTo(dir, name, bytes.NewReader(p), mode, -1, -1)
}

func copyTo(dir *os.Root, name string, r io.Reader, mode fs.FileMode, uid, gid int) error {
	fresh := name + freshSuffix
	if err := dir.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Chown(uid, gid), f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = dir.Rename(fresh, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(fresh))
	}
	return Sync(dir, filepath.Dir(name))
}

// WriteFile is Write for an absolute or relative path.
func WriteFile(path string, p []byte, mode fs.FileMode) error {
	return CopyFile(path, bytes.NewReader(p), mode, -1, -1)
}

// CopyFile is WriteFile for the content of a reader, and for an owner and a group; -1 is that of the process.
func CopyFile(path string, r io.Reader, mode fs.FileMode, uid, gid int) (err error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return copyTo(dir, filepath.Base(path), r, mode, uid, gid)
}

// Sweep removes what a crash has left of the writing of a file.
func Sweep(path string) error {
	_, err := os.Lstat(path + freshSuffix)
	if err == nil { // on a read-only file system, unlink(2) of a missing file fails otherwise
		err = os.Remove(path + freshSuffix)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Unfinished reports whether a name is that of a file whose writing has not ended.
func Unfinished(name string) bool { return strings.HasSuffix(name, freshSuffix) }

// Sync makes the names in a directory below dir durable.
func Sync(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Lock takes the flock(2) of a file or directory, which its closing releases. While another process has it, Lock waits
// until ctx ends, and returns the cause of that.
func Lock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Touch writes something to the disk of a directory, and returns when the disk has it: not while that hangs.
func Touch(dir string) error {
	f, err := os.OpenFile(dir, unix.O_TMPFILE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{0})
	return errors.Join(err, f.Sync(), f.Close())
}

// SyncfsTells reports whether syncfs(2) of this kernel returns the error of a write that failed since the descriptor
// was opened. Before Linux 5.8 it returns 0 then.
// https://man7.org/linux/man-pages/man2/syncfs.2.html
func SyncfsTells() bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && tells(unix.ByteSliceToString(u.Release[:]))
}

// tells is SyncfsTells for a release of Linux, such as "6.18.5-amd64".
func tells(release string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return n == 2 && (major > 5 || major == 5 && minor >= 8)
}
