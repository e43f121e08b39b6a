package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
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
}

// String returns "host/repository".
func (r *Repository) String() string { return r.ref.Name() }

func (r *Repository) manner() Manner { return r.client.opts.Manners[r.ref.Host] }

func (r *Repository) userAgent() string { return cmp.Or(r.manner().UserAgent, r.client.opts.UserAgent) }

// HasCredentials reports whether there are credentials for one of its hosts.
func (r *Repository) HasCredentials() bool {
	return slices.ContainsFunc(r.set.endpoints, func(e *endpoint) bool {
		c, err := r.credentials(e, e.Host)
		return err != nil || c.Secret != ""
	})
}

// origin returns the registry in the reference; nil if it is never asked.
func (r *Repository) origin() *endpoint {
	if e := r.set.endpoints[len(r.set.endpoints)-1]; e.server {
		return e
	}
	return nil
}

// hosts returns the hosts for which may returns true.
func (r *Repository) hosts(may func(*endpoint) bool) (list []transfer.Source) {
	for _, e := range r.set.endpoints {
		if may(e) {
			list = append(list, transfer.Source{Endpoint: e.state, Fetcher: at{r, e}})
		}
	}
	return list
}

// has returns what reports whether a host has a capability.
func has(caps docker.HostCapabilities) func(*endpoint) bool {
	return func(e *endpoint) bool { return e.Capabilities.Has(caps) }
}

// forBlobs returns the attempts of a request for a blob.
func (r *Repository) forBlobs(retry transfer.Retry) *transfer.Attempts {
	return transfer.Ask(r.Endpoints(), retry)
}

// forUnverified returns the attempts of a request for bytes of a blob that nothing verifies: at the registry, and at
// its mirrors only if it is never asked.
func (r *Repository) forUnverified() *transfer.Attempts {
	if origin := r.origin(); origin != nil {
		return transfer.Ask(r.hosts(func(e *endpoint) bool { return e == origin }), retry)
	}
	return r.forBlobs(retry)
}

// forDocuments returns the attempts of a request for what peers do not have, as long as the hosts are unavailable.
func (r *Repository) forDocuments(ctx context.Context, may func(*endpoint) bool) *transfer.Attempts {
	again := retry
	again.Final = func(err error) bool { return !errdefs.IsUnavailable(err) || isQuota(err) || waitsFor(ctx, err) > 0 }
	t := transfer.Ask(r.hosts(func(e *endpoint) bool { return e.peers == nil && may(e) }), again)
	t.Aside = true
	return t
}

// asked returns the host that is asked.
func asked(t *transfer.Attempts) *endpoint { return t.Fetcher.(at).e }

// failure returns the error of attempts for something; nil if they had success.
func (r *Repository) failure(t *transfer.Attempts, what string) error {
	err := t.Err()
	if errors.Is(err, transfer.ErrNoSource) {
		err = fmt.Errorf("%s: hosts.toml has no host for this request: %w", r.ref.Host, errdefs.ErrNotFound)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// advise adds to an error of the registry what to do about missing or refused credentials.
func (r *Repository) advise(err error) error {
	if !errdefs.IsUnauthorized(err) {
		return err
	}
	switch shared := r.client.opts.Shared; {
	case r.who == caller:
		return fmt.Errorf("%w; use other credentials for %s", err, r)
	case r.who == node, shared != nil && shared(r.ref.Host):
		if !r.client.IsRegistry(r.ref.Host) { // it gives its own advice
			return err
		}
		return fmt.Errorf("%w; log in, for upstream.docker_config: docker login %s", err, r.ref.Host)
	}
	return fmt.Errorf("no credentials for %s: the pod needs imagePullSecrets (ctr: --user, nerdctl: ballast docker-credential), or list %s in upstream.share_credentials: %w", r, r.ref.Host, err)
}
