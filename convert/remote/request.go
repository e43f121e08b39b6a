package remote

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// maxRedirects limits the redirects of one request.
const maxRedirects = 10

// maxTries limits the attempts of one request to get the right token.
const maxTries = 4

// A request is sent to the hosts of a repository.
type request struct {
	path   string // below the repository, such as "manifests/latest"
	accept string
	ranges string // value of Range; empty means the whole blob
	query  string // of a following page; empty for the first
	head   bool   // without a body
	at     target // of an earlier response, which is asked instead of the host; zero: the host itself
}

func (q request) method() string {
	if q.head {
		return http.MethodHead
	}
	return http.MethodGet
}

// A response is a successful response, with its target if the registry redirected to another origin.
type response struct {
	*http.Response
	target
}

// do sends q to e, authenticates if required, follows redirects, and returns the response
// if it is a success. Its body ends with errdefs.ErrUnavailable if it stalls.
func (r *Repository) do(ctx context.Context, e *endpoint, q request) (out *response, err error) {
	own, cancel := context.WithCancelCause(docker.WithScope(ctx, "repository:"+r.ref.Repository+":pull"))
	defer func() {
		switch {
		case err == nil:
			out.Body = newStallBody(ctx, out.Body, e.peers.stall(r.client.opts.Stall), cancel, out.private)
		case e.server:
			err = r.advise(err)
			fallthrough
		default:
			cancel(nil)
		}
	}()
	if q.at.url != nil {
		return r.outside(own, e, q.at, q, 0)
	}
	u := e.url(r.ref, q.path)
	if q.query != "" {
		u.RawQuery = q.query
	}
	challenged := false
	for tries, hops := 0, 0; ; {
		req := r.newRequest(own, e, u, q)
		resp, used, err := r.try(e, e.direct, req)
		if err != nil {
			// The failed token request may be that of another caller that has ended.
			if tries++; tries < maxTries && ctx.Err() == nil && (errors.Is(err, context.Canceled) || isDeadline(err)) {
				challenged = false
				continue
			}
			return nil, err
		}
		if err := e.peers.ownError(resp); err != nil {
			return nil, err
		}
		switch {
		case resp.StatusCode == http.StatusUnauthorized, !challenged && r.hasHigherLimit(e, used, resp):
			if tries++; challenged || tries >= maxTries {
				return nil, statusError(resp, e.Host, secretsOf(req)...)
			}
			if err := r.challenge(e, used, resp); err != nil {
				return nil, err
			}
			challenged = true
		case isRedirect(resp.StatusCode):
			next, err := location(resp)
			if err != nil {
				return nil, err
			}
			if hops++; hops > maxRedirects {
				return nil, tooManyRedirects(e.Host)
			}
			if !sameOrigin(next, resp.Request.URL) {
				return r.outside(own, e, target{next, used.private(e)}, q, hops)
			}
			next.Host = u.Host // containerd's authorizer distinguishes spellings of a host
			u = next
		case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent:
			return &response{resp, target{private: used.private(e)}}, nil
		default:
			return nil, limitError(resp, e.Host, !used.private(e), e.dialect, statusError(resp, e.Host, secretsOf(req)...))
		}
	}
}

// isDeadline reports whether err is the deadline of a context, and not a timeout of a connection, for which errors.Is
// says the same.
func isDeadline(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && error(e) == context.DeadlineExceeded
}

// try sends one request to e itself over a transport, with the current authorization. It returns the
// authorizer that it used.
func (r *Repository) try(e *endpoint, t http.RoundTripper, req *http.Request) (*http.Response, *authorizer, error) {
	a := r.authorizer(e)
	if err := a.Authorize(req.Context(), req); err != nil {
		r.renew(e, a) // containerd's authorizer keeps the result of a token request, even an error
		return nil, nil, authError(e.Host, err)
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, nil, r.client.transportError(req.Context(), e.Host, r.ref.Host, err)
	}
	return resp, a, nil
}

// outside gets a redirect target of e without credentials.
func (r *Repository) outside(ctx context.Context, e *endpoint, to target, q request, hops int) (*response, error) {
	resp, err := redirected(to.url, hops, func(u *url.URL) (*http.Response, error) {
		if err := e.guard.check(u); err != nil {
			return nil, fmt.Errorf("%s redirects to %.300q: %w", e.Host, u.Host, err)
		}
		req := (&http.Request{Method: q.method(), URL: u, Host: u.Host, Header: http.Header{}}).WithContext(ctx)
		q.set(req.Header)
		req.Header.Set("User-Agent", r.userAgent())
		resp, err := e.outside.RoundTrip(req)
		if err != nil {
			return nil, fmt.Errorf("%s redirects to %.300q: %w", e.Host, u.Host, r.client.transportError(ctx, u.Host, r.ref.Host, err))
		}
		return resp, nil
	})
	if err != nil {
		return nil, err
	}
	u := resp.Request.URL
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
		return &response{resp, target{u, to.private}}, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		// Not due to credentials: a signed address has expired.
		resp.Body.Close()
		return nil, fmt.Errorf("%s redirects to %.300q, which answered %d: %w", e.Host, u.Host, resp.StatusCode, errdefs.ErrUnavailable)
	}
	return nil, statusError(resp, u.Host)
}

// redirected calls send for u, and for the targets of redirects after the given number of them. It
// returns the first response that is no redirect.
func redirected(u *url.URL, hops int, send func(*url.URL) (*http.Response, error)) (*http.Response, error) {
	for from := u; ; hops++ {
		if hops > maxRedirects {
			return nil, tooManyRedirects(from.Host)
		}
		resp, err := send(u)
		if err != nil || !isRedirect(resp.StatusCode) {
			return resp, err
		}
		if u, err = location(resp); err != nil {
			return nil, err
		}
	}
}

// url returns the address of a path below the repository.
func (e *endpoint) url(ref Ref, below string) *url.URL {
	u := &url.URL{Scheme: e.Scheme, Host: e.Host, Path: path.Join("/", e.Path, ref.Repository, below)}
	if e.Host != ref.Host && !(ref.Host == "docker.io" && e.Host == "registry-1.docker.io") {
		u.RawQuery = url.Values{"ns": {ref.Host}}.Encode()
	}
	return u
}

func (r *Repository) newRequest(ctx context.Context, e *endpoint, u *url.URL, q request) *http.Request {
	h := http.Header{}
	for k, v := range e.Header {
		h[textproto.CanonicalMIMEHeaderKey(k)] = append([]string(nil), v...)
	}
	if h.Get("User-Agent") == "" {
		h.Set("User-Agent", r.userAgent())
	}
	h.Set("Via", Via)
	q.set(h)
	return (&http.Request{Method: q.method(), URL: u, Host: u.Host, Header: h}).WithContext(ctx)
}

func (q request) set(h http.Header) {
	h.Set("Accept-Encoding", "identity")
	if q.accept != "" {
		h.Set("Accept", q.accept)
	}
	if q.ranges != "" {
		h.Set("Range", q.ranges)
	}
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// location returns the target of a redirect and closes the response. Errors do not contain the
// address, which may be signed.
func location(resp *http.Response) (*url.URL, error) {
	drain(resp)
	from := resp.Request.URL
	u, err := from.Parse(resp.Header.Get("Location"))
	bad := func(why string) error {
		return fmt.Errorf("%.300q: redirect refused: %s: %w", from.Host, why, errdefs.ErrPermissionDenied)
	}
	switch {
	case err != nil || resp.Header.Get("Location") == "":
		return nil, bad("it has no valid Location")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, bad(fmt.Sprintf("scheme %.20q", u.Scheme))
	case u.User != nil:
		return nil, bad("it has a user name")
	case u.Hostname() == "":
		return nil, bad("it has no host")
	case from.Scheme == "https" && u.Scheme != "https":
		return nil, bad("from https to http")
	}
	u.Fragment, u.RawFragment = "", ""
	return u, nil
}

func tooManyRedirects(host string) error {
	return fmt.Errorf("%s: more than %d redirects: %w", host, maxRedirects, errdefs.ErrFailedPrecondition)
}

// sameOrigin reports whether scheme, host and port are the same.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && hostPort(a) == hostPort(b)
}

// transportError adds the host to an error of a transport, and distinguishes a stall from the end
// of the caller. Errors that a retry does not fix are errdefs.ErrFailedPrecondition: an untrusted
// certificate, a server without TLS; their cure is in the hosts.toml of the registry.
func (c *Client) transportError(ctx context.Context, host, registry string, err error) error {
	file := filepath.Join(c.opts.HostsDir, registry, "hosts.toml")
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", host, context.Cause(ctx))
	}
	if errdefs.IsPermissionDenied(err) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", host, err)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		c.reread(registry)
		return fmt.Errorf("%s: %w; to trust it, set ca in %s: %w", host, err, file, errdefs.ErrFailedPrecondition)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return fmt.Errorf("%s does not speak TLS; for plain HTTP, write server = \"http://%s\" to %s: %w", host, host, file, errdefs.ErrFailedPrecondition)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return fmt.Errorf("%s: no such host in DNS; check the name: %w", host, errdefs.ErrUnavailable)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" && op.Addr != nil {
		switch {
		case op.Addr.String() == host:
			return fmt.Errorf("%s does not answer: %w: %w", host, op.Err, errdefs.ErrUnavailable)
		case host == registry && loopbackName(host) == loopbackName("localhost"):
			return fmt.Errorf("%s does not answer at port 443: %w; write the port of a registry of this machine: %s:5000/NAME: %w", host, op.Err, host, errdefs.ErrUnavailable)
		}
	}
	return fmt.Errorf("%s: %w: %w", host, err, errdefs.ErrUnavailable)
}

// harmless reports whether a header never has credentials. Unknown headers may have some.
func harmless(header string) bool {
	switch header = textproto.CanonicalMIMEHeaderKey(header); header {
	case "Accept", "Accept-Encoding", "Range", "User-Agent", "Via":
		return true
	}
	return strings.HasPrefix(header, "X-Dragonfly-") // settings of a peer-to-peer proxy
}

// secretsOf returns the strings that must not appear in an error: the values of headers, and what
// they encode.
func secretsOf(req *http.Request) []string {
	var l []string
	for k, vs := range req.Header {
		if harmless(k) {
			continue
		}
		for _, v := range vs {
			l = append(l, v)
			scheme, rest, _ := strings.Cut(v, " ")
			if rest != "" {
				l = append(l, rest)
			}
			if p, err := base64.StdEncoding.DecodeString(rest); err == nil && strings.EqualFold(scheme, "basic") {
				_, secret, _ := strings.Cut(string(p), ":")
				l = append(l, string(p), secret)
			}
		}
	}
	return l
}
