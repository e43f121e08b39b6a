package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
)

// Open opens a regular file below a directory, and returns what its descriptor is. It returns
// errdefs.ErrInvalidArgument for anything else. Links in the directory are followed.
func Open(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	return regular(f, name, err)
}

// OpenFile is Open for a path that the user gave: links are followed wherever they lead.
func OpenFile(name string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	return regular(f, name, err)
}

func regular(f *os.File, name string, err error) (*os.File, fs.FileInfo, error) {
	if errors.Is(err, syscall.ENXIO) { // a socket, or a device without a driver
		return nil, nil, notRegular(name)
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(name)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

func notRegular(name string) error {
	return fmt.Errorf("%q is not a regular file: %w", name, errdefs.ErrInvalidArgument)
}

// OpenRoot opens a directory that the user gave.
func OpenRoot(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir + "/.") // the kernel opens nothing else by this name
	if wrong, ok := errors.AsType[*fs.PathError](err); ok {
		wrong.Path = dir
	}
	return root, err
}

// ReadDir returns the entries of a directory below another one, by name. It returns
// errdefs.ErrFailedPrecondition if a link was put into its place.
func ReadDir(root *os.Root, name string) ([]fs.DirEntry, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	opened, err := f.Stat()
	if err == nil && !os.SameFile(info, opened) {
		err = Changed(name)
	}
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// Same reports whether two results of Open are of one file that was not written in between, as far
// as its size and time tell.
func Same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// Changed returns the error for a file that changed while it was used. It is permanent:
// errdefs.ErrFailedPrecondition.
func Changed(name string) error {
	return fmt.Errorf("%q changes while it is read: %w", name, errdefs.ErrFailedPrecondition)
}

// Section returns a range of a file, and closes the file with it.
func Section(f *os.File, off, n int64) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(f, off, n), f}
}
