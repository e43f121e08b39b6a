package facadetls

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	authorityLife = 30 * 365 * 24 * time.Hour // longer than the life of the machine
	leafLife      = 90 * 24 * time.Hour       // limits the use of a stolen copy of a disk
	renewAhead    = 30 * 24 * time.Hour       // a node may be off for two months without losing its keys
)

// The names in the certificates. They are not used for decisions.
const (
	authorityName = "ballast CA of this node"
	facadeName    = "ballast facade"
	clientName    = "containerd, client of the ballast facade"
)

// A pair is a certificate with its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a CA.
func newAuthority(now time.Time) (*pair, error) {
	return sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName}, NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, MaxPathLenZero: true,
	}, nil)
}

// newClient makes the certificate of containerd.
func newClient(ca *pair, now time.Time) (*pair, error) {
	return sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: clientName}, NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca)
}

// newServer makes the certificate of the facade for hosts, which are names and IP addresses.
func newServer(ca *pair, now time.Time, hosts []string) (*pair, error) {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: facadeName}, NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	return sign(c, ca)
}

// sign makes a key and a certificate for it, signed by ca, or by itself if that is nil.
func sign(c *x509.Certificate, ca *pair) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	c.NotBefore, c.BasicConstraintsValid = time.Unix(0, 0).UTC(), true
	by := &pair{c, key}
	if ca != nil {
		by = ca
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by.cert, &key.PublicKey, by.key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &pair{cert, key}, err
}

// certPEM returns the certificate alone.
func (p *pair) certPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw})
}

// pem returns the certificate and the key.
func (p *pair) pem() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return nil, err
	}
	return append(p.certPEM(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

// tls returns the pair as the certificate of a server.
func (p *pair) tls() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{p.cert.Raw}, PrivateKey: p.key, Leaf: p.cert}
}

// parsePair parses the result of pem.
func parsePair(b []byte) (*pair, error) {
	c, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, err
	}
	key, ok := c.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("the key is of another kind")
	}
	return &pair{c.Leaf, key}, nil
}

// checkAuthority returns why a CA cannot be used from now on.
func checkAuthority(ca *pair, now time.Time) error {
	if err := ca.cert.CheckSignatureFrom(ca.cert); err != nil {
		return err
	}
	if ends := ca.cert.NotAfter; now.Add(leafLife).After(ends) {
		return fmt.Errorf("it ends at %s", ends.Format(time.RFC3339))
	}
	return nil
}

// checkLeaf returns why a certificate cannot be used, now or in the near future.
func checkLeaf(leaf, ca *pair, use x509.ExtKeyUsage, now time.Time) error {
	_, err := leaf.cert.Verify(x509.VerifyOptions{
		Roots: poolOf(ca), KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: now.Add(renewAhead),
	})
	return err
}

func poolOf(ca *pair) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(ca.cert)
	return p
}
