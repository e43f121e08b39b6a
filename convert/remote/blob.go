package remote

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/ballast-dev/ballast/convert/contentrange"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

var _ transfer.Fetcher = (*Repository)(nil)

// A place is the last known location of a blob.
type place struct {
	e       *endpoint
	target  *url.URL // redirect target of e, or nil
	private bool     // e got credentials
}

// Fetch returns a range of a blob; see transfer.Fetcher. It asks the hosts in order, starting with
// the one that had the blob before. The body is a transfer.Body.
func (r *Repository) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	if off < 0 || n < 0 || size < 0 || off > size || n > size-off {
		return nil, 0, fmt.Errorf("blob %s: range of %d bytes at %d of %d: %w", d, n, off, size, errdefs.ErrInvalidArgument)
	}
	if n == 0 {
		return http.NoBody, off, nil
	}
	ranges := ""
	if n < size {
		ranges = fmt.Sprintf("bytes=%d-%d", off, off+n-1)
	}
	var body io.ReadCloser
	var start int64
	err := r.blob(ctx, d, ranges, func(resp *response) (err error) {
		body, start, err = checkRange(resp.Response, size, off, n, ranges != "")
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("%s: blob %s: %w", r, d, transfer.Foreign(ctx, err))
	}
	return body, start, nil
}

// checkRange checks that a response matches the request, and returns its body and the offset at
// which the body starts.
func checkRange(resp *http.Response, size, off, n int64, ranged bool) (io.ReadCloser, int64, error) {
	if resp.StatusCode == http.StatusOK {
		if l := resp.ContentLength; l >= 0 && l != size {
			return nil, 0, fmt.Errorf("has %d bytes, not %d: %w", l, size, errdefs.ErrFailedPrecondition)
		}
		return limited(resp.Body, size), 0, nil
	}
	if !ranged {
		return nil, 0, fmt.Errorf("partial content in response to a request for the whole blob: %w", errdefs.ErrUnknown)
	}
	if t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); strings.HasPrefix(t, "multipart/") {
		return nil, 0, fmt.Errorf("several ranges in response to a request for one: %w", errdefs.ErrUnknown)
	}
	cr := resp.Header.Get("Content-Range")
	got, ok := contentrange.Parse(cr)
	if !ok || got.First != off || got.Last > off+n-1 || got.Size >= 0 && got.Size != size {
		return nil, 0, fmt.Errorf("Content-Range %.100q for bytes %d to %d of %d: %w", cr, off, off+n-1, size, errdefs.ErrUnknown)
	}
	return limited(resp.Body, got.Last-got.First+1), off, nil
}

// limited returns body, limited to n bytes.
func limited(body io.ReadCloser, n int64) io.ReadCloser {
	return limitedBody{io.LimitReader(body, n), body}
}

type limitedBody struct {
	io.Reader
	io.Closer
}

// Private implements transfer.Body.
func (b limitedBody) Private() bool { return transfer.IsPrivate(b.Closer) }

// Blob returns the response of the first host that has the blob, unchanged and not verified, for a
// client that verifies it. ranges is a Range header, or empty. The caller closes the body.
func (r *Repository) Blob(ctx context.Context, d digest.Digest, ranges string) (*http.Response, error) {
	if _, err := verify.ParseDigest(d.String()); err != nil {
		return nil, err
	}
	var out *http.Response
	err := r.blob(ctx, d, ranges, func(resp *response) error {
		out = resp.Response
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s: blob %s: %w", r, d, transfer.Foreign(ctx, err))
	}
	return out, nil
}

// blob requests a blob, first from its last location. A response that use refuses is closed and
// counts as a failure.
func (r *Repository) blob(ctx context.Context, d digest.Digest, ranges string, use func(*response) error) error {
	q := request{path: "blobs/" + d.String(), ranges: ranges}
	take := func(e *endpoint, resp *response, err error) error {
		if err != nil {
			return err
		}
		if err := use(resp); err != nil {
			resp.Body.Close()
			return fmt.Errorf("%s: %w", e.Host, err)
		}
		r.remember(d, place{e, resp.target, resp.private})
		return nil
	}
	last := r.place(d)
	if last.target != nil {
		resp, err := r.again(ctx, last, q)
		if err = take(last.e, resp, err); err == nil || ctx.Err() != nil {
			return err
		}
		r.remember(d, place{e: last.e})
	}
	return r.each(ctx, docker.HostCapabilityPull, last.e, func(e *endpoint) error {
		resp, err := r.do(ctx, e, q)
		return take(e, resp, err)
	})
}

// again requests the redirect target of an earlier response.
func (r *Repository) again(ctx context.Context, p place, q request) (*response, error) {
	own, cancel := context.WithCancelCause(ctx)
	resp, err := r.outside(own, p.e, p.target, q, 0)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.private = p.private
	resp.Body = newStallBody(ctx, resp.Body, r.client.opts.Stall, cancel, p.private)
	return resp, nil
}

func (r *Repository) place(d digest.Digest) place {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.places[d]
}

func (r *Repository) remember(d digest.Digest, p place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.places) >= maxPlaces {
		clear(r.places)
	}
	r.places[d] = p
}
