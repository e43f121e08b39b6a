package remote

import (
	"net/netip"
	"net/url"
	"testing"
)

// TestAddressesRefused checks the first and the last address of each network that is not public.
func TestAddressesRefused(t *testing.T) {
	t.Parallel()
	g := &guard{}
	for name, tt := range map[string][]string{
		"loopback":                     {"127.0.0.0", "127.255.255.255", "::1"},
		"link-local":                   {"169.254.0.0", "169.254.255.255", "fe80::", "febf:ffff::1"},
		"10.0.0.0/8":                   {"10.0.0.0", "10.255.255.255"},
		"172.16.0.0/12":                {"172.16.0.0", "172.31.255.255"},
		"192.168.0.0/16":               {"192.168.0.0", "192.168.255.255"},
		"unique local":                 {"fc00::", "fdff:ffff::1"},
		"this network":                 {"0.0.0.0", "0.255.255.255"},
		"carrier-grade NAT":            {"100.64.0.0", "100.127.255.255"},
		"benchmarks":                   {"198.18.0.0", "198.19.255.255"},
		"multicast":                    {"224.0.0.0", "239.255.255.255", "ff00::", "ff0e::1"},
		"IPv4 in IPv6":                 {"::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"},
		"IPv4 behind NAT64":            {"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::c0a8:1"},
		"broadcast and future use":     {"240.0.0.0", "255.255.255.255"},
		"the unspecified IPv6 address": {"::"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range tt {
				if err := g.checkIP(netip.MustParseAddr(s), reachPublic); err == nil {
					t.Errorf("%s is accepted as public", s)
				}
			}
		})
	}
}

// TestNamesRefused checks that internal hosts and other schemes are refused before names are resolved.
func TestNamesRefused(t *testing.T) {
	t.Parallel()
	g := &guard{}
	for _, s := range []string{
		"https://localhost/", "https://LOCALHOST./", "https://a.localhost/", "https://host.docker.internal/", "https://model-runner.docker.internal/",
		"https://gateway.docker.internal/", "https://auth.kube-system.svc/", "https://metadata.google.internal/", "https://metadata/", "https://printer.local/",
		"https://127.0.0.1/", "https://[::1]/", "https://169.254.169.254/", "https://[::ffff:7f00:1]/",
	} {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.check(u); err == nil {
			t.Errorf("%s is accepted", s)
		}
	}
	// Addresses in other notations count as names, which no resolver knows; the address is checked when
	// it is dialled.
	dial := g.dial(nil)
	for _, addr := range []string{"2130706433:1", "0x7f000001:1", "0177.0.0.1:1", "127.1:1"} {
		if conn, err := dial(t.Context(), "tcp", addr); err == nil {
			conn.Close()
			t.Errorf("%s was dialled", addr)
		}
	}
}
