package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

const sumsFile = "SHA256SUMS"

// sums writes the digests of all files, as sha256sum does, and signs them.
func (r *release) sums(context.Context) error {
	entries, err := os.ReadDir(r.out) // sorted
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range entries {
		p, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(p), e.Name())
		fmt.Printf("%10d  %s\n", len(p), e.Name())
	}
	if err := os.WriteFile(filepath.Join(r.out, sumsFile), b.Bytes(), 0o644); err != nil {
		return err
	}
	if r.key == "" {
		fmt.Println("The release is not signed: there is no key (make release VERSION=" + r.Version + " COSIGN_KEY=FILE).")
		return nil
	}
	return r.sign(b.Bytes())
}

// sign writes the signature of the digests, and the public key.
func (r *release) sign(text []byte) error {
	key, public, err := r.keys()
	if err != nil {
		return err
	}
	signed, err := bundle(key, public, text)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.out, sumsFile+".sigstore.json"), signed, 0o644),
		os.WriteFile(filepath.Join(r.out, "ballast.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644),
	)
}

// fingerprinted are the files that name the fingerprint of the key by which releases are signed.
var fingerprinted = []string{"SECURITY.md", "contrib/docs/install.md"}

// checkKey returns an error unless the documents of the repository name the fingerprint of the key that signs: whoever
// replaces a release can replace ballast.pub beside it too.
func (r *release) checkKey() error {
	_, public, err := r.keys()
	if err != nil {
		return err
	}
	want := fingerprint(public)
	for _, name := range fingerprinted {
		p, err := os.ReadFile(filepath.Join(r.Source, name))
		if err != nil {
			return err
		}
		if !strings.Contains(string(p), want) {
			return fmt.Errorf("%s does not name the key of this release: it has the fingerprint %s. Write that into %s, and commit it, if it is the right key",
				name, want, strings.Join(fingerprinted, " and "))
		}
	}
	return nil
}

// fingerprint returns the fingerprint of a public key in DER.
func fingerprint(public []byte) string { return fmt.Sprintf("%x", sha256.Sum256(public)) }

// keys returns the key that signs, and its public key in DER.
func (r *release) keys() (*ecdsa.PrivateKey, []byte, error) {
	p, err := os.ReadFile(r.key)
	if err != nil {
		return nil, nil, err
	}
	key, err := parseKey(p, []byte(os.Getenv("COSIGN_PASSWORD")))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", r.key, err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	return key, public, err
}

// bundle signs a text, and returns the signature as a bundle of Sigstore. The same key and text result in the
// same bytes (RFC 6979).
// https://github.com/sigstore/protobuf-specs/blob/v0.5.1/protos/sigstore_bundle.proto
func bundle(key *ecdsa.PrivateKey, public, text []byte) ([]byte, error) {
	sum, hint := sha256.Sum256(text), sha256.Sum256(public)
	signature, err := key.Sign(nil, sum[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	type object = map[string]any
	b, err := json.MarshalIndent(object{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": object{"publicKey": object{"hint": hint[:]}},
		"messageSignature":     object{"messageDigest": object{"algorithm": "SHA2_256", "digest": sum[:]}, "signature": signature},
	}, "", "  ")
	return append(b, '\n'), err
}

// parseKey parses a private key as PEM: one of cosign, which is encrypted, or one in PKCS #8 or SEC 1.
func parseKey(p, password []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(p)
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	der := block.Bytes
	switch {
	case block.Type == "EC PRIVATE KEY":
		return x509.ParseECPrivateKey(der)
	case strings.HasPrefix(block.Type, "ENCRYPTED ") && block.Type != "ENCRYPTED PRIVATE KEY":
		var err error
		if der, err = encrypted.Decrypt(der, password); err != nil {
			return nil, fmt.Errorf("the password in COSIGN_PASSWORD does not open it: %w", err)
		}
	case block.Type != "PRIVATE KEY":
		return nil, fmt.Errorf("it is a %q, not a key of cosign or an EC key", block.Type)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve.Params().BitSize != 256 {
		return nil, errors.New("it is not an EC key on P-256")
	}
	return ec, nil
}
