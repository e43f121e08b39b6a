package remote_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

// newCertified starts a registry with a certificate that only its CA file makes trusted, and that wants a certificate of
// its clients. Its host is no loopback address, for which certificates are not verified. pems are the files for its
// directory.
func newCertified(t *testing.T) (u *upstream, host string, pems map[string][]byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4zero},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	u = bare()
	u.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	u.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}}
	u.StartTLS()
	t.Cleanup(u.Close)
	_, port, _ := strings.Cut(u.Host(), ":")
	return u, "0.0.0.0:" + port, map[string][]byte{
		"ca.crt": public, "client.cert": public, "client.key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}
}

// TestCertificatesOfContainerd: a registry has the certificates in its directory of containerd's, by any of its names,
// also beside the hosts.toml that closes it, and from the request after they came.
func TestCertificatesOfContainerd(t *testing.T) {
	t.Parallel()
	u, host, pems := newCertified(t)
	u.putManifest("latest", manifestBytes("x"))
	ref, err := remote.NewRef(host, "org/model", "latest")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{host, strings.Replace(host, ":", "_", 1) + "_", "_default"} {
		root := hostsDir(t, host, "server = \"https://facade.invalid\"\n")
		c := newClient(t, remote.Options{CertsDirs: func() []string { return []string{"/nowhere", root} }})
		_, err := repositoryOf(t, c, ref, nil).Manifest(t.Context(), "latest")
		mustRefuse(t, err, errdefs.IsFailedPrecondition, "certificate")
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, p := range pems {
			if err := os.WriteFile(filepath.Join(dir, file), p, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := repositoryOf(t, c, ref, nil).Manifest(t.Context(), "latest"); err != nil {
			t.Errorf("certificates in %s: %v", name, err)
		}
		if c.Direct(host) {
			t.Errorf("certificates in %s: a client without them can use the registry", name)
		}
	}
}

// TestCertificatesOfBallastCount: what hosts.toml of ballast says of certificates replaces those of containerd, and
// mirrors do not get them.
func TestCertificatesOfBallastCount(t *testing.T) {
	t.Parallel()
	u, host, pems := newCertified(t)
	u.putManifest("latest", manifestBytes("x"))
	root := t.TempDir()
	for _, name := range []string{host, "mirrored.example"} {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, p := range pems {
			if err := os.WriteFile(filepath.Join(dir, file), p, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	own := hostsDir(t, host, "ca = \"/nowhere/ca.pem\"\n")
	c := newClient(t, remote.Options{HostsDir: own, CertsDirs: func() []string { return []string{root} }})
	ref, err := remote.NewRef(host, "org/model", "latest")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Repository(ref, nil); err == nil || !strings.Contains(err.Error(), "/nowhere/ca.pem") {
		t.Errorf("a ca of hosts.toml that is not there: %v", err)
	}
	own = hostsDir(t, "mirrored.example", "[host.\"https://"+host+"\"]\n")
	c = newClient(t, remote.Options{HostsDir: own, CertsDirs: func() []string { return []string{root} }, MirrorOnly: func(string) bool { return true }})
	if ref, err = remote.NewRef("mirrored.example", "org/model", "latest"); err != nil {
		t.Fatal(err)
	}
	_, err = repositoryOf(t, c, ref, nil).Manifest(t.Context(), "latest")
	mustRefuse(t, err, errdefs.IsFailedPrecondition, "certificate")
}

// TestBrokenCertificates: a file that is no certificate is named.
func TestBrokenCertificates(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"ca.crt", "client.cert"} {
		root := t.TempDir()
		if err := os.Mkdir(filepath.Join(root, "registry.example"), 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, "registry.example", file)
		if err := os.WriteFile(path, []byte("of others\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, remote.Options{CertsDirs: func() []string { return []string{root} }})
		_, err := c.Repository(exampleRef(t, "x"), nil)
		mustRefuse(t, err, errdefs.IsInvalidArgument, path)
	}
}
