package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fleetConfig is the configuration of a node that listens at an address and asks other nodes, with keys
// made for the test.
func fleetConfig(t *testing.T, listen string, nodes ...string) (config string) {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	self := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, self, self, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	err = errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	config = fmt.Sprintf("[fleet]\nlisten = %q\nca = %q\ncert = %q\nkey = %q\n", listen, cert, cert, keyFile)
	if len(nodes) > 0 {
		config += fmt.Sprintf("nodes = [\"%s\"]\n", strings.Join(nodes, `", "`))
	}
	return config
}

// TestDigestOfAnotherNode pulls a private model by the digest that another node saw, on nodes that
// never saw its tag: while the tag still has that digest, and after it was moved.
func TestDigestOfAnotherNode(t *testing.T) {
	listen := node.FreeAddress(t)
	_, port, _ := net.SplitHostPort(listen)
	config := fleetConfig(t, listen)
	first := node.StartNode(t, node.Options{Config: config})
	reg := first.Registry
	reg.Push(t, "busybox", "1", node.Busybox(t))
	b := converttest.ModelPackTar(converttest.Files(weights(90, 1<<20)))
	reg.Push(t, "team/model", "v1", artifact(b))
	reg.User, reg.Password = "alice", "s3cret"
	auth := &criapi.AuthConfig{Username: "alice", Password: "s3cret"}
	tag := reg.Ref("team/model", "v1")
	if _, err := first.CRI(t).PullAs(tag, "", auth); err != nil {
		t.Fatal(err)
	}
	mustPull(t, first, "ballast", tag, "--user", "alice:s3cret")
	ref := reg.Host + "/team/model@" + imageDigest(t, first, tag)

	pull := func(t *testing.T, config string, want bool) {
		t.Helper()
		n := node.StartNode(t, node.Options{Registry: reg, Config: config})
		cri := n.CRI(t)
		if id, err := cri.Pull(ref, ""); err == nil {
			t.Errorf("without the secret: pulled %s", id)
		}
		id, err := cri.PullAs(ref, "", auth)
		if (err == nil) != want {
			t.Fatalf("pull: got %v, want one: %v", err, want)
		}
		if !want {
			return
		}
		busybox, err := cri.PullAs(reg.Ref("busybox", "1"), "", auth)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cri.RunPod(t, "").Run(busybox, node.ImageMount{Image: id, Path: "/model"})
		if err != nil {
			t.Fatal(err)
		}
		wantVolume(t, cri, c, "/model", states(b))
	}
	t.Run("tag", func(t *testing.T) { pull(t, "", true) })

	other := converttest.ModelPackTar(converttest.Files(weights(91, 1<<20)))
	reg.User = ""
	reg.Push(t, "team/model", "v1", artifact(other))
	reg.User = "alice"
	t.Run("moved tag", func(t *testing.T) { pull(t, "", false) })
	asks := strings.Replace(config, listen, "127.0.0.1:0", 1) + fmt.Sprintf("nodes = [\"localhost:%s\"]\n", port)
	t.Run("moved tag, fleet", func(t *testing.T) { pull(t, asks, true) })
	t.Run("another fleet", func(t *testing.T) { pull(t, fleetConfig(t, "127.0.0.1:0", "localhost:"+port), false) })

	// A node without the key gets nothing from the port.
	if resp, err := http.Get("http://" + listen + "/v1/origins/" + strings.SplitN(ref, "@", 2)[1]); err == nil && resp.StatusCode == http.StatusOK {
		t.Errorf("without a key: %s", resp.Status)
	}
}
