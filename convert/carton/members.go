package carton

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// members are the files of a carton, in an archive or in a directory. The methods are safe for
// concurrent use.
type members interface {
	// lookup returns the member with a clean path, nil if there is none.
	lookup(path string) (*zipdir.Entry, error)

	// open returns the content of a file.
	open(ctx context.Context, e *zipdir.Entry) (io.ReadCloser, error)

	// section returns the bytes [off, off+n) of a file that is stored. The reader may end early.
	section(ctx context.Context, e *zipdir.Entry, off, n int64) (io.ReadCloser, error)

	// Private is that of Source.
	Private() bool

	Close() error
}

// An archive has the members of a zip archive.
type archive struct {
	Source
	byPath map[string]*zipdir.Entry
	data   sync.Map // *zipdir.Entry: int64, where the data of a stored member starts
}

// openArchive reads the directory of an archive, and returns its entries too.
func openArchive(ctx context.Context, src Source) (*archive, []zipdir.Entry, error) {
	entries, err := zipdir.Read(readerAt{ctx, src}, src.Size(), func(n int64) error { return convert.TakeMemory(ctx, n) })
	if err != nil {
		return nil, nil, err
	}
	a := &archive{Source: src, byPath: make(map[string]*zipdir.Entry, len(entries))}
	for i := range entries {
		a.byPath[entries[i].Name] = &entries[i]
	}
	return a, entries, nil
}

func (a *archive) lookup(path string) (*zipdir.Entry, error) { return a.byPath[path], nil }

// open reads the local header and the content with one request.
func (a *archive) open(ctx context.Context, e *zipdir.Entry) (io.ReadCloser, error) {
	body, err := a.Range(ctx, e.Start(), e.Span())
	if err != nil {
		return nil, fmt.Errorf("%q: %w", e.Name, err)
	}
	return zipdir.Open(ctx, body, e)
}

// section reads the local header of a member once.
func (a *archive) section(ctx context.Context, e *zipdir.Entry, off, n int64) (io.ReadCloser, error) {
	data, ok := a.data.Load(e)
	if !ok {
		head := make([]byte, e.HeaderSize())
		if _, err := (readerAt{ctx, a}).ReadAt(head, e.Start()); err != nil {
			return nil, fmt.Errorf("%q: local header: %w", e.Name, err)
		}
		length, err := e.Locate(head)
		if err != nil {
			return nil, err
		}
		data = e.Start() + length
		a.data.Store(e, data)
	}
	return a.Range(ctx, data.(int64)+off, n)
}

// A folder has the members of a directory with an unpacked carton.
type folder struct{ *os.Root }

// IsFolder reports whether dir is a directory with an unpacked carton.
func IsFolder(dir string) bool {
	for _, name := range []string{nameManifest, nameInfo} {
		if info, err := os.Stat(dir + "/" + name); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// OpenFolder opens the carton in a directory, by the rules of Open. Nothing outside of the directory
// is read, whatever links it contains. Files that are not in MANIFEST are left out; those in
// MANIFEST can be in LINKS only. It returns errdefs.ErrInvalidArgument for anything but regular
// files, symbolic links and directories.
func OpenFolder(ctx context.Context, dir string, o Options) (*Carton, error) {
	root, err := local.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	c, err := newCarton(ctx, folder{root}, o)
	if err != nil {
		return nil, fmt.Errorf("carton in directory %s: %w", dir, errors.Join(err, root.Close()))
	}
	return c, nil
}

// lookup does not follow symbolic links.
func (f folder) lookup(path string) (*zipdir.Entry, error) {
	info, err := f.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	e := &zipdir.Entry{Name: path, Method: zipdir.Stored, Packed: info.Size(), Size: info.Size()}
	switch info.Mode().Type() {
	case 0:
		e.Type = filetable.TypeReg
	case fs.ModeDir:
		e.Type = filetable.TypeDir
	case fs.ModeSymlink:
		e.Type = filetable.TypeSymlink
	default:
		return nil, invalid("%q: neither a file nor a symbolic link", path)
	}
	return e, nil
}

func (f folder) open(ctx context.Context, e *zipdir.Entry) (io.ReadCloser, error) {
	return f.section(ctx, e, 0, e.Size)
}

func (f folder) section(_ context.Context, e *zipdir.Entry, off, n int64) (io.ReadCloser, error) {
	if have, err := f.lookup(e.Name); err != nil || have == nil || *have != *e {
		return nil, fmt.Errorf("%q has changed: %w", e.Name, errors.Join(err, errdefs.ErrFailedPrecondition))
	}
	file, _, err := local.Open(f.Root, e.Name)
	if err != nil {
		return nil, err
	}
	return local.Section(file, off, n), nil
}

// Private returns false: the files are local.
func (f folder) Private() bool { return false }
