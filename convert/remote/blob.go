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

var (
	_ transfer.Fetcher = (*Repository)(nil)
	_ transfer.Spread  = (*Repository)(nil)
)

// A located is a blob at an endpoint.
type located struct {
	e *endpoint
	d digest.Digest
}

// A target is where an endpoint redirects requests for a blob.
type target struct {
	url     *url.URL // nil: nowhere
	private bool     // the endpoint got credentials, whose privileges may be in the url
}

// Endpoints implements transfer.Spread.
func (r *Repository) Endpoints() []transfer.Source { return r.hosts(has(docker.HostCapabilityPull)) }

// An at reads the blobs of a repository at one endpoint.
type at struct {
	r *Repository
	e *endpoint
}

// Fetch returns a range of a blob; see transfer.Fetcher. The body is a transfer.Body.
func (a at) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (body io.ReadCloser, start int64, err error) {
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
	err = a.r.blob(ctx, a.e, d, ranges, func(resp *response) (err error) {
		body, start, err = checkRange(resp.Response, size, off, n, ranges != "")
		if err == nil && !a.e.server {
			body = &mirrored{ReadCloser: body, ctx: ctx, r: a.r, d: d, size: size, off: start}
		}
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("%s: blob %s: %w", a.r, d, transfer.Foreign(ctx, err))
	}
	return body, start, nil
}

// Fetch returns a range of a blob from the first host that gives it; see transfer.Fetcher. The body is a transfer.Body.
func (r *Repository) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	return fetch(ctx, r.forBlobs(transfer.Once), d, size, off, n)
}

func fetch(ctx context.Context, t *transfer.Attempts, d digest.Digest, size, off, n int64) (body io.ReadCloser, start int64, err error) {
	for t.Next(ctx) {
		body, start, err = t.Fetch(ctx, d, size, off, n)
		t.Done(ctx, err)
	}
	return body, start, t.Err()
}

// Unverified returns a Fetcher for bytes that nothing verifies, which come from where those of Artifact.BlobAt do.
func (r *Repository) Unverified() transfer.Fetcher { return unverified{r} }

type unverified struct{ r *Repository }

// Fetch returns a range of a blob; see transfer.Fetcher. The body is a transfer.Body.
func (u unverified) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	return fetch(ctx, u.r.forUnverified(), d, size, off, n)
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
	t := r.forBlobs(transfer.Once)
	for t.Next(ctx) {
		t.Done(ctx, r.blob(ctx, asked(t), d, ranges, func(resp *response) error {
			out = resp.Response
			return nil
		}))
	}
	return out, r.failure(t, fmt.Sprintf("%s: blob %s", r, d))
}

// small calls read with the response of a host that has a blob, and of the next host if read returns an error, such
// as for wrong bytes. It tries again a few times.
func (r *Repository) small(ctx context.Context, d digest.Digest, read func(*response) error) error {
	t := r.forBlobs(retry)
	for t.Next(ctx) {
		t.Done(ctx, r.blob(ctx, asked(t), d, "", func(resp *response) error {
			defer resp.Body.Close()
			return read(resp)
		}))
	}
	return r.failure(t, fmt.Sprintf("%s: blob %s", r, d))
}

// blob requests a blob from a host: from its last redirect target, if there is one, and otherwise from the host
// itself. A response that use refuses is closed and counts as a failure.
func (r *Repository) blob(ctx context.Context, e *endpoint, d digest.Digest, ranges string, use func(*response) error) error {
	if err := r.mayAsk(ctx, e, d); err != nil {
		return err
	}
	of := located{e, d}
	for q := (request{path: "blobs/" + d.String(), ranges: ranges, at: r.target(of)}); ; q.at = (target{}) {
		resp, err := r.do(ctx, e, q)
		if err == nil {
			if err = use(resp); err == nil {
				r.remember(of, resp.target)
				return nil
			}
			resp.Body.Close()
			err = fmt.Errorf("%s: %w", e.Host, err)
		}
		if q.at.url == nil || ctx.Err() != nil {
			return err
		}
		r.remember(of, target{})
	}
}

func (r *Repository) target(of located) target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.targets[of]
}

func (r *Repository) remember(of located, t target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.url == nil {
		delete(r.targets, of)
		return
	}
	if len(r.targets) >= maxBlobs {
		clear(r.targets)
	}
	r.targets[of] = t
}
