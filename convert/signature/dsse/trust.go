package dsse

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"

	_ "crypto/sha512" // for crypto.SHA384 and crypto.SHA512

	"github.com/containerd/errdefs"
)

// A Trust defines trusted signers. The zero value trusts none.
type Trust struct {
	Keys  []crypto.PublicKey  // *ecdsa.PublicKey, *rsa.PublicKey or ed25519.PublicKey
	Roots []*x509.Certificate // roots of the certificates of signers

	// Subject, if not empty, must be a name of the signer's certificate, with its type: "email:a@b.example",
	// "uri:https://…", "dns:b.example" or "cn:…", the common name. A CA may let its users choose names of some types.
	Subject string

	// Identity, if not nil, is the only trusted signer. Its proofs must be in the bundle.
	Identity *Identity
}

// errSignature means that no trusted key made a signature.
var errSignature = fmt.Errorf("not signed by a trusted key: %w", errdefs.ErrPermissionDenied)

// ParseKeys parses public keys in PEM, PKIX or PKCS #1. It returns errdefs.ErrInvalidArgument if
// there are none, or other PEM blocks.
func ParseKeys(p []byte) ([]crypto.PublicKey, error) {
	var keys []crypto.PublicKey
	for block, rest := pem.Decode(p); block != nil; block, rest = pem.Decode(rest) {
		var k crypto.PublicKey
		var err error
		switch block.Type {
		case "PUBLIC KEY":
			k, err = x509.ParsePKIXPublicKey(block.Bytes)
		case "RSA PUBLIC KEY":
			k, err = x509.ParsePKCS1PublicKey(block.Bytes)
		default:
			return nil, fmt.Errorf("%q is not a public key: %w", block.Type, errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return nil, fmt.Errorf("public key: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		switch k.(type) {
		case *ecdsa.PublicKey, *rsa.PublicKey, ed25519.PublicKey:
		default:
			return nil, fmt.Errorf("public key: a %T signs nothing: %w", k, errdefs.ErrInvalidArgument)
		}
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("no public key in PEM: %w", errdefs.ErrInvalidArgument)
	}
	return keys, nil
}

// ParseCertificates parses certificates in PEM. It returns errdefs.ErrInvalidArgument if there are
// none, or other PEM blocks.
func ParseCertificates(p []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for block, rest := pem.Decode(p); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%q is not a certificate: %w", block.Type, errdefs.ErrInvalidArgument)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no certificate in PEM: %w", errdefs.ErrInvalidArgument)
	}
	return out, nil
}

// Verify returns the statement of a bundle and its signer. It returns errdefs.ErrPermissionDenied
// if no trusted signer signed it.
func (t *Trust) Verify(b *Bundle) (*Statement, string, error) {
	signer, err := t.Signer(b)
	if err != nil {
		return nil, "", err
	}
	s, err := parseStatement(b.payload)
	return s, signer, err
}

// Signer returns the signer of a bundle. Its errors are those of Verify.
func (t *Trust) Signer(b *Bundle) (string, error) {
	if t.Identity != nil {
		return t.Identity.signed(b)
	}
	return t.VerifyMessage(pae(b.payload), b.signature, b.certificates)
}

// VerifyMessage returns the signer of a message: one of the keys, or the key of certificates (DER,
// the signer's first) if roots are trusted.
func (t *Trust) VerifyMessage(message, signature []byte, certificates [][]byte) (string, error) {
	if t.Identity != nil {
		return "", fmt.Errorf("a keyless signature has to be in a bundle, as cosign 3 and \"cosign sign --new-bundle-format\" write it: %w", errdefs.ErrPermissionDenied)
	}
	for _, k := range t.Keys {
		if signed(k, message, signature) {
			return KeyName(k), nil
		}
	}
	if len(t.Roots) == 0 || len(certificates) == 0 {
		return "", errSignature
	}
	leaf, err := t.leaf(certificates)
	if err != nil {
		return "", err
	}
	if !signed(leaf.PublicKey, message, signature) {
		return "", fmt.Errorf("the signature was not made with the certificate of %.200q: %w", nameOf(leaf), errdefs.ErrPermissionDenied)
	}
	return fmt.Sprintf("certificate of %q (%s)", nameOf(leaf), fingerprint(leaf.PublicKey)), nil
}

// leaf returns the certificate of the signer if it is trusted.
func (t *Trust) leaf(certificates [][]byte) (*x509.Certificate, error) {
	if len(certificates) > maxCertificates {
		return nil, fmt.Errorf("%d certificates, more than %d: %w", len(certificates), maxCertificates, errdefs.ErrInvalidArgument)
	}
	var parsed []*x509.Certificate
	for _, der := range certificates {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		parsed = append(parsed, c)
	}
	leaf, roots, between := parsed[0], x509.NewCertPool(), x509.NewCertPool()
	for _, c := range t.Roots {
		roots.AddCert(c)
	}
	for _, c := range parsed[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: leaf.NotBefore,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("certificate of %.200q: %w: %w", nameOf(leaf), err, errdefs.ErrPermissionDenied)
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageCodeSigning): // Verify accepts any usage if there is none
		return nil, fmt.Errorf("certificate of %.200q: it is not for code signing: %w", nameOf(leaf), errdefs.ErrPermissionDenied)
	case t.Subject != "" && !slices.Contains(names(leaf), t.Subject):
		return nil, fmt.Errorf("certificate of %.200q: its subject is not %q: %w", nameOf(leaf), t.Subject, errdefs.ErrPermissionDenied)
	}
	return leaf, nil
}

// names returns all names of a certificate, with their types.
func names(c *x509.Certificate) (all []string) {
	if c.Subject.CommonName != "" {
		all = append(all, "cn:"+c.Subject.CommonName)
	}
	for _, s := range c.EmailAddresses {
		all = append(all, "email:"+s)
	}
	for _, u := range c.URIs {
		all = append(all, "uri:"+u.String())
	}
	for _, s := range c.DNSNames {
		all = append(all, "dns:"+s)
	}
	return all
}

func nameOf(c *x509.Certificate) string {
	all := names(c)
	if len(all) == 0 {
		return c.Subject.String()
	}
	return all[0]
}

// KeyName returns the name of a signer with a public key.
func KeyName(k crypto.PublicKey) string { return "key " + fingerprint(k) }

// fingerprint returns the first 8 bytes of the sha256 of a public key in PKIX, in hexadecimal.
func fingerprint(k crypto.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return "unknown"
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:8])
}

// hashes returns the hashes used with a curve.
func hashes(k *ecdsa.PublicKey) []crypto.Hash {
	switch size := k.Curve.Params().BitSize; {
	case size <= 256:
		return []crypto.Hash{crypto.SHA256}
	case size <= 384:
		return []crypto.Hash{crypto.SHA384, crypto.SHA256}
	}
	return []crypto.Hash{crypto.SHA512, crypto.SHA256}
}

func sum(h crypto.Hash, message []byte) []byte {
	w := h.New()
	w.Write(message)
	return w.Sum(nil)
}

// signed reports whether key made a signature of a message.
func signed(key crypto.PublicKey, message, signature []byte) bool {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return slices.ContainsFunc(hashes(k), func(h crypto.Hash) bool {
			return ecdsa.VerifyASN1(k, sum(h, message), signature)
		})
	case *rsa.PublicKey:
		d := sum(crypto.SHA256, message)
		return rsa.VerifyPKCS1v15(k, crypto.SHA256, d, signature) == nil || rsa.VerifyPSS(k, crypto.SHA256, d, signature, nil) == nil
	case ed25519.PublicKey:
		return ed25519.Verify(k, message, signature)
	}
	return false
}

// ParsePrivateKey parses an unencrypted private key in PEM, PKCS #8, SEC 1 or PKCS #1. It returns
// errdefs.ErrInvalidArgument for anything else.
func ParsePrivateKey(p []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(p)
	if block == nil {
		return nil, fmt.Errorf("no private key in PEM: %w", errdefs.ErrInvalidArgument)
	}
	var key any
	var err error
	switch block.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	default:
		return nil, fmt.Errorf("%q is not a private key without a password; \"openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256\" makes one: %w", block.Type, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("private key: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if k, ok := key.(crypto.Signer); ok { // *ecdsa.PrivateKey, *rsa.PrivateKey or ed25519.PrivateKey
		return k, nil
	}
	return nil, fmt.Errorf("private key: a %T signs nothing: %w", key, errdefs.ErrInvalidArgument)
}

// signMessage signs with the hash of the curve, or SHA-256. The result is deterministic.
func signMessage(key crypto.Signer, message []byte) ([]byte, error) {
	h := crypto.SHA256
	switch k := key.Public().(type) {
	case *ecdsa.PublicKey:
		h = hashes(k)[0]
	case *rsa.PublicKey:
	case ed25519.PublicKey:
		return key.Sign(nil, message, crypto.Hash(0))
	default:
		panic("dsse: internal error: a key of a kind that ParsePrivateKey does not return")
	}
	return key.Sign(nil, sum(h, message), h) // without random bytes: RFC 6979
}
