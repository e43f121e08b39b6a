package carton

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sort"

	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// IsFolder reports whether dir is a directory with an unpacked carton.
func IsFolder(dir string) bool {
	for _, name := range []string{nameManifest, nameInfo} {
		if info, err := os.Stat(dir + "/" + name); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// A Folder is a directory with an unpacked carton. It is read as an archive that has the files of
// MANIFEST unchanged, without headers, so all rules for archives apply to it, and the model is the
// same.
type Folder struct {
	root *os.Root
	dir  *zipdir.Directory
	all  []section
	size int64
}

// A section is a range of the archive: bytes, or a file.
type section struct {
	off, size int64
	data      []byte
	file      string
}

// OpenFolder opens a directory. Nothing outside of it is read, whatever links it contains. Files
// that are not in MANIFEST are left out; those in MANIFEST can be in LINKS only. It returns
// errdefs.ErrInvalidArgument for anything but regular files and symbolic links.
func OpenFolder(dir string) (*Folder, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	f := &Folder{root: root}
	if err := f.lay(); err != nil {
		return nil, fmt.Errorf("carton in directory %s: %w", dir, errors.Join(err, root.Close()))
	}
	return f, nil
}

// lay assembles the archive.
func (f *Folder) lay() error {
	text, err := f.readSmall(nameManifest, MaxManifestSize)
	if err != nil {
		return err
	}
	entries, err := ParseManifest(text)
	if err != nil {
		return err
	}
	names := []string{nameManifest, nameLinks}
	for _, e := range entries {
		names = append(names, e.Path)
	}
	var members []zipdir.Entry
	for _, name := range names {
		info, err := f.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) && name != nameManifest {
			continue // it is only in LINKS, or Open reports it as missing
		}
		if err != nil {
			return err
		}
		e := zipdir.Entry{Name: name, Type: filetable.TypeReg, Size: info.Size()}
		s := section{off: f.size, file: name}
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := f.root.Readlink(name)
			if err != nil {
				return err
			}
			e.Type, e.Size, s.data = filetable.TypeSymlink, int64(len(target)), []byte(target)
		case !info.Mode().IsRegular():
			return invalid("%q: neither a file nor a symbolic link", name)
		}
		s.size = e.Size
		f.size += e.Size
		f.all, members = append(f.all, s), append(members, e)
	}
	f.dir, err = zipdir.Bare(members)
	return err
}

// readSmall reads a file of at most limit bytes.
func (f *Folder) readSmall(name string, limit int64) ([]byte, error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(p)) > limit {
		err = invalid("%q has more than %d bytes", name, limit)
	}
	return p, err
}

// open opens a regular file.
func (f *Folder) open(name string) (*os.File, error) {
	info, err := f.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would block
		return nil, invalid("%q is not a regular file", name)
	}
	return f.root.Open(name)
}

// Size returns the size of the archive.
func (f *Folder) Size() int64 { return f.size }

// Private returns false: the files are local.
func (f *Folder) Private() bool { return false }

// Close closes the directory.
func (f *Folder) Close() error { return f.root.Close() }

// Range returns a range of the archive.
func (f *Folder) Range(_ context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off > f.size || n > f.size-off {
		return nil, invalid("%d bytes at %d of %d", n, off, f.size)
	}
	return &folderRange{f: f, off: off, end: off + n}, nil
}

// A folderRange reads a range of a Folder.
type folderRange struct {
	f        *Folder
	off, end int64
	file     *os.File // of the section at off
	name     string
}

// Read reads the next bytes of one section.
func (r *folderRange) Read(p []byte) (int, error) {
	if r.off == r.end {
		return 0, io.EOF
	}
	all := r.f.all
	s := all[sort.Search(len(all), func(i int) bool { return all[i].off+all[i].size > r.off })]
	at := r.off - s.off
	p = p[:min(int64(len(p)), s.size-at, r.end-r.off)]
	if s.data != nil {
		n := copy(p, s.data[at:])
		r.off += int64(n)
		return n, nil
	}
	if r.name != s.file {
		if err := r.Close(); err != nil {
			return 0, err
		}
		file, err := r.f.open(s.file)
		if err != nil {
			return 0, err
		}
		r.file, r.name = file, s.file
	}
	n, err := r.file.ReadAt(p, at)
	r.off += int64(n)
	if err == io.EOF && n < len(p) {
		return n, fmt.Errorf("%q is shorter than it was: %w: %w", s.file, io.ErrUnexpectedEOF, errdefs.ErrFailedPrecondition)
	}
	if n > 0 {
		err = nil
	}
	return n, err
}

// Close closes the open file.
func (r *folderRange) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file, r.name = nil, ""
	return err
}
