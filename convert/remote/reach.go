package remote

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/containerd/errdefs"
)

// Reach makes one request for /v2/ of a registry, or of its last mirror if it is never asked itself, in the way of
// other requests. It sends no credentials: neither those of the node nor headers of hosts.toml. Only a client
// certificate is shown, without which some registries have no connection. Any status below 500 is an answer: not all
// registries have that path, and most want a token for it. Errors have the category of those of a request.
func (c *Client) Reach(ctx context.Context, host string) error {
	host = hostname.Normal(host)
	if !wellFormedHost(host) {
		return malformed("host", host)
	}
	if c.opts.Offline != nil && c.opts.Offline(host) {
		return nil
	}
	c.mu.Lock()
	set, err := c.hostSet(host)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	e := set.endpoints[len(set.endpoints)-1]
	t := e.direct
	if e.dialect {
		t = e.transports[0] // the host itself
	}
	u := url.URL{Scheme: e.Scheme, Host: e.Host, Path: e.Path + "/"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", c.opts.UserAgent)
	req.Header.Set("Via", Via)
	resp, err := t.RoundTrip(req)
	if err != nil {
		return c.transportError(ctx, e.Host, host, err)
	}
	drain(resp)
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("%s answers %.100q: %w", e.Host, resp.Status, errdefs.ErrUnavailable)
	}
	return nil
}
