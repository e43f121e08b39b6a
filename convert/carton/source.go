package carton

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert/local"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Source has the bytes of an archive. It is not trusted. Its methods are safe for concurrent use.
type Source interface {
	// Size returns the size of the archive in bytes.
	Size() int64

	// Range returns the bytes [off, off+n), which are within the archive. The reader may
	// end early. The errors have the categories of store.Fetcher.
	Range(ctx context.Context, off, n int64) (io.ReadCloser, error)

	// Private reports whether credentials were needed to read it. This can become known by reading.
	Private() bool

	// Close releases the source. Open readers may fail.
	Close() error
}

// OpenFile returns the archive in a local file. It returns errdefs.ErrInvalidArgument for anything
// but a regular file, and errdefs.ErrNotFound if it does not exist.
func OpenFile(name string) (Source, error) {
	f, info, err := local.OpenFile(name)
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return At(f, info.Size()), nil
}

// At returns the archive behind an io.ReaderAt, which must be safe for concurrent use. Close closes
// it if it is an io.Closer.
func At(r io.ReaderAt, size int64) Source { return &at{r: r, size: size} }

type at struct {
	r       io.ReaderAt
	size    int64
	private bool // the copy of an archive that needed credentials
}

func (a *at) Size() int64 { return a.size }

func (a *at) Range(_ context.Context, off, n int64) (io.ReadCloser, error) {
	return io.NopCloser(io.NewSectionReader(a.r, off, n)), nil
}

func (a *at) Private() bool { return a.private }

func (a *at) Close() error {
	if c, ok := a.r.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Blob returns the archive that is a blob in a registry, or in another source of a Fetcher. Its
// bytes are not compared with its digest, as only parts of it are read.
func Blob(f transfer.Fetcher, d digest.Digest, size int64) Source {
	return &blob{f: f, d: d, size: size}
}

type blob struct {
	f    transfer.Fetcher
	d    digest.Digest
	size int64

	private atomic.Bool // a part of it was
}

func (b *blob) Size() int64 { return b.size }

func (b *blob) Range(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	body, start, err := b.f.Fetch(ctx, b.d, b.size, off, n)
	if err != nil {
		return nil, err
	}
	if transfer.IsPrivate(body) {
		b.private.Store(true)
	}
	if start != off {
		body.Close()
		return nil, fmt.Errorf("blob %s: the server does not support ranges: %w", b.d, errdefs.ErrFailedPrecondition)
	}
	return body, nil
}

func (b *blob) Private() bool { return b.private.Load() }

func (b *blob) Close() error { return nil }

type readCloser struct {
	io.Reader
	io.Closer
}

// readerAt reads a Source for the duration of one call.
type readerAt struct {
	ctx context.Context
	src Source
}

// ReadAt sends another request while the bodies end early. io.EOF means that one was empty.
func (r readerAt) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = r.once(p[n:], off+int64(n))
		n += m
	}
	return n, err
}

func (r readerAt) once(p []byte, off int64) (int, error) {
	body, err := r.src.Range(r.ctx, off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	n, err := io.ReadFull(body, p)
	if err == io.ErrUnexpectedEOF {
		err = nil // the rest is requested again
	}
	return n, err
}
