package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// uploadPatience limits the time to answer after all bytes of a blob were sent: some registries
// copy and hash them only then.
const uploadPatience = 10 * time.Minute

// An upload is a request that changes a repository.
type upload struct {
	method string
	url    *url.URL
	header http.Header
	body   io.Reader // nil: none; read once
	size   int64     // of body
}

// pushEndpoint returns the registry in the reference: mirrors are not pushed to.
func (r *Repository) pushEndpoint() (*endpoint, error) {
	for _, e := range r.set.endpoints {
		if e.server && e.Capabilities.Has(docker.HostCapabilityPush) {
			return e, nil
		}
	}
	return nil, fmt.Errorf("%s: hosts.toml does not allow pushes to this host: %w", r.ref.Host, errdefs.ErrPermissionDenied)
}

// pushScope adds the token scope for pushes to ctx.
func (r *Repository) pushScope(ctx context.Context) context.Context {
	return docker.WithScope(ctx, "repository:"+r.ref.Repository+":pull,push")
}

// Has reports whether the registry itself, not a mirror, has a blob in this repository.
func (r *Repository) Has(ctx context.Context, d digest.Digest, _ int64) (bool, error) {
	e, err := r.pushEndpoint()
	if err != nil {
		return false, err
	}
	resp, err := r.do(r.pushScope(ctx), e, request{path: "blobs/" + d.String(), head: true})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: blob %s: %w", r, d, err)
	}
	return true, resp.Body.Close()
}

// Tagged returns the manifest that the registry itself, not a mirror, has under a tag. Its errors
// are those of Manifest.
func (r *Repository) Tagged(ctx context.Context, tag string) (m Manifest, err error) {
	ref, err := NewRef(r.ref.Host, r.ref.Repository, tag)
	if err != nil {
		return Manifest{}, err
	}
	e, err := r.pushEndpoint()
	if err != nil {
		return Manifest{}, err
	}
	t := r.forDocuments(ctx, func(host *endpoint) bool { return host == e })
	for t.Next(ctx) {
		m, err = r.manifest(ctx, e, ref)
		t.Done(ctx, err)
	}
	return m, r.failure(t, "manifest "+ref.String())
}

// begin starts an upload session and returns its URL; nil if the registry has done what a query for mounting asks.
func (r *Repository) begin(ctx context.Context, e *endpoint, mount url.Values) (*url.URL, error) {
	u := e.url(r.ref, "blobs/uploads") // with a trailing slash, which url removes
	u.Path += "/"
	q := u.Query()
	maps.Copy(q, mount)
	u.RawQuery = q.Encode()
	resp, err := r.send(ctx, e, upload{method: http.MethodPost, url: u})
	if err != nil {
		return nil, err
	}
	if mount != nil && resp.StatusCode == http.StatusCreated {
		drain(resp)
		return nil, nil
	}
	return uploadLocation(e, resp)
}

// uploadLocation returns the URL of an upload session and closes the response. Credentials are sent
// there, so it must be the registry itself.
func uploadLocation(e *endpoint, resp *http.Response) (*url.URL, error) {
	u, err := location(resp)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	if !sameOrigin(u, resp.Request.URL) {
		return nil, fmt.Errorf("%s: upload to %.300q refused: %w", e.Host, u.Host, errdefs.ErrPermissionDenied)
	}
	u.Host = resp.Request.URL.Host // see Repository.do
	return u, nil
}

// An Opener opens bytes at the first one.
type Opener = func(ctx context.Context) (io.ReadCloser, error)

// Mount is Put, but first asks the registry to mount the blob from another of its repositories, and
// reports whether it did; those of other hosts cannot be mounted.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#mounting-a-blob-from-another-repository
func (r *Repository) Mount(ctx context.Context, d digest.Digest, size int64, host, from string, open Opener) (mounted bool, err error) {
	e, err := r.pushEndpoint()
	if err != nil {
		return false, err
	}
	var u *url.URL
	if host == r.ref.Host && from != r.ref.Repository {
		mount := url.Values{"mount": {d.String()}, "from": {from}}
		u, err = r.begin(docker.WithScope(r.pushScope(ctx), "repository:"+from+":pull"), e, mount)
		if err == nil && u == nil {
			return true, nil
		}
	}
	return false, r.put(ctx, d, size, open, u) // returns the error of begin, if it recurs
}

// Put uploads a blob in one request. What open returns must have size bytes and, if they are wrong,
// return an error before the last one (see verify.NewReader), which Put returns. It returns
// errdefs.ErrPermissionDenied or errdefs.ErrUnauthenticated if the registry refuses; after
// errdefs.ErrUnavailable it can be called again.
func (r *Repository) Put(ctx context.Context, d digest.Digest, size int64, open Opener) error {
	return r.put(ctx, d, size, open, nil)
}

// put is Put with an upload session that has begun, unless u is nil.
func (r *Repository) put(ctx context.Context, d digest.Digest, size int64, open Opener, u *url.URL) error {
	e, err := r.pushEndpoint()
	if err != nil {
		return err
	}
	body, err := open(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	ctx = r.pushScope(ctx)
	if u == nil {
		u, err = r.begin(ctx, e, nil)
	}
	if err == nil {
		err = r.commit(ctx, e, u, d, body, size)
	}
	if err != nil {
		return fmt.Errorf("%s: push blob %s: %w", r, d, err)
	}
	return nil
}

// PutStream uploads size bytes of unknown digest and returns the digest. It is computed from the
// bytes sent, so the caller must know that they are right, or reading them must return an error.
func (r *Repository) PutStream(ctx context.Context, size int64, open Opener) (digest.Digest, error) {
	e, err := r.pushEndpoint()
	if err != nil {
		return "", err
	}
	body, err := open(ctx)
	if err != nil {
		return "", err
	}
	defer body.Close()
	ctx = r.pushScope(ctx)
	u, err := r.begin(ctx, e, nil)
	if err != nil {
		return "", fmt.Errorf("%s: push: %w", r, err)
	}
	hash, rest := digest.SHA256.Hash(), &io.LimitedReader{R: body, N: size + 1} // with more than size bytes, send fails
	h := http.Header{"Content-Type": {"application/octet-stream"}, "Content-Range": {"0-" + strconv.FormatInt(max(size-1, 0), 10)}}
	if size > 0 {
		resp, err := r.send(ctx, e, upload{method: http.MethodPatch, url: u, header: h, body: io.TeeReader(rest, hash), size: size})
		if err != nil {
			return "", fmt.Errorf("%s: push: %w", r, err)
		}
		if unread := rest.N - 1; unread > 0 {
			resp.Body.Close()
			return "", fmt.Errorf("%s: push: %s answered %s, and has not read %d of %d bytes: %w", r, e.Host, resp.Status, unread, size, errdefs.ErrUnknown)
		}
		if u, err = uploadLocation(e, resp); err != nil {
			return "", err
		}
	}
	d := digest.NewDigest(digest.SHA256, hash)
	if err := r.commit(ctx, e, u, d, nil, 0); err != nil {
		return "", fmt.Errorf("%s: push blob %s: %w", r, d, err)
	}
	return d, nil
}

// commit ends an upload.
func (r *Repository) commit(ctx context.Context, e *endpoint, u *url.URL, d digest.Digest, body io.Reader, size int64) error {
	q := u.Query()
	q.Set("digest", d.String())
	u.RawQuery = q.Encode()
	h := http.Header{"Content-Type": {"application/octet-stream"}}
	resp, err := r.send(ctx, e, upload{method: http.MethodPut, url: u, header: h, body: body, size: size})
	if err != nil {
		return err
	}
	drain(resp)
	if resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s answered %s at the end of an upload: %w", e.Host, resp.Status, errdefs.ErrUnknown)
	}
	return nil
}

// PushManifest uploads a manifest under a tag or its digest.
func (r *Repository) PushManifest(ctx context.Context, object, mediaType string, p []byte) error {
	_, err := r.pushManifest(ctx, object, mediaType, p)
	return err
}

// pushManifest is PushManifest, and returns the header of the response.
func (r *Repository) pushManifest(ctx context.Context, object, mediaType string, p []byte) (header http.Header, err error) {
	ref, err := NewRef(r.ref.Host, r.ref.Repository, object)
	if err != nil {
		return nil, err
	}
	e, err := r.pushEndpoint()
	if err != nil {
		return nil, err
	}
	err = retry.Do(ctx, func() error {
		resp, err := r.send(r.pushScope(ctx), e, upload{
			method: http.MethodPut, url: e.url(r.ref, "manifests/"+ref.Object()),
			header: http.Header{"Content-Type": {mediaType}}, body: bytes.NewReader(p), size: int64(len(p)),
		})
		if err != nil {
			return err
		}
		header = resp.Header
		drain(resp)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("push manifest %s: %w", ref, err)
	}
	return header, nil
}

// send sends an upload to e, with authorization, and returns the response if it is a success. A
// request with a body is sent once: if the answer is a challenge, send processes it and returns
// errdefs.ErrUnavailable.
func (r *Repository) send(ctx context.Context, e *endpoint, q upload) (*http.Response, error) {
	for tries := 1; ; tries++ {
		resp, err := r.sendOnce(ctx, e, q)
		if err != nil {
			return nil, transfer.Foreign(ctx, err)
		}
		switch code := resp.StatusCode; {
		case code >= 200 && code < 300:
			return resp, nil
		case code == http.StatusUnauthorized && tries == 1:
			used := r.authorizer(e)
			if err := r.challenge(e, used, resp); err != nil {
				return nil, err
			}
			if q.body != nil {
				return nil, fmt.Errorf("%s requires new authentication: %w", e.Host, errdefs.ErrUnavailable)
			}
		case code == http.StatusMethodNotAllowed:
			drain(resp)
			return nil, fmt.Errorf("%s answered 405: it does not accept uploads: %w", e.Host, errdefs.ErrPermissionDenied)
		default:
			return nil, statusError(resp, e.Host, secretsOf(resp.Request)...)
		}
	}
}

// sendOnce sends a request and returns any response.
func (r *Repository) sendOnce(ctx context.Context, e *endpoint, q upload) (*http.Response, error) {
	caller := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	req := r.newRequest(ctx, e, q.url, request{})
	req.Method = q.method
	for k, v := range q.header {
		req.Header[k] = v
	}
	var body *watchedBody
	if q.body != nil && q.size > 0 {
		body = newWatchedBody(q.body, q.size, r.client.opts.Stall, cancel)
		req.Body, req.ContentLength = body, q.size
	} else if q.method != http.MethodHead {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	resp, used, err := r.try(e, e.upload, req)
	if bodyErr := body.end(); bodyErr != nil {
		if resp != nil {
			resp.Body.Close()
		}
		err = bodyErr
	} else if errors.Is(err, errStalled) {
		err = fmt.Errorf("%s does not accept bytes: %w", e.Host, errdefs.ErrUnavailable)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = newStallBody(caller, resp.Body, r.client.opts.Stall, cancel, used.private(e))
	return resp, nil
}

// A watchedBody is the body of a request. It keeps the error of its reader, and cancels the request
// if nothing reads it any more.
type watchedBody struct {
	stall time.Duration
	timer *time.Timer

	mu   sync.Mutex // guards what follows
	r    io.Reader
	left int64
	err  error
	over bool
}

func newWatchedBody(r io.Reader, size int64, stall time.Duration, cancel context.CancelCauseFunc) *watchedBody {
	return &watchedBody{r: r, left: size, stall: stall, timer: time.AfterFunc(stall, func() { cancel(errStalled) })}
}

// Read reads from the body.
func (b *watchedBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.over:
		return 0, errors.New("the request has ended")
	case b.err != nil:
		return 0, b.err
	}
	b.timer.Stop() // the time of the reader does not count
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.left, err = 0, errors.New("the body of a request is longer than its size")
	}
	if err == io.EOF && b.left > 0 {
		err = fmt.Errorf("the body of a request ended %d bytes early: %w", b.left, io.ErrUnexpectedEOF)
	}
	if err != nil && err != io.EOF {
		b.err = err
		return 0, err
	}
	if b.left == 0 {
		b.timer.Reset(uploadPatience)
	} else {
		b.timer.Reset(b.stall)
	}
	return n, err
}

// Close does nothing: transports call it at any time, and end marks the end of the request.
func (b *watchedBody) Close() error { return nil }

// end marks the end of reading and returns the error of the reader.
func (b *watchedBody) end() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	b.timer.Stop()
	return b.err
}

// uploader returns a transport like t with a longer response timeout.
func uploader(t http.RoundTripper) http.RoundTripper {
	if t, ok := t.(*http.Transport); ok {
		t = t.Clone()
		t.ResponseHeaderTimeout = uploadPatience
		t.WriteBufferSize = readBuffer
		return t
	}
	return t
}
