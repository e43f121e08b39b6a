package export

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// tarEnd is the end of a tar: two blocks of zeros.
const tarEnd = 2 * tarBlock

const tarBlock = 512

// A tarball is a tar that is generated while it is read. Its bytes depend only on its files.
type tarball struct {
	files   []file
	headers [][]byte
	size    int64 // of all
}

// newTarball returns the tar of files, in their order, without their parent directories.
func newTarball(files []file) (*tarball, error) {
	t := &tarball{files: files, size: tarEnd}
	for _, f := range files {
		h := &tar.Header{Name: f.Path, Mode: int64(f.Mode), Uid: int(f.UID), Gid: int(f.GID), ModTime: f.ModTime.UTC().Truncate(time.Second), Format: tar.FormatPAX}
		if f.ModTime.IsZero() {
			h.ModTime = time.Unix(0, 0)
		}
		switch f.Type {
		case filetable.TypeDir:
			h.Typeflag, h.Name = tar.TypeDir, f.Path+"/"
		case filetable.TypeSymlink:
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Target, 0o777
		default:
			h.Typeflag, h.Size = tar.TypeReg, f.Size
		}
		var b bytes.Buffer
		if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
			return nil, fmt.Errorf("file %q: %w", f.Path, err)
		}
		t.headers = append(t.headers, b.Bytes())
		t.size += int64(b.Len()) + f.Size + padding(f.Size)
	}
	return t, nil
}

// item returns the item of the tar.
func (t *tarball) item(name, mediaType string) *item {
	return &item{name: name, desc: ocispec.Descriptor{MediaType: mediaType, Size: t.size}, open: contentOf(t.open)}
}

// spans returns where the content of each file is.
func (t *tarball) spans() (list []span) {
	var off int64
	for i, f := range t.files {
		off += int64(len(t.headers[i]))
		list = append(list, span{off, f.Size})
		off += f.Size + padding(f.Size)
	}
	return list
}

// padding returns the number of bytes that fill the last block of a file.
func padding(size int64) int64 { return (tarBlock - size%tarBlock) % tarBlock }

// open returns the bytes of the tar, which are written by a goroutine until Close.
func (t *tarball) open(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	r, w := io.Pipe()
	var done sync.WaitGroup
	done.Go(func() { w.CloseWithError(t.write(ctx, w)) })
	return reading(r, closer(func() error {
		cancel()
		defer done.Wait()
		return r.Close()
	})), nil
}

// A closer is a function as an io.Closer.
type closer func() error

// Close calls the function.
func (c closer) Close() error { return c() }

// write writes the tar. Files are opened one after the other.
func (t *tarball) write(ctx context.Context, w io.Writer) error {
	for i, f := range t.files {
		if _, err := w.Write(t.headers[i]); err != nil {
			return err
		}
		if f.Type != filetable.TypeReg || f.Size == 0 {
			continue
		}
		if err := f.copy(ctx, w); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, padding(f.Size))); err != nil {
			return err
		}
	}
	_, err := w.Write(make([]byte, tarEnd))
	return err
}

// withParents returns files with their parent directories, each before its content. Directories
// that are not in dirs have dirMode.
func withParents(files []file, dirs map[string]file) []file {
	have := map[string]bool{}
	var out []file
	for _, f := range files {
		var above []string
		for dir := path.Dir(f.Path); dir != "." && !have[dir]; dir = path.Dir(dir) {
			above = append(above, dir)
			have[dir] = true
		}
		for _, dir := range slices.Backward(above) {
			d, ok := dirs[dir]
			if !ok {
				d = file{File: filetable.File{Path: dir, Type: filetable.TypeDir, Mode: dirMode}}
			}
			out = append(out, d)
		}
		if f.Type == filetable.TypeDir && have[f.Path] {
			continue
		}
		have[f.Path] = true
		out = append(out, f)
	}
	return out
}

// dirMode is the mode of a directory that the source does not list.
const dirMode = 0o755
