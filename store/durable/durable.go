// Package durable replaces small files: who reads one, or finds it after a crash, finds the old content or
// the new one, and after a return the new one.
package durable

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// freshSuffix is at the end of the name of a file that is being written. What a crash left under such a name is
// replaced by the next who writes the file.
const freshSuffix = ".new"

// Write replaces a file below dir, whose directory is there. The file has the permissions of mode, whatever
// the umask is.
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

// WriteFile is Write for a path.
func WriteFile(path string, p []byte, mode fs.FileMode) error {
	return CopyFile(path, bytes.NewReader(p), mode)
}

// CopyFile is WriteFile for what a reader has.
func CopyFile(path string, r io.Reader, mode fs.FileMode) (err error) {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return copyTo(dir, filepath.Base(path), r, mode)
}

// Sync makes durable which names a directory below dir has.
func Sync(dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
