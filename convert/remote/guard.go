package remote

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/convert/hostname"
	"github.com/containerd/errdefs"
	"golang.org/x/net/publicsuffix"
)

// A reach is the set of addresses that a host may have.
type reach int

// The reaches, in increasing order.
const (
	reachPublic  reach = iota // global unicast
	reachPrivate              // also private networks
	reachAny                  // also loopback and link-local
)

// A guard decides which addresses may be dialled for the hosts reached through one reference.
type guard struct {
	allow allowList

	// sameHost gives reachAny to hosts with the name of a named one, at any port.
	sameHost bool

	mu      sync.Mutex
	named   map[string]bool // guarded by mu: "host:port" of the reference and hosts.toml
	proxies map[string]bool // guarded by mu: "host:port" of proxies, which count only where dial connects to
}

// name adds a host, with the default port of the scheme if it has none.
func (g *guard) name(u *url.URL) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.named == nil {
		g.named = map[string]bool{}
	}
	g.named[hostPort(u)] = true
}

// hostPort returns "host:port" of u in its normal form.
func hostPort(u *url.URL) string {
	name, port := hostname.Split(u.Host)
	return hostname.Join(name, cmp.Or(port, hostname.DefaultPorts[u.Scheme]))
}

// reach returns the addresses that a host may have.
func (g *guard) reach(host, port string) reach {
	host, port = hostname.Split(net.JoinHostPort(host, port))
	if g.allow.host(host, port) {
		return reachAny
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.named[hostname.Join(host, port)] {
		return reachAny
	}
	best := reachPublic
	for n := range g.named {
		name, _ := hostname.Split(n)
		switch {
		case name == host && g.sameHost:
			return reachAny
		case sameSite(name, host):
			best = reachPrivate
		}
	}
	return best
}

// sameSite reports whether two hosts are the same or in the same registrable domain.
func sameSite(a, b string) bool {
	if a == b {
		return true
	}
	x, err := publicsuffix.EffectiveTLDPlusOne(a) // addresses have none
	if err != nil {
		return false
	}
	y, err := publicsuffix.EffectiveTLDPlusOne(b)
	return err == nil && x == y
}

func isIP(host string) bool {
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// check refuses a URL by its host name, before it is resolved here or by a proxy.
func (g *guard) check(u *url.URL) error {
	host, port, err := net.SplitHostPort(hostPort(u))
	if err != nil {
		return fmt.Errorf("host %.300q: %w: %w", u.Host, err, errdefs.ErrInvalidArgument)
	}
	r := g.reach(host, port)
	if ip, err := netip.ParseAddr(host); err == nil {
		return g.checkIP(ip, r)
	}
	if r == reachPublic && internalName(host) {
		return fmt.Errorf("host %.300q is internal; to allow it, list it in upstream.allow_hosts: %w", host, errdefs.ErrPermissionDenied)
	}
	return nil
}

// internalSuffixes are domains that are never public.
// https://www.rfc-editor.org/rfc/rfc6761, https://www.rfc-editor.org/rfc/rfc6762
var internalSuffixes = []string{".localhost", ".local", ".internal", ".svc", ".home.arpa"}

func internalName(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	for _, s := range internalSuffixes {
		if strings.HasSuffix(host, s) {
			return true
		}
	}
	return false
}

// Addresses that a registry must not name, besides loopback, link-local and multicast, and IPv6
// addresses outside globalUnicast.
// https://www.iana.org/assignments/iana-ipv4-special-registry
// https://www.iana.org/assignments/iana-ipv6-special-registry
var (
	blockedNets   = prefixes("0.0.0.0/8", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "2001::/23", "2002::/16")
	privateNets   = prefixes("100.64.0.0/10", "fec0::/10") // besides those of netip.Addr.IsPrivate
	globalUnicast = netip.MustParsePrefix("2000::/3")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(s ...string) []netip.Prefix {
	var l []netip.Prefix
	for _, p := range s {
		l = append(l, netip.MustParsePrefix(p))
	}
	return l
}

func within(l []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(l, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// checkIP refuses an address outside the reach. An IPv4 address in an IPv6 address (mapped or
// NAT64) is checked as IPv4.
func (g *guard) checkIP(ip netip.Addr, r reach) error {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	if r == reachAny || within(g.allow.nets, ip) {
		return nil
	}
	private := ip.IsPrivate() || within(privateNets, ip)
	public := ip.IsGlobalUnicast() && !within(blockedNets, ip) && (ip.Is4() || globalUnicast.Contains(ip))
	if private && r >= reachPrivate || public && !private {
		return nil
	}
	return fmt.Errorf("address %s is not public; to allow it, list it in upstream.allow_hosts: %w", ip, errdefs.ErrPermissionDenied)
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// dial wraps a dialer: proxies and hosts with reachAny are dialled directly, for others the resolved
// address is checked.
func (g *guard) dial(next dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		r := g.reach(host, port)
		if r == reachAny || g.isProxy(addr) {
			return next(ctx, network, addr)
		}
		d := net.Dialer{
			Timeout: 30 * time.Second,
			Control: func(_, address string, _ syscall.RawConn) error {
				ap, err := netip.ParseAddrPort(address)
				if err != nil {
					return err
				}
				return g.checkIP(ap.Addr(), r)
			},
		}
		return d.DialContext(ctx, network, addr)
	}
}

// proxy wraps the selection of a proxy: the operator configures proxies, so they may have any address.
func (g *guard) proxy(next func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	if next == nil {
		return nil
	}
	return func(req *http.Request) (*url.URL, error) {
		u, err := next(req)
		if u != nil {
			name, port := hostname.Split(u.Host)
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.proxies == nil {
				g.proxies = map[string]bool{}
			}
			g.proxies[hostname.Join(name, cmp.Or(port, hostname.DefaultPorts[u.Scheme], socksPort))] = true
		}
		return u, err
	}
}

// socksPort is the port of a proxy that is neither http nor https and has none.
const socksPort = "1080"

func (g *guard) isProxy(addr string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.proxies[hostname.Join(hostname.Split(addr))]
}

// An allowList is what the operator allows: hosts with or without a port, and networks.
type allowList struct {
	hosts map[string]bool
	nets  []netip.Prefix
}

// parseAllow parses the entries of Options.AllowHosts.
func parseAllow(entries []string) (allowList, error) {
	a := allowList{hosts: map[string]bool{}}
	for _, e := range entries {
		if p, err := netip.ParsePrefix(e); err == nil {
			a.nets = append(a.nets, p.Masked())
			continue
		}
		if ip, err := netip.ParseAddr(e); err == nil {
			a.nets = append(a.nets, netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()))
			continue
		}
		if !hostRE.MatchString(e) {
			return allowList{}, fmt.Errorf("allow_hosts: %q is not a host, host:port or network: %w", e, errdefs.ErrInvalidArgument)
		}
		a.hosts[hostname.Join(hostname.Split(e))] = true
	}
	return a, nil
}

func (a allowList) host(host, port string) bool {
	return a.hosts[host] || a.hosts[hostname.Join(host, port)]
}
