package remote

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// Timeouts for hosts of plain URLs.
const (
	dialTimeout = 30 * time.Second
	tlsTimeout  = 10 * time.Second
)

// makePlain prepares Do.
func (c *Client) makePlain() error {
	c.named = &guard{allow: c.allow}
	for _, s := range c.opts.NamedURLs {
		u, err := url.Parse(s)
		if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
			return fmt.Errorf("%.300q is not an http or https URL: %w", s, errdefs.ErrInvalidArgument)
		}
		c.named.name(u)
	}
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout: tlsTimeout,
	}
	c.tune(t)
	c.plain = guarded(t, c.named)
	return nil
}

// Do sends a GET or HEAD for a plain URL, which may be hostile, and returns the response with any
// status, like an http.Client. Credentials and cookies are never sent, and the body is not decoded.
// At most ten redirects are followed, but not from https to http. An http URL, or an address that
// is not public, returns errdefs.ErrPermissionDenied unless its host is in Options.AllowHosts or
// Options.NamedURLs. A body that stalls ends with errdefs.ErrUnavailable. Of hosts.toml only ca
// applies.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		return nil, fmt.Errorf("method %.20q: %w", req.Method, errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := c.followPlain(ctx, req)
	if err != nil {
		cancel(nil)
		return nil, transfer.Foreign(req.Context(), err)
	}
	resp.Body = newStallBody(req.Context(), resp.Body, c.opts.Stall, cancel, false)
	return resp, nil
}

func (c *Client) followPlain(ctx context.Context, req *http.Request) (*http.Response, error) {
	header := req.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	for _, k := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
		header.Del(k)
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", c.opts.UserAgent)
	}
	return redirected(req.URL, 0, func(u *url.URL) (*http.Response, error) {
		if err := c.checkPlain(u); err != nil {
			return nil, err
		}
		transport, err := c.plainFor(u)
		if err != nil {
			return nil, err
		}
		resp, err := transport.RoundTrip((&http.Request{Method: req.Method, URL: u, Host: u.Host, Header: header.Clone()}).WithContext(ctx))
		if err != nil {
			return nil, c.transportError(ctx, u.Host, u.Host, err)
		}
		return resp, nil
	})
}

// plainFor returns the transport for a plain URL, with the ca of its hosts.toml.
func (c *Client) plainFor(u *url.URL) (http.RoundTripper, error) {
	dir, err := hostDir(c.opts.HostsDir, u.Host)
	if err != nil || dir == "" {
		return c.plain, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	set, err := c.hostSet(u.Host)
	if err != nil {
		return nil, err
	}
	for _, e := range set.endpoints {
		if e.Host == u.Host && e.Scheme == u.Scheme {
			return e.plain, nil
		}
	}
	return c.plain, nil
}

// checkPlain refuses a plain URL by its scheme and host name.
func (c *Client) checkPlain(u *url.URL) error {
	refused := func(why string) error {
		return fmt.Errorf("URL refused: %s: %w", why, errdefs.ErrPermissionDenied)
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return refused(fmt.Sprintf("scheme %.20q", u.Scheme))
	case u.User != nil:
		return refused("it has a user name")
	case u.Hostname() == "":
		return refused("it has no host")
	case c.facade[loopbackName(hostPort(u))]:
		return refused("it is the facade itself")
	}
	host, port, err := net.SplitHostPort(hostPort(u))
	if err != nil {
		return refused("its host is not well-formed")
	}
	if u.Scheme == "http" && c.named.reach(host, port) != reachAny {
		return refused(fmt.Sprintf("%.300q is not https; to allow it, list %.300q in upstream.allow_hosts", u.Host, hostPort(u)))
	}
	return c.named.check(u)
}
