package remote_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

func exampleRef(t testing.TB, object string) remote.Ref {
	t.Helper()
	ref, err := remote.NewRef("registry.example", "org/model", object)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func manifestVia(t testing.TB, o remote.Options, object string) (remote.Manifest, error) {
	t.Helper()
	c := newClient(t, o)
	return repositoryOf(t, c, exampleRef(t, "x"), nil).Manifest(t.Context(), object)
}

func paths(u *upstream) []string {
	var l []string
	for _, s := range u.Requests() {
		l = append(l, s.URL.Path+"?"+s.URL.RawQuery)
	}
	return l
}

func TestMirrors(t *testing.T) {
	t.Parallel()
	dead, empty, mirror, server := newUpstream(t), newUpstream(t), newUpstream(t), newUpstream(t)
	dead.Close()
	p := manifestBytes("x")
	d := digest.FromBytes(p)
	mirror.Before(func(w http.ResponseWriter, r *http.Request) bool { w.Write(p); return true })
	server.putManifest("latest", p)
	dir := hostsDir(t, "registry.example", `server = "`+server.URL+`"
[host."`+dead.URL+`"]
[host."`+empty.URL+`"]
  capabilities = ["pull"]
[host."`+mirror.URL+`/some/path"]
  capabilities = ["pull"]
  override_path = true
  [host."`+mirror.URL+`/some/path".header]
    x-key = "value"
`)
	o := remote.Options{HostsDir: dir}
	if _, err := manifestVia(t, o, "latest"); err != nil {
		t.Fatal(err)
	}
	if _, err := manifestVia(t, o, d.String()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(paths(empty), []string{"/v2/org/model/manifests/" + d.String() + "?ns=registry.example"}); diff != "" {
		t.Errorf("first mirror (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(paths(mirror), []string{"/some/path/org/model/manifests/" + d.String() + "?ns=registry.example"}); diff != "" {
		t.Errorf("second mirror (-got +want):\n%s", diff)
	}
	if got := mirror.Requests()[0].Header.Get("X-Key"); got != "value" {
		t.Errorf("X-Key is %q", got)
	}
	confirmed := "/v2/org/model/manifests/" + d.String() + "?ns=registry.example"
	if diff := cmp.Diff(paths(server), []string{"/v2/org/model/manifests/latest?ns=registry.example", confirmed}); diff != "" {
		t.Errorf("server (-got +want):\n%s", diff)
	}
}

// TestDirectoryOfSpellings: the hosts.toml of a host is in a directory with any of its usual names, and that of all
// hosts counts only where there is none.
func TestDirectoryOfSpellings(t *testing.T) {
	t.Parallel()
	own, all := newUpstream(t), newUpstream(t)
	own.putManifest("latest", manifestBytes("x"))
	all.putManifest("latest", manifestBytes("x"))
	for _, tt := range []struct {
		dir, host string
		mine      bool
	}{
		{"ollama.com", "ollama.com", true},
		{"registry.example", "registry.example:443", true},
		{"registry.example:443", "registry.example", true},
		{"registry.example_443_", "Registry.Example:0443", true},
		{"registry.example:5000", "registry.example:05000", true},
		{"registry.example_5000_", "registry.example:5000", true},
		{"registry-1.docker.io:443", "docker.io", true},
		{"[::1]:5000", "[0:0::1]:5000", true},
		{"registry.example:5000", "registry.example", false},
		{"registry.example", "registry.example:5000", false},
		{"registry.example", "registry.example:80", false},
	} {
		dir := hostsDir(t, tt.dir, "server = \""+own.URL+"\"\n")
		ref, err := remote.NewRef(tt.host, "org/model", "latest")
		if err != nil {
			t.Fatal(err)
		}
		if got := newClient(t, remote.Options{HostsDir: dir}).Direct(ref.Host); got == tt.mine {
			t.Errorf("directory %s: %s has none: %t", tt.dir, tt.host, got)
		}
		if err := os.Rename(hostsDir(t, "_default", "server = \""+all.URL+"\"\n")+"/_default", dir+"/_default"); err != nil {
			t.Fatal(err)
		}
		before := len(own.Requests())
		if _, err := repositoryOf(t, newClient(t, remote.Options{HostsDir: dir}), ref, nil).Manifest(t.Context(), "latest"); err != nil {
			t.Errorf("directories %s and _default: %s: %v", tt.dir, tt.host, err)
		}
		if asked := len(own.Requests()) > before; asked != tt.mine {
			t.Errorf("directories %s and _default: %s asks the first: %t", tt.dir, tt.host, asked)
		}
	}
}

// TestTaggedAsksNoMirror checks that a tag is read where it would be written.
func TestTaggedAsksNoMirror(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	mirror.Before(func(w http.ResponseWriter, r *http.Request) bool { w.Write([]byte(`{"mirror":1}`)); return true })
	server.Before(func(w http.ResponseWriter, r *http.Request) bool { w.Write([]byte(`{"server":1}`)); return true })
	dir := hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\""+mirror.URL+"\"]\n")
	r := repositoryOf(t, newClient(t, remote.Options{HostsDir: dir}), exampleRef(t, "x"), nil)
	if m, err := r.Tagged(t.Context(), "v1"); err != nil || string(m.Bytes) != `{"server":1}` {
		t.Errorf("got %s, %v", m.Bytes, err)
	}
}

// TestMirrorsGetNoCredentials checks that credentials for the registry are not sent to its mirrors.
func TestMirrorsGetNoCredentials(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	p := manifestBytes("x")
	server.putManifest("latest", p)
	want := func(u *upstream, user string) {
		u.Before(func(w http.ResponseWriter, r *http.Request) bool {
			if got, _, _ := r.BasicAuth(); got == user {
				return false
			}
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(401)
			return true
		})
	}
	want(mirror, "nobody")
	want(server, "alice")
	dir := hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\""+mirror.URL+"\"]\n")
	c := newClient(t, remote.Options{HostsDir: dir, Credentials: func(string, string) (remote.Credentials, error) {
		return remote.Credentials{Username: "node", Secret: secret + " of the node"}, nil
	}})
	r := repositoryOf(t, c, exampleRef(t, "x"), &remote.Credentials{Username: "alice", Secret: secret})
	if _, err := r.Manifest(t.Context(), "latest"); err != nil {
		t.Fatal(err)
	}
	for _, s := range mirror.Requests() {
		if s.Header.Get("Authorization") != "" {
			t.Error("the mirror got credentials")
		}
	}
}

// TestMirrorErrors checks that the error of the registry is returned if all hosts fail.
func TestMirrorErrors(t *testing.T) {
	t.Parallel()
	mirror, server := newUpstream(t), newUpstream(t)
	mirror.Before(func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(401); return true })
	dir := hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\""+mirror.URL+"\"]\n")
	_, err := manifestVia(t, remote.Options{HostsDir: dir}, "latest")
	mustRefuse(t, err, errdefs.IsNotFound, mirror.Host())
	if errdefs.IsUnauthorized(err) {
		t.Errorf("the error of the mirror is returned: %v", err)
	}
}

// TestFacadeSkipped checks that a facade in hosts.toml is skipped.
func TestFacadeSkipped(t *testing.T) {
	t.Parallel()
	facade, server := newUpstream(t), newUpstream(t)
	server.putManifest("latest", manifestBytes("x"))
	_, port, _ := strings.Cut(facade.Host(), ":")
	dir := hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n[host.\"http://localhost:"+port+"\"]\n")
	o := remote.Options{HostsDir: dir, Facade: []string{facade.Host()}}
	if _, err := manifestVia(t, o, "latest"); err != nil {
		t.Fatal(err)
	}
	// If hosts.toml has only the facade, the registry itself is asked.
	dir = hostsDir(t, strings.Replace(server.Host(), ":", "_", 1)+"_", "server = \""+facade.URL+"\"\n")
	c := newClient(t, remote.Options{HostsDir: dir, Facade: []string{facade.Host()}})
	if _, err := repositoryOf(t, c, server.ref(t, "x"), nil).Manifest(t.Context(), "latest"); err != nil {
		t.Error(err)
	}
	if _, err := c.Repository(facade.ref(t, "x"), nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the facade as a registry: %v", err)
	}
	if n := len(facade.Requests()); n != 0 {
		t.Errorf("the facade got %d requests", n)
	}
}

func TestInvalidHostsTOML(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"not TOML":           "server = \n[",
		"unknown capability": "server = \"https://x.example\"\n[host.\"https://y.example\"]\ncapabilities = [\"fly\"]\n",
		"bad header":         "[host.\"https://y.example\"]\n[host.\"https://y.example\".header]\nx = 1\n",
		"bad duration":       "server = \"https://x.example\"\ndial_timeout = \"soon\"\n",
	} {
		c := newClient(t, remote.Options{HostsDir: hostsDir(t, "registry.example", content)})
		if _, err := c.Repository(exampleRef(t, "x"), nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, want ErrInvalidArgument", name, err)
		}
	}
}

// TestUnknownKeys: a key that containerd does not know, such as a misspelt one, is named with its line.
func TestUnknownKeys(t *testing.T) {
	t.Parallel()
	for key, content := range map[string]string{
		"skip_verfy":                         "server = \"https://x.example\"\n\nskip_verfy = true\n",
		"host.https://y.example.capabilites": "server = \"https://x.example\"\n[host.\"https://y.example\"]\ncapabilites = [\"pull\"]\n",
	} {
		c := newClient(t, remote.Options{HostsDir: hostsDir(t, "registry.example", content)})
		_, err := c.Repository(exampleRef(t, "x"), nil)
		mustRefuse(t, err, errdefs.IsInvalidArgument, "hosts.toml:3: unknown key \""+key+"\"")
	}
	all := "server = \"https://x.example\"\ncapabilities = [\"pull\"]\nskip_verify = true\noverride_path = true\ndial_timeout = \"1s\"\n[header]\nx = \"y\"\n"
	c := newClient(t, remote.Options{HostsDir: hostsDir(t, "registry.example", all)})
	if _, err := c.Repository(exampleRef(t, "x"), nil); err != nil {
		t.Errorf("keys that containerd knows: %v", err)
	}
}

// TestHostsChange checks that a change of hosts.toml is applied to the next request.
func TestHostsChange(t *testing.T) {
	t.Parallel()
	first, second := newUpstream(t), newUpstream(t)
	second.putManifest("latest", manifestBytes("x"))
	dir := hostsDir(t, "registry.example", "server = \""+first.URL+"\"\n")
	c := newClient(t, remote.Options{HostsDir: dir})
	if _, err := repositoryOf(t, c, exampleRef(t, "x"), nil).Manifest(t.Context(), "latest"); !errdefs.IsNotFound(err) {
		t.Fatalf("before the change: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte("# moved\nserver = \""+second.URL+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := repositoryOf(t, c, exampleRef(t, "x"), nil).Manifest(t.Context(), "latest"); err != nil {
		t.Errorf("after the change: %v", err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	u := newTLSUpstream(t)
	u.putManifest("latest", manifestBytes("x"))
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: u.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		setting string
		good    bool
	}{
		"system roots": {"", false},
		"own CA":       {"ca = \"" + ca + "\"\n", true},
		"skip_verify":  {"skip_verify = true\n", true},
	} {
		dir := hostsDir(t, "registry.example", "server = \""+u.URL+"\"\n"+tt.setting)
		_, err := manifestVia(t, remote.Options{HostsDir: dir}, "latest")
		if (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: the error does not name the certificate: %v", name, err)
		}
	}
}

// TestNoPlainHTTP checks that http is used for loopback hosts only.
func TestNoPlainHTTP(t *testing.T) {
	t.Parallel()
	_, err := manifestVia(t, remote.Options{}, "latest")
	if err == nil || strings.Contains(err.Error(), ":80:") {
		t.Errorf("registry.example over http: %v", err)
	}
}

// TestLoopbackRegistry reaches registries of this machine without a hosts.toml, as containerd and Docker do: with TLS
// and any certificate, and otherwise by plain HTTP, also with credentials.
func TestLoopbackRegistry(t *testing.T) {
	t.Parallel()
	for name, u := range map[string]*upstream{"plain HTTP": newUpstream(t), "TLS": newTLSUpstream(t)} {
		manifest := manifestBytes("x")
		u.putManifest("latest", manifest)
		u.SetUser("org/model", "alice:"+secret)
		_, port, _ := strings.Cut(u.Host(), ":")
		for _, host := range []string{"localhost", "127.0.0.1"} {
			ref, err := remote.ParseRef(host + ":" + port + "/org/model:latest")
			if err != nil {
				t.Fatal(err)
			}
			r := repositoryOf(t, newClient(t, remote.Options{}), ref, &remote.Credentials{Username: "alice", Secret: secret})
			if got, err := r.Manifest(t.Context(), "latest"); err != nil || !bytes.Equal(got.Bytes, manifest) {
				t.Errorf("%s, %s: %v", name, host, err)
			}
		}
	}
}

func TestAllowHosts(t *testing.T) {
	t.Parallel()
	if _, err := remote.New(remote.Options{AllowHosts: []string{"http://x"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a URL: %v", err)
	}
	u, cdn := newUpstream(t), newUpstream(t)
	d := cdn.putBlob(random(10))
	redirecting(u, 307, cdn.URL)
	for entry, good := range map[string]bool{
		cdn.Host(): true, "127.0.0.1": true, "127.0.0.0/8": true,
		u.Host(): false, "10.0.0.0/8": false, "example.com": false,
	} {
		_, _, err := fetch(t.Context(), u.repository(t, remote.Options{AllowHosts: []string{entry}}, nil), d, 10, 0, 10)
		if (err == nil) != good {
			t.Errorf("%s: %v", entry, err)
		}
	}
}

// TestSkipVerifyIsNotForRealms checks that skip_verify of a registry does not apply to a token server of
// another site.
func TestSkipVerifyIsNotForRealms(t *testing.T) {
	t.Parallel()
	u, tokens := newTLSUpstream(t), newTLSUpstream(t)
	_, port, _ := strings.Cut(tokens.Host(), ":")
	u.bearer("https://localhost:"+port+"/token", nil)
	dir := hostsDir(t, "registry.example", "server = \""+u.URL+"\"\nskip_verify = true\n")
	c := newClient(t, remote.Options{HostsDir: dir, AllowHosts: []string{"localhost"}})
	r := repositoryOf(t, c, exampleRef(t, "x"), &remote.Credentials{Username: "alice", Secret: secret})
	_, err := r.Manifest(t.Context(), "latest")
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v, want one about the certificate", err)
	}
	if n := len(tokens.Requests()); n != 0 {
		t.Errorf("the token server got %d requests", n)
	}
}

// TestClientCertificates: the client certificate of hosts.toml is shown to its host, and to no target of a redirect.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(t.TempDir(), "client.")
	for name, b := range map[string]*pem.Block{"cert": {Type: "CERTIFICATE", Bytes: certificate}, "key": {Type: "EC PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(files+name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var shown [2]atomic.Int64 // certificates, to the host and to the target
	var servers [2]*upstream
	for i := range servers {
		u := bare()
		u.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		u.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, VerifyConnection: func(s tls.ConnectionState) error {
			shown[i].Add(int64(len(s.PeerCertificates)))
			return nil
		}}
		u.StartTLS()
		t.Cleanup(u.Close)
		servers[i] = u
	}
	d := servers[1].putBlob(random(10))
	redirecting(servers[0], http.StatusTemporaryRedirect, servers[1].URL)
	dir := hostsDir(t, "registry.example", fmt.Sprintf("server = %q\nskip_verify = true\nclient = [[%q, %q]]\n", servers[0].URL, files+"cert", files+"key"))
	c := newClient(t, remote.Options{HostsDir: dir, AllowHosts: []string{servers[1].Host()}})
	if _, _, err := fetch(t.Context(), repositoryOf(t, c, exampleRef(t, "x"), nil), d, 10, 0, 10); err != nil {
		t.Fatal(err)
	}
	if shown[0].Load() == 0 || shown[1].Load() != 0 {
		t.Errorf("%d certificates are shown to the host, %d to the target of a redirect", shown[0].Load(), shown[1].Load())
	}
}
