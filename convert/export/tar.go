package export

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
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
		h := &tar.Header{Name: f.Path, Mode: int64(f.Mode), ModTime: f.ModTime.UTC().Truncate(time.Second), Format: tar.FormatPAX}
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

// padding returns the number of bytes that fill the last block of a file.
func padding(size int64) int64 { return (tarBlock - size%tarBlock) % tarBlock }

// open returns the bytes of the tar.
func (t *tarball) open(ctx context.Context) (io.ReadCloser, error) {
	return &tarReader{ctx: ctx, t: t}, nil
}

// A tarReader reads a tarball. Files are opened one after the other.
type tarReader struct {
	ctx  context.Context // of open; an io.Reader has no context parameter
	t    *tarball
	next int       // index of the next file
	part io.Reader // of the previous file
	body io.Closer
	end  bool
}

func (r *tarReader) Read(p []byte) (int, error) {
	for {
		if r.part != nil {
			n, err := r.part.Read(p)
			if n > 0 || err != io.EOF {
				return n, err
			}
			r.part = nil
			if err := r.Close(); err != nil {
				return 0, err
			}
		}
		switch {
		case r.next < len(r.t.files):
			if err := r.begin(); err != nil {
				return 0, err
			}
		case !r.end:
			r.part, r.end = bytes.NewReader(make([]byte, tarEnd)), true
		default:
			return 0, io.EOF
		}
	}
}

// begin starts the next file.
func (r *tarReader) begin() error {
	f := r.t.files[r.next]
	header := bytes.NewReader(r.t.headers[r.next])
	r.next++
	r.part = header
	if f.Type != filetable.TypeReg || f.Size == 0 {
		return nil
	}
	body, err := f.open(r.ctx, nil)
	if err != nil {
		return fmt.Errorf("file %q: %w", f.Path, err)
	}
	r.body = body
	r.part = io.MultiReader(header, body, bytes.NewReader(make([]byte, padding(f.Size))))
	return nil
}

// Close closes the file that is open.
func (r *tarReader) Close() error {
	if r.body == nil {
		return nil
	}
	err := r.body.Close()
	r.body = nil
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
