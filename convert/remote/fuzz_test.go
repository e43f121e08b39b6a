package remote

import (
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
)

// FuzzChallenge checks that the WWW-Authenticate header of a public registry can only name token servers
// with https on public hosts.
func FuzzChallenge(f *testing.F) {
	for _, s := range []string{
		`Bearer realm="https://auth.example/token",service="x",scope="repository:a:pull"`, `Basic realm="x"`, `Bearer realm="http://auth.example/token"`,
		`Bearer realm="https://169.254.169.254/latest"`, `Bearer realm="https://u:p@registry.example/"`, `Bearer realm="file:///etc/passwd"`,
		`Bearer realm="https://[::ffff:127.0.0.1]/"`, `Bearer realm="https://registry.example:5000/token"`, `Bearer realm="https://metadata.google.internal./"`,
		`Bearer realm="https://localhost/",realm="https://auth.example/"`, `Bearer realm="//auth.example/x"`, `Bearer realm="`, `,Bearer ,`,
	} {
		f.Add(s)
	}
	from := &url.URL{Scheme: "https", Host: "registry.example"}
	public := &guard{}
	f.Fuzz(func(t *testing.T, header string) {
		e := &endpoint{auth: &guard{sameHost: true}}
		e.auth.name(from)
		for _, c := range auth.ParseAuthHeader(http.Header{"Www-Authenticate": {header}}) {
			realm := c.Parameters["realm"]
			if c.Scheme != auth.BearerAuth || e.checkRealm(from, realm) != nil {
				continue
			}
			u, err := url.Parse(realm)
			if err != nil || u.Scheme != "https" || u.User != nil || u.Hostname() == "" {
				t.Fatalf("realm %q was accepted", realm)
			}
			if ip, err := netip.ParseAddr(u.Hostname()); err == nil && public.checkIP(ip, reachPublic) != nil {
				t.Fatalf("realm %q is at an address that is not public", realm)
			}
			if name := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."); name == "localhost" || strings.HasSuffix(name, ".localhost") {
				t.Fatalf("realm %q is this machine", realm)
			}
		}
	})
}

// FuzzRetryAfter checks the limits of a pause that a registry requests.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "5", "-5", "99999999999999999999", "2147483647", "Wed, 21 Oct 2015 07:28:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"} {
		f.Add(s, http.StatusServiceUnavailable)
	}
	f.Fuzz(func(t *testing.T, s string, status int) {
		d, ok := retryAfter(&http.Response{StatusCode: status, Header: http.Header{"Retry-After": {s}}}, time.Unix(1e9, 0))
		if d < 0 || d > transfer.MaxRetryAfter || !ok && d != 0 {
			t.Fatalf("got %v, %t", d, ok)
		}
	})
}

// FuzzHosts checks that an invalid hosts.toml is an error, and that the registry itself is the last host.
func FuzzHosts(f *testing.F) {
	for _, s := range []string{
		"", "server = \"https://mirror.example\"\n", "[host.\"http://10.0.0.1:5000\"]\n  capabilities = [\"pull\"]\n  override_path = true\n",
		"server = \"https://h.example/v2\"\n[host.\"https://a.example\"]\n  [host.\"https://a.example\".header]\n    x = [\"a\", \"b\"]\n", "[host.\"\"]\n", "[host.\"a b\"]\n", "[host.\"https://\"]\n",
		"server = \"ftp://x\"\n", "[host.\"https://a\"]\ncapabilities = [\"fly\"]\n", "server = 1\n", "[host]\na = 1\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if strings.Contains(string(p), "/dev") { // an endless file as certificate
			return
		}
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), p, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.configure("registry.example", dir)
		if err != nil {
			return
		}
		if len(l) == 0 {
			t.Fatal("no hosts")
		}
		for i, e := range l {
			if e.Host == "" || e.Scheme != "https" && e.Scheme != "http" || e.server != (i == len(l)-1) {
				t.Fatalf("host %d is %s://%s, server %t", i, e.Scheme, e.Host, e.server)
			}
		}
	})
}
