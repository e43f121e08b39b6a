package remote

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
)

// Via is the value of the Via header of every request to a registry. A facade that receives it was
// called by ballast.
const Via = "1.1 ballast"

// Options are the settings of a Client. The zero value works.
type Options struct {
	// HostsDir contains hosts.toml files in containerd's layout; empty means none.
	HostsDir string

	// CertsDirs returns the directories of containerd's own hosts.toml files. Their files with certificates (*.crt,
	// *.cert, *.key) count for registries that HostsDir sets none for. Nil means none.
	CertsDirs func() []string

	// Facade has the "host:port" addresses of this daemon's facade; requests are never sent to
	// them.
	Facade []string

	// Credentials returns the credentials of the node for a repository of a host, or the zero value if there are
	// none; see DockerCredentials. Nil means none. They are used by NodeRepository.
	Credentials func(host, repository string) (Credentials, error)

	// Shared reports whether every caller may use the credentials of the node for a host, named as
	// in references. Nil means none.
	Shared func(host string) bool

	// AllowHosts are hosts ("name", "name:port", an address or a network such as "10.0.0.0/8") that
	// registries may redirect to, or use as their token server, although they are not public.
	AllowHosts []string

	// NamedURLs are http and https URLs written by the operator: Client.Do may connect to their
	// hosts and ports at any address.
	NamedURLs []string

	// Offline reports whether a host, named as in references, is never asked. Nil means none.
	Offline func(host string) bool

	// MirrorOnly reports whether a host, named as in references, is never asked itself, only its mirrors. Nil
	// means none.
	MirrorOnly func(host string) bool

	// Peers are mirrors for the blobs of many registries, asked before those of hosts.toml.
	Peers []Peers

	// UserAgent is sent to all hosts that have none in Manners. Empty means "ballast".
	UserAgent string

	// Manners are the special request headers of hosts, named as in references. Nil means none.
	Manners map[string]Manner

	// Dialects serve hosts, named as in references, that are not registries. Nil means none.
	Dialects map[string]Dialect

	// Connections is the number of idle connections kept for a host. Zero means 16.
	Connections int

	// Stall is how long a response may take to start, and how long its body may then be slower than
	// 1 KiB/s. Zero means 30 seconds. Dragonfly has two minutes at least.
	Stall time.Duration
}

// A Manner is the set of special request headers for a registry. Empty fields have defaults.
type Manner struct {
	UserAgent string
	Accept    string // the accepted media types of a manifest
}

// A Dialect implements the distribution API for a host with another API. Its methods are safe for
// concurrent use.
type Dialect interface {
	// RoundTrip answers a request to the host. It sends its own requests with ways. A redirect that
	// it returns is followed like that of a registry, without credentials.
	RoundTrip(req *http.Request, ways Ways) (*http.Response, error)

	// Remind informs the Dialect of a manifest that it served for a repository before, perhaps in
	// another process.
	Remind(repository string, manifest []byte)
}

// Ways are transports that do not follow redirects. A body that stalls ends with errdefs.ErrUnavailable.
type Ways struct {
	Host    http.RoundTripper // to the host, at the address that the operator configured
	Outside http.RoundTripper // to redirect targets of the host, if a registry may redirect there; without Authorization
}

// Remind passes a manifest that was read from ref before to the dialect of the host. ok is false if
// the host has no dialect.
func (c *Client) Remind(ref Ref, manifest func() ([]byte, error)) (ok bool, err error) {
	d := c.opts.Dialects[ref.Host]
	if d == nil {
		return false, nil
	}
	p, err := manifest()
	if err == nil {
		d.Remind(ref.Repository, p)
	}
	return true, err
}

// IsRegistry reports whether a host has no dialect.
func (c *Client) IsRegistry(host string) bool { return c.opts.Dialects[host] == nil }

// Challenges reports whether a registry has asked for a token or a password, so that a caller should be asked for its
// credentials before the registry is.
func (c *Client) Challenges(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.hosts[host]
	return s != nil && s.challenges.Load()
}

// defaultStall is the default of Options.Stall.
const defaultStall = 30 * time.Second

// Limits of the caches of a Client.
const (
	maxRepositories = 512
	maxHosts        = 512
	hostsAge        = 10 * time.Minute // certificates can change without hosts.toml
)

// Client makes Repositories. All methods are safe for concurrent use.
type Client struct {
	opts   Options
	allow  allowList
	facade map[string]bool
	named  *guard          // of plain
	plain  *http.Transport // of Do

	mu    sync.Mutex
	hosts map[string]*hostSet     // guarded by mu, by host of the reference; at most maxHosts
	repos map[repoKey]*Repository // guarded by mu; at most maxRepositories

	seen seen

	counts map[string]*transfer.Counts // guarded by mu; by address of the mirrors that the operator configured
	origin transfer.Counts             // of all registries together: clients of the facade choose their names
}

type repoKey struct {
	ref   Ref // without tag and digest
	who   identity
	creds Credentials
}

// An identity selects the credentials with which a repository is read.
type identity int

const (
	nobody identity = iota
	caller          // those of the caller
	node            // those of Options
)

// New returns a client. It returns errdefs.ErrInvalidArgument if Options.AllowHosts, Options.NamedURLs or
// Options.Peers is invalid.
func New(o Options) (*Client, error) {
	allow, err := parseAllow(o.AllowHosts)
	if err != nil {
		return nil, err
	}
	for _, p := range o.Peers {
		if err := p.Check(); err != nil {
			return nil, err
		}
	}
	o.UserAgent = cmp.Or(o.UserAgent, "ballast")
	o.Connections = cmp.Or(o.Connections, 16)
	o.Stall = cmp.Or(o.Stall, defaultStall)
	c := &Client{
		opts:   o,
		allow:  allow,
		facade: map[string]bool{},
		hosts:  map[string]*hostSet{},
		repos:  map[repoKey]*Repository{},
		counts: map[string]*transfer.Counts{},
	}
	for _, f := range o.Facade {
		c.facade[loopbackName(f)] = true
	}
	return c, c.makePlain()
}

// Close closes idle connections. Repositories of the client continue to work.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.hosts {
		s.closeIdle()
	}
	c.plain.CloseIdleConnections()
}

// Repository returns access to the repository of ref, whose tag and digest are ignored and may be
// empty, with the credentials of a caller, or none if creds is nil. The credentials of the node are
// used only if they are shared. Repositories with the same name and credentials share their tokens.
// It returns errdefs.ErrInvalidArgument if the hosts.toml of the host is invalid, or if the host is
// the facade.
func (c *Client) Repository(ref Ref, creds *Credentials) (*Repository, error) {
	if creds == nil {
		return c.repository(ref, repoKey{who: nobody})
	}
	return c.repository(ref, repoKey{who: caller, creds: *creds})
}

// NodeRepository is Repository with the credentials of the node. It is only for work requested by
// the administrator of the node.
func (c *Client) NodeRepository(ref Ref) (*Repository, error) {
	return c.repository(ref, repoKey{who: node})
}

// repository returns the repository of ref for the identity in key.
func (c *Client) repository(ref Ref, key repoKey) (*Repository, error) {
	ref, err := ref.named()
	if err != nil {
		return nil, err
	}
	if c.facade[loopbackName(ref.Host)] {
		return nil, fmt.Errorf("host %s is the facade itself: %w", ref.Host, errdefs.ErrInvalidArgument)
	}
	if c.opts.Offline != nil && c.opts.Offline(ref.Host) {
		return nil, fmt.Errorf("%s is in upstream.offline, so it is not asked: %w", ref.Host, errdefs.ErrUnavailable)
	}
	key.ref = Ref{Host: ref.Host, Repository: ref.Repository}
	c.mu.Lock()
	defer c.mu.Unlock()
	set, err := c.hostSet(ref.Host)
	if err != nil {
		return nil, err
	}
	r := c.repos[key]
	if r == nil || r.set != set {
		r = &Repository{
			client: c, ref: key.ref, who: key.who, creds: key.creds, set: set,
			auths: map[*endpoint]*authorizer{}, targets: map[located]target{}, confirmed: map[question]*confirmation{},
		}
		c.repos[key] = r
	}
	r.used = time.Now()
	if len(c.repos) > maxRepositories {
		delete(c.repos, leastRecent(c.repos, func(r *Repository) time.Time { return r.used }))
	}
	return r, nil
}

// leastRecent returns the key of the value that was used least recently.
func leastRecent[K comparable, V any](m map[K]V, used func(V) time.Time) K {
	return slices.MinFunc(slices.Collect(maps.Keys(m)), func(a, b K) int { return used(m[a]).Compare(used(m[b])) })
}

// loopbackName maps all names of this machine to one, so that addresses can be compared.
func loopbackName(hostport string) string {
	name, port := hostname.Split(hostport)
	if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); name == "" || err == nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		name = "localhost"
	}
	return hostname.Join(name, port)
}
