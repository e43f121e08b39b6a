package remote

import (
	"fmt"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/containerd/errdefs"
)

// maxTokenSize limits the response of a token server, in bytes.
const maxTokenSize = 1 << 20

// An authorizer is containerd's authorizer for one endpoint that records whether it used
// credentials.
type authorizer struct {
	docker.Authorizer

	// secret is set if the authorization it adds contains, or was obtained with, credentials.
	secret atomic.Bool
}

// private reports whether requests to e that a authorizes carry credentials.
func (a *authorizer) private(e *endpoint) bool { return e.private || a.secret.Load() }

// authorizer returns the authorizer of e.
func (r *Repository) authorizer(e *endpoint) *authorizer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.auths[e] == nil {
		r.auths[e] = r.newAuthorizer(e)
	}
	return r.auths[e]
}

// renew replaces the authorizer of e if it is still used, and returns the current one.
func (r *Repository) renew(e *endpoint, used *authorizer) *authorizer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.auths[e] == used {
		r.auths[e] = r.newAuthorizer(e)
	}
	return r.auths[e]
}

// newAuthorizer returns containerd's authorizer (Basic, Bearer, identity tokens) with a client for
// token servers that refuses redirects and large responses.
func (r *Repository) newAuthorizer(e *endpoint) *authorizer {
	a := &authorizer{}
	a.Authorizer = docker.NewDockerAuthorizer(
		docker.WithAuthClient(&http.Client{
			Transport: roundTripper(e.roundTripRealm),
			Timeout:   r.client.opts.Stall,
		}),
		docker.WithAuthHeader(http.Header{"User-Agent": {r.userAgent()}}),
		docker.WithAuthCreds(func(host string) (string, string, error) {
			c, err := r.credentials(e, host)
			if err != nil {
				return "", "", fmt.Errorf("%w: %w", errCredentials, err)
			}
			if c.Secret != "" { // a name without a secret is not sent
				a.secret.Store(true)
			}
			return c.Username, c.Secret, nil
		}),
	)
	return a
}

// credentials returns the credentials of the caller for the registry in the reference and for peers that are trusted
// with them, and those of the node for the node or where they are shared.
func (r *Repository) credentials(e *endpoint, host string) (Credentials, error) {
	o := r.client.opts
	asServer := e.server || e.peers != nil && e.peers.Trusted
	if asServer && r.who == caller {
		return r.creds, nil
	}
	at := []struct{ host, repository string }{{host, r.ref.Repository}}
	if below, ok := strings.CutPrefix(e.Path, "/v2/"); ok { // override_path
		at[0].repository = below + "/" + r.ref.Repository
	}
	if asServer {
		at = append(at, struct{ host, repository string }{r.ref.Host, r.ref.Repository})
	}
	for _, n := range at {
		if o.Credentials == nil || r.who != node && (o.Shared == nil || !o.Shared(n.host)) {
			continue
		}
		if c, err := o.Credentials(n.host, n.repository); err != nil || c != (Credentials{}) {
			return c, err
		}
	}
	return Credentials{}, nil
}

// hasHigherLimit reports whether a dialect refuses a request without credentials because of a limit, and there are
// some, which have a limit of their own.
func (r *Repository) hasHigherLimit(e *endpoint, used *authorizer, resp *http.Response) bool {
	if resp.StatusCode != http.StatusTooManyRequests || !e.dialect || used.private(e) {
		return false
	}
	c, err := r.credentials(e, e.Host)
	return err == nil && c.Secret != ""
}

// challenge processes a 401 of e, or that of hasHigherLimit, and closes it. The next Authorize gets the token.
func (r *Repository) challenge(e *endpoint, used *authorizer, resp *http.Response) error {
	p := drain(resp) // only for the error message
	for _, c := range auth.ParseAuthHeader(resp.Header) {
		if c.Scheme != auth.BearerAuth {
			continue
		}
		if err := e.checkRealm(resp.Request.URL, c.Parameters["realm"]); err != nil {
			return fmt.Errorf("%s: %w", e.Host, err)
		}
	}
	if e.server {
		r.set.challenges.Store(true)
	}
	a := r.renew(e, used)
	if err := a.AddResponses(resp.Request.Context(), []*http.Response{resp}); err != nil {
		err = authError(e.Host, err)
		if msg := registryMessage(p); msg != "" && errdefs.IsUnauthorized(err) {
			err = fmt.Errorf("%w (%s)", err, msg)
		}
		return err
	}
	return nil
}

// checkRealm refuses a token server that the registry at from must not name: credentials are sent
// to it, and the registry chooses its address.
func (e *endpoint) checkRealm(from *url.URL, realm string) error {
	bad := func(why string) error {
		return fmt.Errorf("token server refused: %s: %w", why, errdefs.ErrPermissionDenied)
	}
	u, err := url.Parse(realm)
	switch {
	case err != nil || u.Hostname() == "":
		return bad("its address is not a URL")
	case u.User != nil:
		return bad("its address has a user name")
	case u.Scheme != "https" && u.Scheme != "http":
		return bad(fmt.Sprintf("scheme %.20q", u.Scheme))
	}
	host, port, err := net.SplitHostPort(hostPort(u))
	if err != nil {
		return bad("its address is not a URL")
	}
	if u.Scheme == "http" && (from.Scheme != "http" || e.auth.reach(host, port) != reachAny) {
		return bad(fmt.Sprintf("%.300q is not https", u.Host))
	}
	if err := e.auth.check(u); err != nil {
		return bad(err.Error())
	}
	return nil
}

// roundTripRealm sends one request of containerd's authorizer to a token server. The headers of
// hosts.toml are sent only to the host they are for.
func (e *endpoint) roundTripRealm(req *http.Request) (*http.Response, error) {
	own := &url.URL{Scheme: req.URL.Scheme, Host: e.Host}
	next := e.foreign
	if sameSite(strings.ToLower(req.URL.Hostname()), strings.ToLower(own.Hostname())) {
		next = e.realm
	}
	if sameOrigin(own, req.URL) {
		req = req.Clone(req.Context())
		for k, v := range e.Header {
			if k = textproto.CanonicalMIMEHeaderKey(k); k != "Authorization" && k != "User-Agent" {
				req.Header[k] = append([]string(nil), v...)
			}
		}
	}
	resp, err := next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if isRedirect(resp.StatusCode) {
		resp.Body.Close()
		return nil, fmt.Errorf("redirect refused: %w", errdefs.ErrPermissionDenied)
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxTokenSize)
	return resp, nil
}
