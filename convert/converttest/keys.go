package converttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
)

// A Fataler is what KeyPair and Signer need of a test, or of a program that is none.
type Fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// KeyPair writes a new key pair to NAME.key and NAME.pub of a directory, as PEM, and returns the paths of both files.
func KeyPair(t Fataler, dir, name string) (private, public string) {
	t.Helper()
	_, private, public = keyPair(t, dir, name)
	return private, public
}

// Signer returns a private key, and a file in dir with its public half.
func Signer(t Fataler, dir string) (key crypto.Signer, public string) {
	t.Helper()
	key, _, public = keyPair(t, dir, "team")
	return key, public
}

func keyPair(t Fataler, dir, name string) (key crypto.Signer, private, public string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("%v", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("%v", err)
	}
	known, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatalf("%v", err)
	}
	write := func(name, kind string, der []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatalf("%v", err)
		}
		return p
	}
	return key, write(name+".key", "PRIVATE KEY", secret), write(name+".pub", "PUBLIC KEY", known)
}
