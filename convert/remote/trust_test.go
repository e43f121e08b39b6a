package remote_test

import (
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// TestTLSErrors checks that a TLS error is not retried, and that it names the host once and says what to
// do.
func TestTLSErrors(t *testing.T) {
	t.Parallel()
	untrusted, plain := newTLSUpstream(t), newUpstream(t)
	for name, tt := range map[string]struct {
		u    *upstream
		want string
	}{
		"certificate": {untrusted, "set ca in DIR/registry.example/hosts.toml"},
		"no TLS":      {plain, " does not speak TLS; for plain HTTP, write server = \"http://" + plain.Host() + "\" to DIR/registry.example/hosts.toml"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := hostsDir(t, "registry.example", fmt.Sprintf("server = \"https://%s\"\n", tt.u.Host()))
			_, err := manifestVia(t, remote.Options{HostsDir: dir}, "latest")
			if !errdefs.IsFailedPrecondition(err) || errdefs.IsUnavailable(err) {
				t.Errorf("got %v, want ErrFailedPrecondition alone", err)
			}
			tt.want = strings.Replace(tt.want, "DIR", dir, 1)
			if n := strings.Count(err.Error(), ": "+tt.u.Host()); n != 1 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want the host once, and %q", err, tt.want)
			}
			if n := tt.u.connections.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

// TestPlainCA checks that the ca in hosts.toml applies to plain URLs of the host, and that no other
// setting does.
func TestPlainCA(t *testing.T) {
	t.Parallel()
	u := newTLSUpstream(t)
	u.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusTeapot)
		return true
	})
	file := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: u.Certificate().Raw})
	if err := os.WriteFile(file, block, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, text string
		trusted    bool
	}{
		{"ca", fmt.Sprintf("ca = %q\n[header]\nx-key = %q\n", file, secret), true},
		{"ca of a mirror", fmt.Sprintf("[host.\"https://mirror.example\"]\nca = %q\n", file), false},
		{"skip_verify", "skip_verify = true\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClient(t, remote.Options{HostsDir: hostsDir(t, u.Host(), tt.text), NamedURLs: []string{u.URL + "/{repository}"}})
			resp, err := c.Do(plainRequest(t, "GET", u.URL+"/a.carton"))
			if !tt.trusted {
				mustRefuse(t, err, errdefs.IsFailedPrecondition, "certificate")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := u.Requests()[0].Header.Get("X-Key"); got != "" {
				t.Errorf("the header of hosts.toml was sent: %q", got)
			}
		})
	}
}
