package remote

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Via is the value of the Via header of every request to a registry. A facade that receives
// it has been asked by ballast.
const Via = "1.1 ballast"

// Options are the settings of a Client. The zero value works.
type Options struct {
	// HostsDir has hosts.toml files in containerd's layout; empty means none.
	HostsDir string

	// Facade are the "host:port" that this daemon answers at; they are never asked.
	Facade []string

	// Credentials returns the credentials that the node has for a host, or the zero value if there
	// are none; see DockerCredentials. Nil means none. They are for NodeRepository.
	Credentials func(host string) (Credentials, error)

	// Shared says for which hosts, as in references, the credentials of the node are those of
	// everybody. Nil means none.
	Shared func(host string) bool

	// AllowHosts are hosts ("name", "name:port", an address or a network such as
	// "10.0.0.0/8") that registries may redirect to, or have their token server at,
	// although they are not public.
	AllowHosts []string

	// NamedURLs are http and https URLs that the operator wrote: Client.Do reaches their hosts,
	// at their ports, wherever they are.
	NamedURLs []string

	// UserAgent is sent to all hosts but those of Ollama. Empty means "ballast".
	UserAgent string

	// OllamaHosts are hosts that speak the dialect of the Ollama registry, besides
	// registry.ollama.ai and ollama.com.
	OllamaHosts []string

	// OllamaUserAgent is sent to them: they refuse models to clients that are too old.
	// Empty means "ollama/0.40.0".
	OllamaUserAgent string

	// Dialects translate for hosts, as in references, that are no registries. Nil means none.
	Dialects map[string]Dialect

	// Connections is the number of connections to a host that are kept. Zero means 16.
	Connections int

	// Stall is how long an answer may take to begin, and how long it may then bring less than
	// 1 KiB/s. Zero means 30 seconds.
	Stall time.Duration

	// Log is where the client reports; nil discards.
	Log *slog.Logger
}

// A Dialect answers requests of the distribution API for a host that speaks another one. Its methods are safe for
// concurrent use.
type Dialect interface {
	// RoundTrip answers a request to the host. What it needs itself it gets by ways. A redirect that it answers
	// is followed as one of a registry, without credentials.
	RoundTrip(req *http.Request, ways Ways) (*http.Response, error)

	// Remind tells of a manifest that it answered for a repository some time, maybe in another process.
	Remind(repository string, manifest []byte)
}

// Ways are transports, neither of which follows redirects.
type Ways struct {
	Host    http.RoundTripper // to where the operator wants the host to be asked
	Outside http.RoundTripper // to what that redirects to: only where a registry may lead
}

// A dialectTransport is a Dialect as an http.RoundTripper.
type dialectTransport struct {
	Dialect
	ways Ways
}

// RoundTrip answers a request.
func (t *dialectTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.Dialect.RoundTrip(req, t.ways)
}

// CloseIdleConnections closes those of the host.
func (t *dialectTransport) CloseIdleConnections() {
	if c, ok := t.ways.Host.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Remind tells the dialect of the host of ref of a manifest that was read from there before. ok is false if it has none.
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

// The defaults of Options.
const (
	defaultUserAgent       = "ballast"
	defaultOllamaUserAgent = "ollama/0.40.0"
	defaultConnections     = 16
	defaultStall           = 30 * time.Second
)

// Limits of what a Client remembers.
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
	ollama map[string]bool
	log    *slog.Logger
	named  *guard          // of plain
	plain  *http.Transport // of Do

	mu    sync.Mutex
	hosts map[string]*hostSet       // guarded by mu, by host of the reference; at most maxHosts
	repos map[repoKey]*Repository   // guarded by mu
	used  map[*Repository]time.Time // guarded by mu
}

type repoKey struct {
	ref   Ref // without tag and digest
	who   identity
	creds Credentials
}

// An identity says whose credentials a repository is read with.
type identity int

const (
	nobody identity = iota
	caller          // those that a caller gave
	node            // those of Options
)

// New returns a client. It returns errdefs.ErrInvalidArgument if Options.AllowHosts or
// Options.NamedURLs is wrong.
func New(o Options) (*Client, error) {
	allow, err := parseAllow(o.AllowHosts)
	if err != nil {
		return nil, err
	}
	if o.UserAgent == "" {
		o.UserAgent = defaultUserAgent
	}
	if o.OllamaUserAgent == "" {
		o.OllamaUserAgent = defaultOllamaUserAgent
	}
	if o.Connections == 0 {
		o.Connections = defaultConnections
	}
	if o.Stall == 0 {
		o.Stall = defaultStall
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Client{
		opts:   o,
		allow:  allow,
		log:    o.Log,
		facade: map[string]bool{},
		ollama: map[string]bool{"registry.ollama.ai": true, "ollama.com": true},
		hosts:  map[string]*hostSet{},
		repos:  map[repoKey]*Repository{},
		used:   map[*Repository]time.Time{},
	}
	for _, f := range o.Facade {
		c.facade[loopbackName(f)] = true
	}
	for _, h := range o.OllamaHosts {
		c.ollama[strings.ToLower(h)] = true
	}
	return c, c.makePlain()
}

// Close closes idle connections. Repositories of the client still work.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.hosts {
		s.closeIdle()
	}
	c.plain.CloseIdleConnections()
}

// Repository returns access to the repository of ref, of which the tag and the digest do not
// matter and can be empty, for somebody who gave credentials, or none if they are nil. Those of the node
// are used only where they are shared. Repositories with the same name and credentials share their tokens.
// It returns errdefs.ErrInvalidArgument if hosts.toml for the host is not understood, or if
// the host is the facade.
func (c *Client) Repository(ref Ref, creds *Credentials) (*Repository, error) {
	if creds == nil {
		return c.repository(ref, repoKey{who: nobody})
	}
	return c.repository(ref, repoKey{who: caller, creds: *creds})
}

// NodeRepository is Repository with the credentials of the node. It is for work that the node's
// administrator asked for, and for nobody else.
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
	key.ref = Ref{Host: ref.Host, Repository: ref.Repository}
	c.mu.Lock()
	defer c.mu.Unlock()
	set, err := c.hostSet(ref.Host)
	if err != nil {
		return nil, err
	}
	r := c.repos[key]
	if r == nil || r.set != set {
		delete(c.used, r)
		r = newRepository(c, key, set)
		c.repos[key] = r
	}
	c.used[r] = time.Now()
	if len(c.repos) > maxRepositories {
		c.forgetOldest()
	}
	return r, nil
}

// forgetOldest drops the repository that was used the longest ago. It needs c.mu.
func (c *Client) forgetOldest() {
	var oldest repoKey
	var at time.Time
	for k, r := range c.repos {
		if t := c.used[r]; at.IsZero() || t.Before(at) {
			oldest, at = k, t
		}
	}
	delete(c.used, c.repos[oldest])
	delete(c.repos, oldest)
}

// loopbackName maps the names of this machine to one, so that addresses can be compared.
func loopbackName(hostport string) string {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		host, port = hostport, ""
	}
	host = strings.ToLower(host)
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()) {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}
