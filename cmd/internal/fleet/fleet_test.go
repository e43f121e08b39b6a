package fleet_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/fleet"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// makeKeys creates a CA and a certificate for a host signed by it.
func makeKeys(t *testing.T, host string) fleet.Keys {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	make := func(template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
		template.SerialNumber, template.NotAfter = big.NewInt(1), time.Now().Add(time.Hour)
		template.Subject = pkix.Name{CommonName: host}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	ca := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER := make(ca, ca, keys[0], keys[0])
	parsed, err := x509.ParseCertificate(caDER)
	if err != nil {
		t.Fatal(err)
	}
	leaf := make(&x509.Certificate{DNSNames: []string{host}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, parsed, keys[1], keys[0])
	private, err := x509.MarshalECPrivateKey(keys[1])
	if err != nil {
		t.Fatal(err)
	}
	return fleet.Keys{CA: write("ca.pem", "CERTIFICATE", caDER), Cert: write("cert.pem", "CERTIFICATE", leaf), Key: write("key.pem", "EC PRIVATE KEY", private)}
}

// serve serves h to clients with keys.
func serve(t *testing.T, keys fleet.Keys, h http.Handler) (node string) {
	t.Helper()
	config, err := keys.Server()
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.Listener = tls.NewListener(s.Listener, config)
	s.Start()
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("localhost", port)
}

func TestHints(t *testing.T) {
	s, err := store.Open(t.TempDir(), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	converted, listed, ahead, origin := digest.FromString("converted"), digest.FromString("listed"), digest.FromString("ahead"), digest.FromString("origin")
	for _, im := range []store.Image{
		{Manifest: converted, Refs: []string{"a.test/b:1"}, Origin: filetable.Origin{Format: "modelpack", Digest: origin, Mapping: 2}},
		{Manifest: listed, Refs: []string{"a.test/b:2"}, Origin: filetable.Origin{Format: "ollama-list/mlx", Digest: origin, Mapping: 2}},
		{Manifest: ahead, Refs: []string{"a.test/b:3"}, Origin: filetable.Origin{Format: "modelpack", Digest: ahead, Mapping: 2}},
	} {
		if err := s.PutImage(t.Context(), im); err != nil {
			t.Fatal(err)
		}
	}
	keys := makeKeys(t, "localhost")
	node := serve(t, keys, fleet.Handler(s))
	lie := serve(t, keys, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(`{"origin":"../../etc"}`)) }))
	log := slog.New(slog.DiscardHandler)
	for _, tt := range []struct {
		name  string
		keys  fleet.Keys
		nodes []string
		d     digest.Digest
		want  []registry.Hint
	}{
		{"known", keys, []string{node, lie, node, "localhost:1"}, converted, []registry.Hint{{Origin: origin}}},
		{"of a list", keys, []string{node}, listed, []registry.Hint{{Origin: origin, Runner: "mlx"}}},
		{"converted by others", keys, []string{node}, ahead, nil},
		{"unknown", keys, []string{node}, origin, nil},
		{"another CA", makeKeys(t, "localhost"), []string{node}, converted, nil},
		{"a server of another CA", fleet.Keys{CA: makeKeys(t, "localhost").CA, Cert: keys.Cert, Key: keys.Key}, []string{node}, converted, nil},
		{"no keys", fleet.Keys{CA: "/nowhere"}, []string{node}, converted, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := (&fleet.Client{Keys: tt.keys, Nodes: tt.nodes, Log: log}).Hints(t.Context(), tt.d)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("hints (-want +got):\n%s", d)
			}
		})
	}
	// The certificate of a server must be for its name.
	_, port, _ := net.SplitHostPort(node)
	if got := (&fleet.Client{Keys: keys, Nodes: []string{"127.0.0.1:" + port}, Log: log}).Hints(t.Context(), converted); got != nil {
		t.Errorf("by another name: %v", got)
	}
	if _, err := (fleet.Keys{CA: keys.CA, Cert: keys.Key, Key: keys.Cert}).Server(); err == nil {
		t.Error("files that are no keys: no error")
	}
}
