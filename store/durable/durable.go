// Package durable replaces small files atomically: a concurrent reader, or a reader after a crash,
// finds either the old content or the new. When a function returns, the new content is durable.
package durable

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// freshSuffix is the suffix of the name of a file that is being written. A file with this suffix
// that is left by a crash is replaced by the next write.
const freshSuffix = ".new"

// Write replaces a file below dir. The directory of the file must exist. The file has the
// permissions mode, regardless of the umask.
func Write(dir *os.Root, name string, p []byte, mode fs.FileMode) error {
	return copyTo(dir, name, bytes.NewReader(p), mode)
}

func copyTo(dir *os.Root, name string, r io.Reader, mode fs.FileMode) error {
	fresh := name + freshSuffix
	if err := dir.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = dir.Rename(fresh, name)
	}
	if err != nil {
		return errors.Join(err, dir.Remove(fresh))
	}
	return Sync(dir, filepath.Dir(name))
}

// WriteFile is Write for an absolute or relative path.
func WriteFile(path string, p []byte, mode fs.FileMode) error {
	return CopyFile(path, bytes.NewReader(p), mode)
}

// CopyFile is WriteFile for the content of a reader.
func CopyFile(path string, r io.Reader, mode fs.FileMode) (err error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return copyTo(dir, filepath.Base(path), r, mode)
}

// Sync makes the names in a directory below dir durable.
func Sync(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
