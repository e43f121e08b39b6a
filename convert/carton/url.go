package carton

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/containerd/errdefs"
)

// firstRead is the number of bytes of the end of an archive in the first request: as many as zipdir
// reads.
const firstRead = 66 << 10

// An urlSource is an archive at an http or https URL that is read by ranges.
type urlSource struct {
	o    *Options
	url  string
	size int64
	etag string // strong, or empty
	tail []byte // the end of the archive
}

// OpenURL returns the archive at a URL, with one request. From a server without range requests it copies
// the archive to a file in Options.TempDir; it returns errdefs.ErrFailedPrecondition if that is not
// set, and errdefs.ErrResourceExhausted if the archive is larger than Options.MaxTemp. The other
// errors have the categories of store.Fetcher.
func OpenURL(ctx context.Context, url string, o Options) (Source, error) {
	u := &urlSource{o: &o, url: url}
	resp, err := u.get(ctx, fmt.Sprintf("bytes=-%d", firstRead))
	if errdefs.IsFailedPrecondition(err) && o.HTTP != nil {
		// Some servers do not support ranges from the end; those of an empty file never match.
		resp, err = u.get(ctx, "bytes=0-0")
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return u.copy(resp)
	}
	part, err := partOf(resp)
	if err != nil {
		return nil, err
	}
	u.size = part.Size
	if tag := resp.Header.Get("ETag"); !strings.HasPrefix(tag, "W/") {
		u.etag = tag
	}
	if part.Last == part.Size-1 && part.Last-part.First < firstRead {
		tail := make([]byte, part.Last-part.First+1)
		if _, err := io.ReadFull(resp.Body, tail); err != nil {
			return nil, fmt.Errorf("end of the archive: %w: %w", err, errdefs.ErrUnavailable)
		}
		u.tail = tail
	}
	return u, nil
}

func (u *urlSource) get(ctx context.Context, ranges string) (*http.Response, error) {
	h := http.Header{"Range": {ranges}, "Accept-Encoding": {"identity"}}
	if u.etag != "" {
		h.Set("If-Match", u.etag)
	}
	resp, err := u.o.request(ctx, http.MethodGet, u.url, h)
	if err != nil {
		return nil, err
	}
	if c, err := codings(resp.Header.Values("Content-Encoding")); err != nil || len(c) > 0 {
		resp.Body.Close()
		return nil, fmt.Errorf("the archive comes with a Content-Encoding: %w", errdefs.ErrNotImplemented)
	}
	return resp, nil
}

// copy writes the body to an unnamed temporary file.
func (u *urlSource) copy(resp *http.Response) (Source, error) {
	if u.o.TempDir == "" {
		return nil, fmt.Errorf("the server does not support ranges, and there is no directory to copy the archive to: %w", errdefs.ErrFailedPrecondition)
	}
	limit := cmp.Or(u.o.MaxTemp, defaultMaxTemp)
	tooLarge := fmt.Errorf("the server does not support ranges, and the archive has more than %d bytes: %w", limit, errdefs.ErrResourceExhausted)
	if resp.ContentLength > limit {
		return nil, tooLarge
	}
	f, err := os.CreateTemp(u.o.TempDir, "carton-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	n, err := io.Copy(f, io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		err = fmt.Errorf("copy the archive: %w", err)
	case n > limit:
		err = tooLarge
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &at{r: f, size: n, private: u.Private()}, nil
}

func (u *urlSource) Size() int64 { return u.size }

// Range returns a range of the archive. It returns errdefs.ErrFailedPrecondition if the archive
// has changed since it was opened.
func (u *urlSource) Range(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	if at := u.size - int64(len(u.tail)); off >= at {
		return io.NopCloser(bytes.NewReader(u.tail[off-at:][:n])), nil
	}
	if n == 0 {
		return http.NoBody, nil
	}
	resp, err := u.get(ctx, fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	if err != nil {
		return nil, err
	}
	if err := u.check(resp, off, n); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, n), resp.Body}, nil
}

func (u *urlSource) check(resp *http.Response, off, n int64) error {
	changed := fmt.Errorf("the archive has changed while it was read: %w", errdefs.ErrFailedPrecondition)
	if resp.StatusCode != http.StatusPartialContent {
		if resp.ContentLength >= 0 && resp.ContentLength != u.size {
			return changed
		}
		return fmt.Errorf("the server answered a range with the whole archive: %w", errdefs.ErrUnavailable)
	}
	part, err := partOf(resp)
	if err != nil {
		return err
	}
	if tag := resp.Header.Get("ETag"); part.Size != u.size || u.etag != "" && tag != "" && tag != u.etag {
		return changed
	}
	if part.First != off || part.Last > off+n-1 {
		return fmt.Errorf("Content-Range from %d to %d for bytes %d to %d: %w", part.First, part.Last, off, off+n-1, errdefs.ErrUnavailable)
	}
	return nil
}

// Private reports whether the URL can contain credentials, see signed.
func (u *urlSource) Private() bool { return signed(u.url) }

func (u *urlSource) Close() error { return nil }
