package remote_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/transfer"
)

// basicAuth requires a password for each request.
func basicAuth(w http.ResponseWriter, r *http.Request) bool {
	if _, pw, _ := r.BasicAuth(); pw == secret {
		return false
	}
	w.Header().Set("WWW-Authenticate", "Basic")
	w.WriteHeader(401)
	return true
}

// TestPrivateBodies checks that a body reports whether credentials of any kind were sent for it.
func TestPrivateBodies(t *testing.T) {
	t.Parallel()
	alice := &remote.Credentials{Username: "alice", Secret: secret}
	anyone := func(*http.Request) bool { return true }
	known := func(r *http.Request) bool {
		return r.Form.Get("password") == secret || r.Form.Get("refresh_token") == secret
	}
	tests := []struct {
		name    string
		setup   func(u *upstream)
		setting string // of hosts.toml, for the server
		creds   *remote.Credentials
		node    *remote.Credentials // of Options
		private bool
	}{
		{name: "open", setup: func(*upstream) {}},
		{name: "open, and nobody wants the password", setup: func(*upstream) {}, creds: alice, node: alice},
		{name: "password", setup: func(u *upstream) { u.Before(basicAuth) }, creds: alice, private: true},
		{name: "password of the node", setup: func(u *upstream) { u.Before(basicAuth) }, node: alice, private: true},
		{name: "token for anybody", setup: func(u *upstream) { u.bearer(u.URL+"/token", anyone) }},
		{name: "token for a name", setup: func(u *upstream) { u.bearer(u.URL+"/token", anyone) }, creds: &remote.Credentials{Username: "alice"}},
		{name: "token for a password", setup: func(u *upstream) { u.bearer(u.URL+"/token", known) }, creds: alice, private: true},
		{name: "token for a password of the node", setup: func(u *upstream) { u.bearer(u.URL+"/token", known) }, node: alice, private: true},
		{name: "token for an identity token", setup: func(u *upstream) { u.bearer(u.URL+"/token", known) }, creds: &remote.Credentials{Secret: secret}, private: true},
		{name: "Authorization of hosts.toml", setup: func(*upstream) {}, setting: "[header]\n  authorization = \"Bearer x\"\n", private: true},
		{name: "cookie of hosts.toml", setup: func(*upstream) {}, setting: "[header]\n  cookie = \"session=x\"\n", private: true},
		{name: "a header of hosts.toml that is not known", setup: func(*upstream) {}, setting: "[header]\n  x-api-key = \"x\"\n", private: true},
		{name: "a header of hosts.toml for Dragonfly", setup: func(*upstream) {}, setting: "[header]\n  x-dragonfly-registry = \"https://registry.example\"\n"},
		{name: "a harmless header of hosts.toml", setup: func(*upstream) {}, setting: "[header]\n  user-agent = \"x\"\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			d := u.putBlob(random(1000))
			tt.setup(u)
			o := remote.Options{HostsDir: hostsDir(t, "registry.example", "server = \""+u.URL+"\"\n"+tt.setting)}
			if tt.node != nil {
				o.Credentials, o.Shared = func(string, string) (remote.Credentials, error) { return *tt.node, nil }, remote.AnyHost
			}
			c := newClient(t, o)
			r := repositoryOf(t, c, exampleRef(t, "x"), tt.creds)
			for _, n := range []int64{10, 1000} { // a range, and the whole blob
				body, _, err := r.Fetch(t.Context(), d, 1000, 0, n)
				if err != nil {
					t.Fatal(err)
				}
				if got := transfer.IsPrivate(body); got != tt.private {
					t.Errorf("%d bytes: private %t, want %t", n, got, tt.private)
				}
				if _, err := io.Copy(io.Discard, body); err != nil {
					t.Error(err)
				}
				body.Close()
			}
		})
	}
}

// TestPrivateRedirect checks that the target of a redirect is as private as the request to the registry,
// also when the target is used again.
func TestPrivateRedirect(t *testing.T) {
	t.Parallel()
	for _, private := range []bool{false, true} {
		u, cdn := newUpstream(t), newUpstream(t)
		d := cdn.putBlob(random(1000))
		redirecting(u, 307, cdn.URL)
		redirect := u.Before(nil)
		u.Before(func(w http.ResponseWriter, r *http.Request) bool { return private && basicAuth(w, r) || redirect(w, r) })
		var creds *remote.Credentials
		if private {
			creds = &remote.Credentials{Username: "alice", Secret: secret}
		}
		r := u.repository(t, remote.Options{AllowHosts: []string{cdn.Host()}}, creds)
		for i := range 3 {
			body, _, err := r.Fetch(t.Context(), d, 1000, int64(i), 10)
			if err != nil {
				t.Fatal(err)
			}
			if got := transfer.IsPrivate(body); got != private {
				t.Errorf("fetch %d: private %t, want %t", i, got, private)
			}
			body.Close()
		}
		asked := len(u.Requests())
		if want := 1; !private && asked != want {
			t.Errorf("the registry was asked %d times, want %d", asked, want)
		}
	}
}

// TestPrivateCertificate checks that a client certificate is a credential.
func TestPrivateCertificate(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "client.pem")
	p := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
	if err := os.WriteFile(name, p, 0o600); err != nil {
		t.Fatal(err)
	}
	for setting, private := range map[string]bool{"": false, "client = \"" + name + "\"\n": true} {
		u := newTLSUpstream(t)
		d := u.putBlob(random(1000))
		hosts := hostsDir(t, "registry.example", "server = \""+u.URL+"\"\nskip_verify = true\n"+setting)
		c := newClient(t, remote.Options{HostsDir: hosts})
		body, _, err := repositoryOf(t, c, exampleRef(t, "x"), nil).Fetch(t.Context(), d, 1000, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		if got := transfer.IsPrivate(body); got != private {
			t.Errorf("%q: private %t, want %t", setting, got, private)
		}
		body.Close()
	}
}

// TestPrivateAfterTheRequest checks that the end of a request does not make a body private that is known to be public.
func TestPrivateAfterTheRequest(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	d := mirror.putBlob(random(1000))
	server.putBlob(random(1000))
	r := repositoryOf(t, mirroredHost(t, server, mirror, remote.Options{}), exampleRef(t, "x"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	body, _, err := r.Fetch(ctx, d, 1000, 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.Copy(io.Discard, body); err != nil || transfer.IsPrivate(body) {
		t.Errorf("it is private, or was not read: %v", err)
	}
	cancel()
	for range 100 {
		if transfer.IsPrivate(body) {
			t.Fatal("it is private after the end of the request")
		}
	}
}
