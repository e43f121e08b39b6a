package remote

import (
	"net/http"
	"time"
)

// Tests count requests at mirrors and registries. How slow they are on a busy machine does not matter.
func init() { mirrorPatience, peersPatience, confirmTime = -1, -1, time.Hour }

// MaxHosts is maxHosts.
const MaxHosts = maxHosts

// Hosts returns the number of hosts in the cache.
func Hosts(c *Client) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.hosts)
}

// Ask looks up credentials with a time limit.
var Ask = ask

// Expire ends what a registry has said about blobs.
func Expire(r *Repository) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.confirmed {
		c.until = time.Now().Add(-time.Second)
	}
}

// Wrap puts a RoundTripper between c and the hosts for a host of references.
func Wrap(c *Client, host string, wrap func(http.RoundTripper) http.RoundTripper) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	set, err := c.hostSet(host)
	if err != nil {
		return err
	}
	for _, e := range set.endpoints {
		e.direct = wrap(e.direct)
	}
	return nil
}
