package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// TestCertificatesOfContainerd closes a registry whose CA is in its directory of containerd's, as Docker has it: pulls of
// images and models, and pushes, continue to work once ballastd knows the directory. Until then doctor names the CA.
func TestCertificatesOfContainerd(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	ca, cert, key := node.Certificates(t, "0.0.0.0")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: n.Registry.Host}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	defer server.Close()
	// Loopback addresses are trusted without a CA; this one is not known to be one.
	host := strings.Replace(server.Listener.Addr().String(), "127.0.0.1", "0.0.0.0", 1)
	dir := filepath.Join(n.HostsDir(), strings.Replace(host, ":", "_", 1)+"_")
	write := func(path string, p []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, p, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "ca.crt"), ca)
	n.Registry.Push(t, "team/image", "1", node.Image(t, []string{"/x"}, []node.File{{Path: "x", Mode: 0o755, Data: []byte("x")}}))
	n.Registry.Push(t, "team/model", "1", artifact(converttest.ModelPackRaw(converttest.Files(weights(171, 1<<20)))))
	c := n.CRI(t)
	if _, err := c.Pull(host+"/team/image:1", ""); err != nil {
		t.Fatalf("before the registry is closed: %v", err)
	}
	n.Ctr("-n", "k8s.io", "images", "rm", "--sync", host+"/team/image:1")

	if out := n.Ballast("config", "hosts", host, "--write", "--hosts-dir", n.HostsDir()); out.Err != nil {
		t.Fatal(out.Output())
	}
	file := filepath.Join(dir, "hosts.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	doctor := func() string { return n.Ballast("doctor", "--hosts-dir", n.HostsDir()).Output() }
	if got := doctor(); !strings.Contains(got, "no pull from "+host) || !strings.Contains(got, filepath.Join(dir, "ca.crt")) {
		t.Errorf("doctor, of a directory that ballastd does not know: %s", got)
	}
	write(filepath.Join(n.Dir, "conf.d/00-closed.toml"), fmt.Appendf(nil, "version = 1\n[[facade.closed]]\nfile = %q\ndigest = %q\n", file, digest.FromBytes(text)))
	for deadline := time.Now().Add(time.Minute); !strings.Contains(doctor(), "ballastd reaches "+host); time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Fatalf("doctor: %s", doctor())
		}
	}
	for _, ref := range []string{host + "/team/image:1", host + "/team/model:1"} {
		if _, err := c.Pull(ref, ""); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if out := n.Ctr("-n", "k8s.io", "images", "push", "--hosts-dir", n.HostsDir(), host+"/team/pushed:1", host+"/team/image:1"); out.Err != nil {
		t.Errorf("push: %s", out.Output())
	}
}
