package remote

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/hostname"
)

func TestGuardAddress(t *testing.T) {
	t.Parallel()
	allow, err := parseAllow([]string{"10.9.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	g := &guard{allow: allow}
	for _, tt := range []struct {
		ip              string
		public, private bool
	}{
		{"93.184.216.34", true, true},
		{"2606:2800:220:1::1", true, true},
		{"64:ff9b::5db8:d822", true, true}, // NAT64 of a public address
		{"::ffff:93.184.216.34", true, true},
		{"10.9.1.1", true, true}, // allowed
		{"10.0.0.1", false, true},
		{"172.16.0.1", false, true},
		{"172.31.255.255", false, true},
		{"172.32.0.1", true, true},
		{"192.168.1.1", false, true},
		{"100.64.0.1", false, true},
		{"100.128.0.1", true, true},
		{"fd00::1", false, true},
		{"::ffff:10.0.0.1", false, true},
		{"64:ff9b::a00:1", false, true},
		{"127.0.0.1", false, false},
		{"::1", false, false},
		{"0.0.0.0", false, false},
		{"0.1.2.3", false, false},
		{"::", false, false},
		{"169.254.169.254", false, false},
		{"fe80::1%eth0", false, false},
		{"::ffff:169.254.169.254", false, false},
		{"64:ff9b::7f00:1", false, false},
		{"64:ff9b:1::1", false, false},
		{"100::1", false, false},
		{"5f00::1", false, false},    // segment routing
		{"::10.0.0.1", false, false}, // IPv4-compatible
		{"fec0::1", false, true},
		{"2002:7f00:1::", false, false},
		{"2001:0:1::1", false, false},
		{"198.18.0.1", false, false},
		{"224.0.0.1", false, false},
		{"239.1.1.1", false, false},
		{"255.255.255.255", false, false},
		{"240.0.0.1", false, false},
		{"ff02::1", false, false},
	} {
		ip := netip.MustParseAddr(tt.ip)
		if got := g.checkIP(ip, reachPublic) == nil; got != tt.public {
			t.Errorf("%s as public: %t, want %t", tt.ip, got, tt.public)
		}
		if got := g.checkIP(ip, reachPrivate) == nil; got != tt.private {
			t.Errorf("%s as private: %t, want %t", tt.ip, got, tt.private)
		}
		if err := g.checkIP(ip, reachAny); err != nil {
			t.Errorf("%s as any: %v", tt.ip, err)
		}
	}
}

func TestGuardReach(t *testing.T) {
	t.Parallel()
	g := &guard{}
	realm := &guard{sameHost: true}
	for _, s := range []string{"https://registry.corp.example:5000", "https://10.0.0.5:5000", "https://team.github.io"} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		g.name(u)
		realm.name(u)
	}
	for _, tt := range []struct {
		host, port      string
		redirect, realm reach
	}{
		{"registry.corp.example", "5000", reachAny, reachAny},
		{"REGISTRY.corp.example.", "5000", reachAny, reachAny},
		{"registry.corp.example", "9000", reachPrivate, reachAny},
		{"minio.corp.example", "9000", reachPrivate, reachPrivate},
		{"corp.example.evil.test", "443", reachPublic, reachPublic},
		{"10.0.0.5", "9000", reachPrivate, reachAny},
		{"10.0.0.6", "5000", reachPublic, reachPublic},
		{"192.168.0.5", "5000", reachPublic, reachPublic},   // the end of an address is no domain
		{"evil.github.io", "443", reachPublic, reachPublic}, // a public suffix
		{"example", "443", reachPublic, reachPublic},
	} {
		if got := g.reach(tt.host, tt.port); got != tt.redirect {
			t.Errorf("redirect to %s:%s has reach %d, want %d", tt.host, tt.port, got, tt.redirect)
		}
		if got := realm.reach(tt.host, tt.port); got != tt.realm {
			t.Errorf("realm at %s:%s has reach %d, want %d", tt.host, tt.port, got, tt.realm)
		}
	}
}

// TestDialChecksAddress checks that a name that resolves to loopback is refused: the address is checked
// when it is dialled.
func TestDialChecksAddress(t *testing.T) {
	t.Parallel()
	g := &guard{}
	dial := g.dial(nil)
	for _, addr := range []string{"localhost:1", "127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"} {
		conn, err := dial(t.Context(), "tcp", addr)
		if err == nil {
			conn.Close()
			t.Errorf("%s was dialled", addr)
		} else if !strings.Contains(err.Error(), "not public") {
			t.Errorf("%s: %v, want a refusal", addr, err)
		}
	}
}

// TestProxyAloneIsReached: a proxy may have any address, and that says nothing about other ports of its host and other
// hosts of its domain.
func TestProxyAloneIsReached(t *testing.T) {
	t.Parallel()
	for proxy, address := range map[string]string{
		"http://10.0.0.1":                       "10.0.0.1:80",
		"https://10.0.0.1":                      "10.0.0.1:443",
		"socks5://10.0.0.1":                     "10.0.0.1:1080",
		"http://127.0.0.1:03128":                "127.0.0.1:3128",
		"http://[::1]:3128":                     "[::1]:3128",
		"http://Proxy.corp.internal:3128":       "proxy.corp.internal:3128",
		"http://user:word@proxy.corp.svc.:3128": "proxy.corp.svc.:3128",
	} {
		for _, g := range []*guard{{}, {sameHost: true}} {
			u, err := url.Parse(proxy)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := g.proxy(http.ProxyURL(u))(&http.Request{}); got != u || err != nil {
				t.Fatalf("%s: got %v, %v", proxy, got, err)
			}
			dialled := ""
			dial := g.dial(func(_ context.Context, _, address string) (net.Conn, error) {
				dialled = address
				return nil, errors.New("no network")
			})
			if _, err := dial(t.Context(), "tcp", address); dialled != address {
				t.Errorf("%s: %s is not dialled: %v", proxy, address, err)
			}
			for _, other := range []string{"10.0.0.1:8080", "127.0.0.1:8080", "[::1]:8080"} {
				if _, err := dial(t.Context(), "tcp", other); dialled == other || err == nil || !strings.Contains(err.Error(), "not public") {
					t.Errorf("%s: %s: got %v, want a refusal", proxy, other, err)
				}
			}
			for _, other := range []string{"10.0.0.1", "127.0.0.1:8080", "[::1]", "vault.corp.internal", "proxy.corp.internal", "vault.corp.svc"} {
				if err := g.check(&url.URL{Scheme: "https", Host: other}); err == nil {
					t.Errorf("%s: a registry may redirect to %s", proxy, other)
				}
			}
		}
	}
}

func FuzzRegistryMessage(f *testing.F) {
	f.Add([]byte(`{"errors":[{"code":"DENIED","message":"no\nway"}]}`))
	f.Add([]byte(`{"errors":{}}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		s := registryMessage(p)
		if len(s) > maxMessage+len("…") || strings.ContainsAny(s, "\n\r\x00\x1b") {
			t.Errorf("registryMessage(%q) = %q", p, s)
		}
	})
}

// asks is a Dialect that sends each request to an address.
type asks string

func (a asks) RoundTrip(req *http.Request, ways Ways) (*http.Response, error) {
	u, err := url.Parse(string(a))
	if err != nil {
		return nil, err
	}
	return ways.Host.RoundTrip((&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{}}).WithContext(req.Context()))
}

func (asks) Remind(string, []byte) {}

// TestAddressOfDialect: the operator configured the address that a Dialect asks, so its redirects are those of a host in
// hosts.toml: they may lead into the private network of its domain.
func TestAddressOfDialect(t *testing.T) {
	t.Parallel()
	c, err := New(Options{Dialects: map[string]Dialect{"hub.example": asks("http://mirror.corp.invalid:81/x")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r, err := c.Repository(Ref{Host: "hub.example", Repository: "a/b"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := r.origin()
	for _, want := range []map[string]reach{
		{"mirror.corp.invalid:81": reachPublic, "cdn.corp.invalid:443": reachPublic},
		{"mirror.corp.invalid:81": reachAny, "mirror.corp.invalid:82": reachPrivate, "cdn.corp.invalid:443": reachPrivate, "other.invalid:443": reachPublic},
	} {
		for address, want := range want {
			host, port := hostname.Split(address)
			if got := e.guard.reach(host, port); got != want {
				t.Errorf("%s: got %v, want %v", address, got, want)
			}
		}
		if resp, err := e.direct.RoundTrip(r.newRequest(t.Context(), e, e.url(r.ref, ""), request{})); err == nil {
			resp.Body.Close()
			t.Error("there is such a host")
		}
	}
}
