package remote

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// retry are the retries of small reads and manifests. The store has its own for large reads.
var retry = transfer.Retry{Tries: 4, Pause: 100 * time.Millisecond, Patience: 10 * time.Second, Total: 15 * time.Second,
	Final: func(err error) bool { return transfer.Final(err) || isQuota(err) }}

// Read-ahead of BlobAt, in bytes. The headers of a tar are far apart for large files and close
// together for small ones.
const (
	minAhead = 64 << 10
	maxAhead = 1 << 20
)

var _ convert.Artifact = (*Artifact)(nil)

// An Artifact is a manifest of a repository, with access to its blobs.
type Artifact struct {
	r *Repository
	m Manifest
}

// Artifact returns access to the blobs of m.
func (r *Repository) Artifact(m Manifest) *Artifact { return &Artifact{r, m} }

// Manifest returns the manifest, byte for byte as served.
func (a *Artifact) Manifest() []byte { return a.m.Bytes }

// ReadBlob reads and verifies a small blob; see convert.Artifact.
func (a *Artifact) ReadBlob(ctx context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	if desc.Size < 0 || desc.Size > limit {
		return nil, fmt.Errorf("blob %s: size %d is not within 0 to %d: %w", desc.Digest, desc.Size, limit, errdefs.ErrInvalidArgument)
	}
	if err := convert.MakeRoom(ctx, desc.Size); err != nil {
		return nil, err
	}
	var p []byte
	if desc.Size == 0 {
		return p, verify.Bytes(desc.Digest, p)
	}
	err := a.r.small(ctx, desc.Digest, func(resp *response) error {
		body, _, err := checkRange(resp.Response, desc.Size, 0, desc.Size, false)
		if err == nil {
			p, err = verify.Read(body, desc.Digest, desc.Size, limit)
		}
		return err
	})
	return p, err
}

// ReadSmall reads and verifies a blob of unknown size. It returns errdefs.ErrInvalidArgument if the
// blob is larger than limit bytes.
func (a *Artifact) ReadSmall(ctx context.Context, d digest.Digest, limit int64) ([]byte, error) {
	if _, err := verify.ParseDigest(d.String()); err != nil {
		return nil, err
	}
	var p []byte
	err := a.r.small(ctx, d, func(resp *response) error {
		room := limit
		if resp.ContentLength >= 0 {
			room = min(room, resp.ContentLength)
		}
		if err := convert.MakeRoom(ctx, room); err != nil {
			return err
		}
		var err error
		p, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		switch {
		case err != nil:
			return fmt.Errorf("blob %s: %w: %w", d, err, errdefs.ErrUnavailable)
		case int64(len(p)) > limit:
			return fmt.Errorf("blob %s: more than %d bytes: %w", d, limit, errdefs.ErrInvalidArgument)
		}
		return verify.Bytes(d, p)
	})
	return p, err
}

// BlobAt returns a reader for ranges of a blob, which are not verified, and so come from the registry and not from
// its mirrors, unless it is never asked. Sequential reads increase the read-ahead.
//
// A server that ignores Range sends the blob as one stream. Then reads must go forward, except
// within the last piece read; bytes in between are read and discarded, and a read that goes back
// returns errdefs.ErrNotImplemented.
//
// The reader works until ctx is done and is not safe for concurrent use. It is an io.Closer, which
// ends the stream earlier.
func (a *Artifact) BlobAt(ctx context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	if _, err := verify.ParseDigest(desc.Digest.String()); err != nil {
		return nil, err
	}
	if desc.Size < 0 {
		return nil, fmt.Errorf("blob %s: size %d: %w", desc.Digest, desc.Size, errdefs.ErrInvalidArgument)
	}
	return &blobReader{ctx: ctx, r: a.r, d: desc.Digest, size: desc.Size, ahead: minAhead}, nil
}

// A blobReader is the io.ReaderAt of BlobAt.
type blobReader struct {
	ctx  context.Context // of BlobAt; io.ReaderAt has no context parameter
	r    *Repository
	d    digest.Digest
	size int64

	mu     sync.Mutex
	win    []byte // guarded by mu: the bytes at off
	off    int64
	ahead  int64
	stream io.ReadCloser // guarded by mu: positioned at the end of win; nil while the server supports ranges
}

// ReadAt reads len(p) bytes at off.
func (b *blobReader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("blob %s: offset %d: %w", b.d, off, errdefs.ErrInvalidArgument)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for n < len(p) {
		at := off + int64(n)
		if at >= b.size {
			return n, io.EOF
		}
		if at < b.off || at >= b.off+int64(len(b.win)) {
			if err := b.load(at, int64(len(p)-n)); err != nil {
				return n, err
			}
		}
		n += copy(p[n:], b.win[at-b.off:])
	}
	return n, nil
}

// Close ends the stream, if any.
func (b *blobReader) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stream == nil {
		return nil
	}
	return b.stream.Close()
}

// load makes win contain the byte at off, and further bytes depending on want.
func (b *blobReader) load(off, want int64) error {
	if end := b.off + int64(len(b.win)); off >= end && off <= end+minAhead {
		b.ahead = min(2*b.ahead, maxAhead)
	} else {
		b.ahead = minAhead
	}
	n := min(max(min(want, maxAhead), b.ahead), b.size-off)
	if b.stream != nil {
		return b.forward(off, n)
	}
	t := b.r.forUnverified()
	for t.Next(b.ctx) {
		body, start, err := t.Fetch(b.ctx, b.d, b.size, off, n)
		switch {
		case err != nil:
		case start == off:
			err = b.fill(body, off, n)
			body.Close()
		default:
			if b.stream != nil {
				b.stream.Close() // of the previous attempt
			}
			b.stream, b.win, b.off = body, nil, 0
			err = b.forward(off, n)
		}
		t.Done(b.ctx, err)
	}
	return t.Err()
}

// forward reads the stream up to off and fills win from there.
func (b *blobReader) forward(off, n int64) error {
	end := b.off + int64(len(b.win))
	if off < end {
		return fmt.Errorf("blob %s: the server does not support ranges, and the bytes at %d were requested after those at %d: %w", b.d, off, end, errdefs.ErrNotImplemented)
	}
	if _, err := io.CopyN(io.Discard, b.stream, off-end); err != nil {
		return fmt.Errorf("blob %s: %w", b.d, noEOF(err))
	}
	return b.fill(b.stream, off, n)
}

// fill reads n bytes at off into win.
func (b *blobReader) fill(r io.Reader, off, n int64) error {
	if int64(cap(b.win)) < n {
		b.win = make([]byte, n) // n is at most maxAhead
	}
	got, err := io.ReadFull(r, b.win[:n])
	b.win, b.off = b.win[:got], off
	if got == 0 || b.stream != nil && int64(got) < n {
		return fmt.Errorf("blob %s: %w", b.d, noEOF(err))
	}
	return nil
}

// noEOF returns err, or io.ErrUnexpectedEOF for io.EOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
