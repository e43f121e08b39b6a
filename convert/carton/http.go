package carton

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/contentrange"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// maxErrorBody limits the bytes of an error response that are read so that the connection can be
// reused.
const maxErrorBody = 4 << 10

// request sends a request to an untrusted URL, and returns the response if it is a success.
func (o *Options) request(ctx context.Context, method, rawURL string, header http.Header) (*http.Response, error) {
	if o.HTTP == nil {
		return nil, fmt.Errorf("URLs cannot be fetched here: %w", errdefs.ErrFailedPrecondition)
	}
	u, err := checkURL(rawURL)
	if err != nil {
		return nil, err
	}
	req := (&http.Request{Method: method, URL: u, Host: u.Host, Header: header}).WithContext(ctx)
	resp, err := o.HTTP(req)
	if err == nil && ctx.Err() != nil {
		resp.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return nil, about(u.Host, context.Cause(ctx))
	case errdefs.IsPermissionDenied(err), errdefs.IsUnauthorized(err), errdefs.IsNotFound(err), errdefs.IsFailedPrecondition(err):
		return nil, about(u.Host, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", about(u.Host, err), errdefs.ErrUnavailable)
	}
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // to reuse the connection
	resp.Body.Close()
	return nil, statusError(u.Host, resp)
}

// about prefixes an error with the host, unless it already has it, and removes the URL that an
// http.Client adds, which can be signed.
func about(host string, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if strings.HasPrefix(err.Error(), host+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", host, err)
}

// getDecoded gets a URL of LINKS and returns its decoded content, and its length, or -1 if unknown.
func (o *Options) getDecoded(ctx context.Context, rawURL, accept string) (io.ReadCloser, int64, error) {
	resp, err := o.request(ctx, http.MethodGet, rawURL, http.Header{"Accept-Encoding": {accept}})
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("the server answered a request for the whole file with a part: %w", errdefs.ErrUnavailable)
	}
	coded, err := codings(resp.Header.Values("Content-Encoding"))
	if err != nil {
		resp.Body.Close()
		return nil, 0, err
	}
	if len(coded) == 0 {
		return resp.Body, resp.ContentLength, nil
	}
	body, err := decode(resp.Body, coded)
	return body, -1, err
}

// headSize returns the size of a URL of LINKS if its server reports it for a HEAD request,
// otherwise -1.
func (o *Options) headSize(ctx context.Context, rawURL string) int64 {
	resp, err := o.request(ctx, http.MethodHead, rawURL, http.Header{"Accept-Encoding": {"identity"}})
	if err != nil {
		return -1 // not all servers support HEAD
	}
	resp.Body.Close()
	if coded, err := codings(resp.Header.Values("Content-Encoding")); err != nil || len(coded) > 0 {
		return -1
	}
	return resp.ContentLength
}

// statusError returns the error for a response that is not a success.
func statusError(host string, resp *http.Response) error {
	category := error(errdefs.ErrUnavailable)
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusGone:
		category = errdefs.ErrNotFound
	case http.StatusUnauthorized:
		category = errdefs.ErrUnauthenticated
	case http.StatusForbidden:
		category = errdefs.ErrPermissionDenied
	case http.StatusRequestedRangeNotSatisfiable, http.StatusPreconditionFailed, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		category = errdefs.ErrFailedPrecondition
	}
	err := fmt.Errorf("%s answered %d: %w", host, resp.StatusCode, category)
	if after, ok := transfer.ParseRetryAfter(resp.Header.Get("Retry-After"), time.Now()); ok && category == errdefs.ErrUnavailable {
		return &transfer.RetryAfterError{After: after, Err: err}
	}
	return err
}

// partOf returns the range of a response. It must include the size of the file: nothing else has
// the size of an archive.
func partOf(resp *http.Response) (contentrange.Range, error) {
	header := resp.Header.Get("Content-Range")
	r, ok := contentrange.Parse(header)
	if !ok || r.Size < 0 {
		return contentrange.Range{}, fmt.Errorf("Content-Range %.100q: %w", header, errdefs.ErrUnavailable)
	}
	return r, nil
}
