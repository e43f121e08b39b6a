package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/pelletier/go-toml/v2"
	"github.com/sirupsen/logrus"
)

// readBuffer is the buffer of a connection, in bytes. Large reads bypass it.
const readBuffer = 256 << 10

// maxHeader limits the header of a response, in bytes.
const maxHeader = 256 << 10

// An endpoint is a host of hosts.toml, or the registry of the reference itself.
type endpoint struct {
	docker.RegistryHost

	// server is true for the registry in the reference, false for a mirror.
	server bool

	// peers is the configuration of a host that is one of Options.Peers, and not of hosts.toml. It has only blobs.
	peers *Peers

	// state is what is known about the host, also from before the last change of hosts.toml.
	state *transfer.Endpoint

	// headless is set if the answer of the host to the HEAD of a manifest says nothing, although it has the manifest.
	headless atomic.Bool

	// dialect is true for a server that a Dialect answers for.
	dialect bool

	// private is true if hosts.toml adds credentials to each request: a header or a client
	// certificate.
	private bool

	// direct reaches Host only. outside reaches redirect targets, without client certificates.
	// plain reaches hosts of plain URLs: only ca of hosts.toml applies. realm reaches token servers
	// in the same site as Host, foreign all others, without client certificates and skip_verify.
	direct  http.RoundTripper
	upload  http.RoundTripper // direct with longer timeouts
	outside http.RoundTripper
	plain   http.RoundTripper
	realm   http.RoundTripper
	foreign http.RoundTripper
	guard   *guard // of outside
	auth    *guard // of realm and foreign

	transports []http.RoundTripper // that keep connections
}

// A roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A hostSet is the configuration of one host by hosts.toml.
type hostSet struct {
	endpoints []*endpoint
	stamp     string // of the file; see stampOf
	made      time.Time
	used      time.Time // guarded by Client.mu

	challenges atomic.Bool // the registry has asked for authentication
}

// needed returns until when the set was or will be needed: nobody makes the node forget for how long a mirror is not
// asked. It requires Client.mu.
func (s *hostSet) needed() time.Time {
	t := s.used
	for _, e := range s.endpoints {
		if rest := e.state.Resting(); rest.After(t) {
			t = rest
		}
	}
	return t
}

func (s *hostSet) closeIdle() {
	for _, e := range s.endpoints {
		for _, t := range e.transports {
			(&http.Client{Transport: t}).CloseIdleConnections()
		}
	}
}

// hostSet returns the hosts for the host of a reference, from the current hosts.toml. It requires
// c.mu.
func (c *Client) hostSet(host string) (*hostSet, error) {
	dir, err := hostDir(c.opts.HostsDir, host)
	if err != nil {
		return nil, err
	}
	stamp, err := stampOf(dir)
	if err != nil {
		return nil, err
	}
	if s := c.hosts[host]; s != nil && s.stamp == stamp && time.Since(s.made) < hostsAge {
		s.used = time.Now()
		return s, nil
	}
	endpoints, err := c.configure(host, dir)
	if err != nil {
		return nil, fmt.Errorf("hosts for %s: %w", host, err)
	}
	old := c.hosts[host]
	if old != nil {
		old.closeIdle()
	}
	c.know(endpoints, old)
	now := time.Now()
	s := &hostSet{endpoints: endpoints, stamp: stamp, made: now, used: now}
	if old != nil {
		s.challenges.Store(old.challenges.Load())
	}
	c.hosts[host] = s
	if len(c.hosts) > maxHosts {
		oldest := leastRecent(c.hosts, (*hostSet).needed) // clients of the facade choose the names
		c.hosts[oldest].closeIdle()                       // its repositories continue to work
		delete(c.hosts, oldest)
	}
	return s, nil
}

// reread has the next request read the hosts and the certificates for a host again: a new certificate need not change
// hosts.toml.
func (c *Client) reread(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.hosts[host]; s != nil {
		s.made = time.Time{}
	}
}

// know gives endpoints what is known about those with the same address in an earlier set of the same host, or
// nothing if old is nil. It requires c.mu.
func (c *Client) know(endpoints []*endpoint, old *hostSet) {
	for _, e := range endpoints {
		if old != nil {
			for _, o := range old.endpoints {
				if o.state.Name == e.state.Name && o.state.Mirror == e.state.Mirror {
					e.state = o.state
				}
			}
		}
		switch name := e.state.Name; {
		case e.state.Counts != nil: // it is in use
		case !e.state.Mirror:
			e.state.Counts = &c.origin
		default:
			if c.counts[name] == nil {
				c.counts[name] = &transfer.Counts{}
			}
			e.state.Counts = c.counts[name]
		}
	}
}

// A Mirror is a mirror of registries.
type Mirror struct {
	Address string
	Counts  *transfer.Counts
	For     map[string]*transfer.Endpoint // what is known about it, by host of references
}

// Mirrors returns the mirrors that are or were used, by address.
func (c *Client) Mirrors() []Mirror {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []Mirror
	for _, address := range slices.Sorted(maps.Keys(c.counts)) {
		m := Mirror{Address: address, Counts: c.counts[address], For: map[string]*transfer.Endpoint{}}
		for host, s := range c.hosts {
			for _, e := range s.endpoints {
				if e.state.Mirror && e.state.Name == address {
					m.For[host] = e.state
				}
			}
		}
		out = append(out, m)
	}
	return out
}

// ReceivedDirectly returns the bytes of blobs that registries themselves have sent, and not mirrors.
func (c *Client) ReceivedDirectly() int64 { return c.origin.Bytes.Load() }

// Direct reports whether any other client can use a host in the same way: it has no dialect, no
// hosts.toml, no certificates of containerd and no shared credentials of the node.
func (c *Client) Direct(host string) bool {
	if c.opts.Manners[host] != (Manner{}) || !c.IsRegistry(host) || c.opts.Shared != nil && c.opts.Shared(host) {
		return false
	}
	if dir, err := hostDir(c.opts.HostsDir, host); err != nil || dir != "" {
		return false
	}
	cas, clients, err := c.certificates(host)
	return err == nil && len(cas)+len(clients) == 0
}

// defaultDir is the directory of hosts that have none.
// https://github.com/containerd/containerd/blob/v2.4.2/docs/hosts.md
const defaultDir = "_default"

// hostDir returns the directory in root of a host, or of another of its names, or that of all others, or "".
func hostDir(root, host string) (string, error) {
	if root == "" {
		return "", nil
	}
	all := "" // of the hosts without a directory
	for _, name := range append([]string{host}, hostname.Others(host)...) {
		dir, err := config.HostDirFromRoot(root)(name)
		switch {
		case errdefs.IsNotFound(err):
		case err == nil && filepath.Base(dir) == defaultDir:
			all = dir
		default:
			return dir, err
		}
	}
	return all, nil
}

// stampOf returns a value that changes when the hosts.toml in dir changes.
func stampOf(dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	fi, err := os.Stat(filepath.Join(dir, "hosts.toml"))
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %d %d", dir, fi.Size(), fi.ModTime().UnixNano()), nil
}

// configure reads hosts.toml in dir and makes its endpoints, without those of the facade.
func (c *Client) configure(host, dir string) ([]*endpoint, error) {
	endpoints, err := c.endpoints(host, dir)
	if err != nil {
		return nil, err
	}
	var others []*endpoint
	for _, e := range endpoints {
		if !c.facade[loopbackName(e.Host)] {
			others = append(others, e)
		}
	}
	if !slices.ContainsFunc(others, func(e *endpoint) bool { return e.peers == nil }) {
		others, err = c.endpoints(host, "") // hosts.toml names only the facade
	}
	if err == nil && c.opts.MirrorOnly != nil && c.opts.MirrorOnly(host) {
		others = slices.DeleteFunc(others, func(e *endpoint) bool { return e.server })
		if len(others) == 0 {
			return nil, fmt.Errorf("%s is in upstream.mirror_only, and there is no mirror for it: %w", host, errdefs.ErrInvalidArgument)
		}
	}
	return others, err
}

func (c *Client) endpoints(host, dir string) ([]*endpoint, error) {
	transports := map[*http.Client]*http.Transport{}
	opts := config.HostOptions{
		UpdateClient: func(cl *http.Client) error {
			t, ok := cl.Transport.(*http.Transport)
			if !ok {
				return fmt.Errorf("transport is a %T: %w", cl.Transport, errdefs.ErrInternal)
			}
			t = t.Clone()
			c.tune(t)
			cl.Transport, transports[cl] = t, t
			return nil
		},
	}
	if dir != "" {
		opts.HostDir = func(string) (string, error) { return dir, nil }
	}
	quiet := logrus.New() // what it logs is either returned by understood or irrelevant
	quiet.SetOutput(io.Discard)
	ctx := log.WithLogger(context.Background(), logrus.NewEntry(quiet))
	hosts, err := config.ConfigureHosts(ctx, opts)(host)
	if err != nil {
		return nil, err
	}
	if err := understood(dir, hosts); err != nil {
		return nil, err
	}
	named := []*url.URL{{Scheme: "https", Host: host}}
	for _, h := range hosts {
		named = append(named, &url.URL{Scheme: h.Scheme, Host: h.Host})
	}
	var peers []*Peers
	for i, p := range c.opts.Peers {
		if p.For(host) { // not named: a redirect must not lead a registry to them
			t := http.DefaultTransport.(*http.Transport).Clone()
			c.tune(t)
			t.ResponseHeaderTimeout = p.stall(c.opts.Stall)
			h := p.host(t)
			transports[h.Client] = t
			hosts = slices.Insert(hosts, len(peers), h)
			peers = append(peers, &c.opts.Peers[i])
		}
	}
	var l []*endpoint
	for i, h := range hosts {
		t := transports[h.Client]
		if t == nil {
			return nil, fmt.Errorf("host %s has no transport: %w", h.Host, errdefs.ErrInternal)
		}
		direct := h.Client.Transport
		if i == len(hosts)-1 && hostname.Normal(h.Host) == host {
			if direct, t, err = c.certified(host, direct, t); err != nil {
				return nil, err
			}
		}
		e := &endpoint{RegistryHost: h, server: i == len(hosts)-1, direct: direct, upload: uploader(direct)}
		e.guard, e.auth = &guard{allow: c.allow}, &guard{allow: c.allow, sameHost: true}
		for _, u := range named {
			e.guard.name(u)
			e.auth.name(u)
		}
		e.state = &transfer.Endpoint{Name: (&url.URL{Scheme: h.Scheme, Host: h.Host, Path: h.Path}).String(), Mirror: !e.server, Patience: mirrorPatience}
		if i < len(peers) {
			e.peers, e.state.Patience = peers[i], peersPatience
			if e.peers.Kind == Dragonfly {
				e.state.Piece, e.state.Gather, e.state.LongGather = pieceLength, pieceGather, pieceLongGather
			}
		}
		e.private = givesCredentials(h, t)
		outside, plain, realm, foreign := guarded(t, e.guard), guarded(t, c.named), guarded(t, e.auth), guarded(t, e.auth)
		for _, t := range []*http.Transport{outside, plain, foreign} {
			t.TLSClientConfig.Certificates = nil
		}
		for _, t := range []*http.Transport{plain, foreign} {
			t.TLSClientConfig.InsecureSkipVerify = false
		}
		e.outside, e.plain, e.realm, e.foreign = outside, plain, realm, foreign
		e.transports = []http.RoundTripper{t, e.upload, outside, plain, realm, foreign}
		if d := c.opts.Dialects[host]; d != nil && e.server {
			direct := e.direct
			host := roundTripper(func(req *http.Request) (*http.Response, error) {
				e.guard.name(req.URL) // as the hosts of hosts.toml
				return direct.RoundTrip(req)
			})
			ways := Ways{Host: c.watched(host), Outside: c.watched(e.roundTripOutside)}
			e.direct = roundTripper(func(req *http.Request) (*http.Response, error) { return d.RoundTrip(req, ways) })
			e.upload, e.dialect = e.direct, true
		}
		l = append(l, e)
	}
	return l, nil
}

// roundTripOutside sends one request to a redirect target of e, without credentials.
func (e *endpoint) roundTripOutside(req *http.Request) (*http.Response, error) {
	if err := e.guard.check(req.URL); err != nil {
		return nil, err
	}
	req.Header.Del("Authorization")
	return e.outside.RoundTrip(req)
}

// givesCredentials reports whether hosts.toml adds credentials for a host.
func givesCredentials(h docker.RegistryHost, t *http.Transport) bool {
	for k := range h.Header {
		if !harmless(k) {
			return true
		}
	}
	c := t.TLSClientConfig
	return h.Scheme == "https" && c != nil && (len(c.Certificates) > 0 || c.GetClientCertificate != nil)
}

// tune configures a transport for large blobs: HTTP/1.1, no compression, a large buffer, and enough
// idle connections.
func (c *Client) tune(t *http.Transport) {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.DisableCompression = true
	t.ReadBufferSize = readBuffer
	t.MaxResponseHeaderBytes = maxHeader
	t.MaxIdleConns = 0
	t.MaxIdleConnsPerHost = c.opts.Connections
	t.IdleConnTimeout = 90 * time.Second
	t.ResponseHeaderTimeout = c.opts.Stall
}

// guarded returns a transport like t that dials only addresses that g allows.
func guarded(t *http.Transport, g *guard) *http.Transport {
	t = t.Clone()
	t.DialContext = g.dial(t.DialContext)
	t.Proxy = g.proxy(t.Proxy)
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{}
	}
	return t
}

// A hostTable has the keys that containerd's reader obeys for a host; any others are mistakes.
// https://github.com/containerd/containerd/blob/v2.4.2/core/remotes/docker/config/hosts.go
type hostTable struct {
	Capabilities any `toml:"capabilities"`
	CA           any `toml:"ca"`
	Client       any `toml:"client"`
	SkipVerify   any `toml:"skip_verify"`
	Header       any `toml:"header"`
	OverridePath any `toml:"override_path"`
	DialTimeout  any `toml:"dial_timeout"`
}

// understood returns an error if hosts does not reflect the hosts.toml in dir. containerd logs an
// invalid file and continues without it, and ignores keys that it does not know, which would ignore a mirror or header
// that the operator relies on, or let a mirror resolve tags.
func understood(dir string, hosts []docker.RegistryHost) error {
	if dir == "" {
		return nil
	}
	path := filepath.Join(dir, "hosts.toml")
	p, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var file struct {
		hostTable
		Server string               `toml:"server"`
		Hosts  map[string]hostTable `toml:"host"`
	}
	err = toml.NewDecoder(bytes.NewReader(p)).DisallowUnknownFields().Decode(&file)
	if unknown, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		row, _ := unknown.Errors[0].Position()
		return fmt.Errorf("%s:%d: unknown key %q: %w", path, row, strings.Join(unknown.Errors[0].Key(), "."), errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", path, err, errdefs.ErrInvalidArgument)
	}
	if len(hosts) < len(file.Hosts)+1 || file.Server != "" && !strings.Contains(file.Server, hosts[len(hosts)-1].Host) {
		return fmt.Errorf("%s: invalid setting: %w", path, errdefs.ErrInvalidArgument)
	}
	for _, h := range hosts {
		if h.Host == "" || h.Scheme != "https" && h.Scheme != "http" {
			return fmt.Errorf("%s: \"%s://%s\" is not an http or https URL with a host: %w", path, h.Scheme, h.Host, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
