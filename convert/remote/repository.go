package remote

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxBlobs limits the blobs of which a repository remembers redirects and confirmations.
const maxBlobs = 4096

// A Repository reads one repository with one set of credentials, from the hosts in hosts.toml, in
// order. It is a transfer.Fetcher. All methods are safe for concurrent use.
type Repository struct {
	client *Client
	ref    Ref // without tag and digest
	who    identity
	creds  Credentials // of the caller
	set    *hostSet
	used   time.Time // guarded by Client.mu

	mu        sync.Mutex // guards the following
	auths     map[*endpoint]*authorizer
	targets   map[located]target         // at most maxBlobs
	confirmed map[question]*confirmation // at most maxBlobs
	uploads   map[digest.Digest]*url.URL // upload sessions started by failed mounts
}

// String returns "host/repository".
func (r *Repository) String() string { return r.ref.Name() }

func (r *Repository) manner() Manner { return r.client.opts.Manners[r.ref.Host] }

func (r *Repository) userAgent() string { return cmp.Or(r.manner().UserAgent, r.client.opts.UserAgent) }

// read calls f as each does, and again while the hosts are unavailable.
func (r *Repository) read(ctx context.Context, caps docker.HostCapabilities, f func(*endpoint) error) error {
	again := retry
	again.Final = func(err error) bool { return !errdefs.IsUnavailable(err) }
	return again.Do(ctx, func() error { return transfer.Foreign(ctx, r.each(ctx, caps, f)) })
}

// origin returns the registry in the reference; nil if it is never asked.
func (r *Repository) origin() *endpoint {
	if e := r.set.endpoints[len(r.set.endpoints)-1]; e.server {
		return e
	}
	return nil
}

// each calls f for the hosts with a capability until f returns nil; see inOrder.
func (r *Repository) each(ctx context.Context, caps docker.HostCapabilities, f func(*endpoint) error) error {
	var order []*endpoint
	for _, e := range r.set.endpoints {
		if e.Capabilities.Has(caps) && e.peers == nil {
			order = append(order, e)
		}
	}
	return r.inOrder(ctx, order, f)
}

// inOrder calls f for hosts until f returns nil. The error is that of the server in the reference if it was
// asked, otherwise the last one, followed by the texts of the others.
func (r *Repository) inOrder(ctx context.Context, order []*endpoint, f func(*endpoint) error) error {
	var main error
	var others []string
	server := false
	for _, e := range order {
		err := f(e)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !server {
			err, main = main, err
		}
		server = server || e.server
		if err != nil {
			others = append(others, err.Error())
		}
	}
	switch {
	case main == nil:
		return fmt.Errorf("%s: hosts.toml has no host for this request: %w", r.ref.Host, errdefs.ErrNotFound)
	case len(others) > 0:
		main = fmt.Errorf("%w (others: %s)", main, strings.Join(others, "; "))
	}
	return r.advise(main)
}

// advise adds what to do about missing or refused credentials.
func (r *Repository) advise(err error) error {
	if !errdefs.IsUnauthorized(err) {
		return err
	}
	switch shared := r.client.opts.Shared; {
	case r.who == caller:
		return fmt.Errorf("%w; use other credentials for %s", err, r)
	case r.who == node, shared != nil && shared(r.ref.Host):
		return fmt.Errorf("%w; log in, for upstream.docker_config: docker login %s", err, r.ref.Host)
	}
	return fmt.Errorf("no credentials for %s: the pod needs imagePullSecrets (ctr: --user), or list %s in upstream.share_credentials: %w", r, r.ref.Host, err)
}
