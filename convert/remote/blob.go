package remote

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

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
	url     *url.URL
	private bool // the endpoint got credentials
}

// Endpoints implements transfer.Spread.
func (r *Repository) Endpoints() (out []transfer.At) {
	for _, e := range r.set.endpoints {
		if e.Capabilities.Has(docker.HostCapabilityPull) {
			out = append(out, transfer.At{Endpoint: e.state, Fetcher: at{r, e}})
		}
	}
	return out
}

// An at reads the blobs of a repository at one endpoint.
type at struct {
	*Repository
	e *endpoint
}

// Fetch returns a range of a blob; see transfer.Fetcher. The body is a transfer.Body.
func (a at) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	return a.fetch(ctx, d, size, off, n, func(use func(*endpoint) error) error {
		err := use(a.e)
		if a.e.server {
			err = a.advise(err)
		}
		return err
	})
}

// Endpoints hides that of the Repository.
func (a at) Endpoints() []transfer.At { return []transfer.At{{Endpoint: a.e.state, Fetcher: a}} }

// Fetch returns a range of a blob; see transfer.Fetcher. It asks the hosts in order, those without problems
// first. The body is a transfer.Body.
func (r *Repository) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	return r.fetch(ctx, d, size, off, n, func(use func(*endpoint) error) error { return r.eachBlob(ctx, use) })
}

// fetch returns a range of a blob from an endpoint of those for which ask calls its argument.
func (r *Repository) fetch(ctx context.Context, d digest.Digest, size, off, n int64, ask func(func(*endpoint) error) error) (body io.ReadCloser, start int64, err error) {
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
	err = ask(func(e *endpoint) error {
		return r.blob(ctx, e, d, ranges, func(resp *response) (err error) {
			body, start, err = checkRange(resp.Response, size, off, n, ranges != "")
			if err == nil && !e.server {
				body = &mirrored{ReadCloser: body, ctx: ctx, r: r, d: d, size: size, off: start}
			}
			return err
		})
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
	err := r.eachBlob(ctx, func(e *endpoint) error {
		return r.blob(ctx, e, d, ranges, func(resp *response) error {
			out = resp.Response
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("%s: blob %s: %w", r, d, transfer.Foreign(ctx, err))
	}
	return out, nil
}

// eachBlob calls f for the hosts that have blobs until it returns nil, as each does: mirrors that have problems
// after the others, and not those that sent wrong bytes if the registry can be asked.
func (r *Repository) eachBlob(ctx context.Context, f func(*endpoint) error) error {
	now := time.Now()
	var order []*endpoint
	for _, e := range r.set.endpoints {
		if e.Capabilities.Has(docker.HostCapabilityPull) && (r.origin() == nil || !e.state.Shunned().After(now)) {
			order = append(order, e)
		}
	}
	late := func(e *endpoint) int {
		if e.state.Resting().After(now) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(a, b *endpoint) int { return late(a) - late(b) })
	return r.inOrder(ctx, order, func(e *endpoint) error {
		began := time.Now()
		err := f(e)
		e.state.Leave(began, transfer.OutcomeOf(ctx, err))
		return err
	})
}

// small calls read with the response of a host that has a blob, and of the next host if read returns an error, such
// as for wrong bytes. It tries again a few times.
func (r *Repository) small(ctx context.Context, d digest.Digest, read func(*response) error) error {
	return retry.Do(ctx, func() error {
		err := r.eachBlob(ctx, func(e *endpoint) error {
			return r.blob(ctx, e, d, "", func(resp *response) error {
				defer resp.Body.Close()
				return read(resp)
			})
		})
		if err != nil {
			return fmt.Errorf("%s: blob %s: %w", r, d, transfer.Foreign(ctx, err))
		}
		return nil
	})
}

// authority returns what reads blobs from the registry alone; from its mirrors if it is never asked.
func (r *Repository) authority() transfer.Fetcher {
	if e := r.origin(); e != nil {
		return at{r, e}
	}
	return r
}

// blob requests a blob from a host: from its last redirect target, if there is one, and otherwise from the host
// itself. A response that use refuses is closed and counts as a failure.
func (r *Repository) blob(ctx context.Context, e *endpoint, d digest.Digest, ranges string, use func(*response) error) error {
	q := request{path: "blobs/" + d.String(), ranges: ranges}
	take := func(resp *response, err error) error {
		if err != nil {
			return err
		}
		if err := use(resp); err != nil {
			resp.Body.Close()
			return fmt.Errorf("%s: %w", e.Host, err)
		}
		r.remember(located{e, d}, target{resp.target, resp.private})
		return nil
	}
	if err := r.mayAsk(ctx, e, d); err != nil {
		return err
	}
	if last := r.target(located{e, d}); last.url != nil {
		if err := take(r.again(ctx, e, last, q)); err == nil || ctx.Err() != nil {
			return err
		}
		r.remember(located{e, d}, target{})
	}
	return take(r.do(ctx, e, q))
}

// again requests the redirect target of an earlier response.
func (r *Repository) again(ctx context.Context, e *endpoint, t target, q request) (*response, error) {
	own, cancel := context.WithCancelCause(ctx)
	resp, err := r.outside(own, e, t.url, q, 0)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.private = t.private
	resp.Body = newStallBody(ctx, resp.Body, r.client.opts.Stall, cancel, t.private)
	return resp, nil
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
