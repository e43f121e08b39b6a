package node

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
)

// CAFile is the CA of the facade named in hosts.toml.
func (n *Node) CAFile() string { return filepath.Join(n.Root(), "tls", "ca.pem") }

// ClientFile has containerd's certificate and key for the facade.
func (n *Node) ClientFile() string { return filepath.Join(n.Root(), "tls", "client.pem") }

// FacadeClient returns a client with containerd's current key.
func (n *Node) FacadeClient(t TB) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(n.CAFile())
	if err != nil {
		t.Fatalf("%v", err)
	}
	roots.AppendCertsFromPEM(ca)
	cert, err := tls.LoadX509KeyPair(n.ClientFile(), n.ClientFile())
	if err != nil {
		t.Fatalf("%v", err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}}
	return &http.Client{Transport: tr}
}

// FacadeURL returns the address of a manifest at the facade.
func (n *Node) FacadeURL(host, repository, tag string) string {
	return "https://" + n.Facade + "/v2/" + repository + "/manifests/" + tag + "?ns=" + host
}
