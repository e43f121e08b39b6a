package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// Certificates makes a new authority, and a certificate with its key for names and addresses, all as PEM.
func Certificates(t TB, names ...string) (authority, cert, key []byte) {
	t.Helper()
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatalf("%v", err)
		}
		return k
	}
	caKey, leafKey := newKey(), newKey()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, n)
		}
	}
	block := func(kind string) func(p []byte, err error) []byte {
		return func(p []byte, err error) []byte {
			if err != nil {
				t.Fatalf("%v", err)
			}
			return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: p})
		}
	}
	return block("CERTIFICATE")(x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)),
		block("CERTIFICATE")(x509.CreateCertificate(rand.Reader, leaf, ca, &leafKey.PublicKey, caKey)),
		block("EC PRIVATE KEY")(x509.MarshalECPrivateKey(leafKey))
}
