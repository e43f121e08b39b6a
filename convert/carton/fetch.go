package carton

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/ballast-dev/ballast/convert/carton/zipdir"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"
)

// parallelStreams limits the files that are decompressed, or downloaded from LINKS, at the same
// time.
const parallelStreams = 4

// small is the maximal size in bytes of a file that is read as a whole, in one request.
const small = 4 << 20 // 4 MiB

// fetcher is the store.Fetcher of a carton.
type fetcher struct {
	c     *Carton
	slots *semaphore.Weighted // one for each stream that may be open

	mu     sync.Mutex            // guards failed
	failed map[digest.Digest]int // number of URLs of a file of LINKS to try last
}

// Fetcher returns the fetcher of the files. A blob that is not a file of the carton returns
// errdefs.ErrNotFound. A file that is a stream is sent from its first byte on. Bodies are private
// if the carton is, or if the URL of the file can be signed.
func (c *Carton) Fetcher() transfer.Fetcher {
	return &fetcher{c: c, slots: semaphore.NewWeighted(parallelStreams), failed: map[digest.Digest]int{}}
}

func (f *fetcher) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	p, ok := f.c.places[d]
	switch {
	case !ok:
		return nil, 0, fmt.Errorf("carton %s: no file %s: %w", f.c.hash, d, errdefs.ErrNotFound)
	case off < 0 || n < 0 || size < 0 || off > size || n > size-off:
		return nil, 0, invalid("carton %s: file %s: range of %d bytes at %d of %d", f.c.hash, d, n, off, size)
	case p.entry != nil && p.entry.Size != size:
		return nil, 0, fmt.Errorf("carton %s: file %s has %d bytes, not %d: %w", f.c.hash, d, p.entry.Size, size, errdefs.ErrFailedPrecondition)
	case n == 0:
		return http.NoBody, off, nil
	case p.entry != nil && p.entry.Method == zipdir.Stored:
		body, err := f.stored(ctx, p.entry, off, n)
		if err != nil {
			return nil, 0, transfer.Foreign(ctx, err)
		}
		return transfer.NewBody(ctx, body, f.c.members.Private()), off, nil
	}
	body := &stream{ctx: ctx, slots: f.slots, open: func() (io.ReadCloser, error) {
		if p.entry != nil {
			return f.c.members.open(ctx, p.entry)
		}
		return f.open(ctx, d, p.urls, size)
	}}
	return transfer.NewBody(ctx, body, f.c.members.Private() || slices.ContainsFunc(p.urls, signed)), 0, nil
}

// stored returns a range of a stored member. All of a small one takes a single request.
func (f *fetcher) stored(ctx context.Context, e *zipdir.Entry, off, n int64) (io.ReadCloser, error) {
	if n == e.Size && n <= small {
		return f.c.members.open(ctx, e)
	}
	return f.c.members.section(ctx, e, off, n)
}

// open opens a file of LINKS at the URL after the last one that failed.
func (f *fetcher) open(ctx context.Context, d digest.Digest, urls []string, size int64) (io.ReadCloser, error) {
	f.mu.Lock()
	skip := f.failed[d]
	f.mu.Unlock()
	body, used, err := f.c.openLink(ctx, d, urls, skip, size)
	if err != nil {
		return nil, err
	}
	return &linkBody{ReadCloser: body, ctx: ctx, left: size, failed: func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failed[d] = used + 1
	}}, nil
}

// A linkBody is a body from a URL of LINKS. It calls failed after a read error, and at the end: if
// the file is requested again, the content was wrong.
type linkBody struct {
	io.ReadCloser
	ctx    context.Context // of the Fetch: a cancelled one does not count as a failure
	left   int64
	failed func() // may be called again
}

func (w *linkBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.left -= int64(n)
	if w.left <= 0 || err != nil && w.ctx.Err() == nil {
		w.failed()
	}
	return n, err
}

// A stream is a body that is opened by its first read, so that a request for the middle of a file
// that is a stream costs nothing. It has a slot while it is open.
type stream struct {
	ctx   context.Context // of the Fetch
	slots *semaphore.Weighted
	open  func() (io.ReadCloser, error)
	body  io.ReadCloser // nil while it is not open
	err   error
}

func (s *stream) Read(p []byte) (int, error) {
	if s.body == nil && s.err == nil {
		s.err = s.begin()
	}
	if s.err != nil {
		return 0, s.err
	}
	return s.body.Read(p)
}

func (s *stream) begin() error {
	if s.slots.Acquire(s.ctx, 1) != nil {
		return context.Cause(s.ctx)
	}
	body, err := s.open()
	if err != nil {
		s.slots.Release(1)
		return err
	}
	s.body = body
	return nil
}

func (s *stream) Close() error {
	s.err = io.ErrClosedPipe
	if s.body == nil {
		return nil
	}
	err := s.body.Close()
	s.body = nil
	s.slots.Release(1)
	return err
}

// openLink opens the file d of the given size by the first of its URLs that has it, starting after
// the first skip of them, and returns its index.
func (c *Carton) openLink(ctx context.Context, d digest.Digest, urls []string, skip int, size int64) (body io.ReadCloser, used int, err error) {
	urls = urls[:min(len(urls), maxURLs)]
	var errs []error
	for i := range urls {
		used = (skip + i) % len(urls)
		if body, err = c.openURL(ctx, d, urls[used], size); err == nil {
			return body, used, nil
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		errs = append(errs, err)
	}
	return nil, 0, fmt.Errorf("carton %s: file %s by %s: %w", c.hash, d, nameLinks, mostRetryable(errs))
}

// mostRetryable returns the error after which a retry is most likely to succeed.
func mostRetryable(errs []error) error {
	if len(errs) == 0 {
		return fmt.Errorf("no URL: %w", errdefs.ErrNotFound)
	}
	if i := slices.IndexFunc(errs, errdefs.IsUnavailable); i >= 0 {
		return errs[i]
	}
	return errs[len(errs)-1]
}

// openURL opens one URL of a file. Small files are compared with their digest.
func (c *Carton) openURL(ctx context.Context, d digest.Digest, url string, size int64) (io.ReadCloser, error) {
	body, length, err := c.o.getDecoded(ctx, url, acceptEncoding)
	if err != nil {
		return nil, err
	}
	if length >= 0 && length != size {
		body.Close()
		return nil, fmt.Errorf("the URL has %d bytes, not %d: %w", length, size, errdefs.ErrFailedPrecondition)
	}
	if size > small {
		return body, nil
	}
	defer body.Close()
	p, err := verify.Read(body, d, size, small)
	if err != nil {
		return nil, fmt.Errorf("the URL: %w", err)
	}
	return io.NopCloser(bytes.NewReader(p)), nil
}

// maxSizeURLs limits the URLs that are requested for the size of a file.
const maxSizeURLs = 4

// sizeOf determines the size of a file of LINKS: by HEAD, otherwise by the header of a GET,
// otherwise by reading it. A dead URL can return a page of another size, so that if URLs differ,
// the size is the one with which the file can be read, or the largest. It returns
// errdefs.ErrResourceExhausted if more than Options.MaxLinked has to be read.
func (c *Carton) sizeOf(ctx context.Context, d digest.Digest, urls []string) (int64, error) {
	var sizes []int64
	var errs []error
	for _, u := range urls[:min(len(urls), maxURLs)] {
		n, err := c.sizeAt(ctx, u)
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case c.asked.Load() > maxRequests:
			return 0, c.ask(0)
		case err != nil:
			errs = append(errs, err)
		case !slices.Contains(sizes, n):
			sizes = append(sizes, n)
		}
		if len(errs)+len(sizes) >= maxSizeURLs && len(sizes) > 0 {
			break
		}
	}
	if len(sizes) == 0 {
		return 0, fmt.Errorf("size of file %s by %s: %w", d, nameLinks, mostRetryable(errs))
	}
	slices.Sort(sizes)
	for _, n := range sizes[:len(sizes)-1] {
		if n > small {
			break
		}
		if err := c.ask(min(len(urls), maxURLs)); err != nil {
			return 0, err
		}
		if body, _, err := c.openLink(ctx, d, urls, 0, n); err == nil {
			body.Close()
			return n, nil
		}
	}
	return sizes[len(sizes)-1], nil
}

// maxRequests limits the requests for the sizes of the files of a carton, which go to hosts that its
// author chose.
const maxRequests = 2000

// LimitRequests is the name of the limit maxRequests.
const LimitRequests = "carton_requests"

// ask counts n requests for sizes.
func (c *Carton) ask(n int) error {
	if c.asked.Add(int64(n)) > maxRequests {
		return &filetable.LimitError{Limit: LimitRequests, Err: fmt.Errorf("the sizes of the files of %s need more than %d requests: %w",
			nameLinks, maxRequests, errdefs.ErrResourceExhausted)}
	}
	return nil
}

func (c *Carton) sizeAt(ctx context.Context, url string) (int64, error) {
	if err := c.ask(1); err != nil {
		return 0, err
	}
	if n := c.o.headSize(ctx, url); n >= 0 {
		return n, nil
	}
	if err := c.ask(1); err != nil {
		return 0, err
	}
	body, length, err := c.o.getDecoded(ctx, url, "identity")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if length >= 0 {
		return length, nil
	}
	return io.Copy(io.Discard, &linkedReader{body, c})
}

// LimitLinked is the name of the limit Options.MaxLinked.
const LimitLinked = "carton_links"

// A linkedReader reads a file of LINKS for its size, and counts towards the limit of the carton.
type linkedReader struct {
	io.Reader
	c *Carton
}

func (r *linkedReader) Read(p []byte) (int, error) {
	limit := cmp.Or(r.c.o.MaxLinked, defaultMaxLinked)
	n, err := r.Reader.Read(p)
	if r.c.linked.Add(int64(n)) > limit {
		return n, &filetable.LimitError{Limit: LimitLinked, Err: fmt.Errorf("more than %d bytes of files of %s, whose servers do not tell the sizes: %w",
			limit, nameLinks, errdefs.ErrResourceExhausted)}
	}
	return n, err
}
