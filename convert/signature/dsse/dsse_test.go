package dsse

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// statement is one that is signed in tests.
var statement = Statement{
	Type: StatementType, PredicateType: "https://example.com/p", Predicate: json.RawMessage(`{}`),
	Subject: []Subject{{Name: "s", Digest: map[string]string{"sha256": strings.Repeat("0", 64)}}},
}

func privateKeys(t testing.TB) map[string]crypto.Signer {
	t.Helper()
	out := map[string]crypto.Signer{}
	for name, c := range map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = k
	}
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, e, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	out["RSA"], out["Ed25519"] = r, e
	return out
}

// TestSign reads keys from PEM, as people have them, and gives the same bundle each time.
func TestSign(t *testing.T) {
	for name, key := range privateKeys(t) {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		read, err := ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		if err != nil {
			t.Fatal(err)
		}
		if der, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
			t.Fatal(err)
		}
		public, err := ParseKeys(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Sign(read, statement)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Sign(read, statement)
		if err != nil || !bytes.Equal(p, again) {
			t.Errorf("%s: signed again it is another bundle, %v", name, err)
		}
		b, err := Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		s, who, err := (&Trust{Keys: public}).Verify(b)
		if err != nil || s.PredicateType != statement.PredicateType || who != "key "+Fingerprint(key.Public()) {
			t.Errorf("%s: %+v by %q, %v", name, s, who, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	const media, payload = `"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"`, `"payloadType":"application/vnd.in-toto+json","payload":"e30="`
	many := strings.TrimSuffix(strings.Repeat(`{"rawBytes":"AA=="},`, maxCertificates+1), ",")
	for _, tt := range []struct {
		name, bundle string
		want         func(error) bool
	}{
		{"no JSON", "x", errdefs.IsInvalidArgument},
		{"another type", `{"mediaType":"application/json"}`, errdefs.IsNotImplemented},
		{"a signature of a blob", `{` + media + `,"messageSignature":{}}`, errdefs.IsNotImplemented},
		{"another payload", `{` + media + `,"dsseEnvelope":{"payloadType":"text/plain","payload":"e30=","signatures":[{"sig":"AA=="}]}}`, errdefs.IsNotImplemented},
		{"no signature", `{` + media + `,"dsseEnvelope":{` + payload + `}}`, errdefs.IsInvalidArgument},
		{"an empty signature", `{` + media + `,"dsseEnvelope":{` + payload + `,"signatures":[{"sig":""}]}}`, errdefs.IsInvalidArgument},
		{"two signatures", `{` + media + `,"dsseEnvelope":{` + payload + `,"signatures":[{"sig":"AA=="},{"sig":"AA=="}]}}`, errdefs.IsInvalidArgument},
		{"no base64", `{` + media + `,"dsseEnvelope":{"payload":"!"}}`, errdefs.IsInvalidArgument},
		{"many certificates", `{` + media + `,"verificationMaterial":{"x509CertificateChain":{"certificates":[` + many + `]}},"dsseEnvelope":{` + payload + `,"signatures":[{"sig":"AA=="}]}}`, errdefs.IsInvalidArgument},
		{"too large", strings.Repeat(" ", MaxSize+1), errdefs.IsInvalidArgument},
	} {
		if _, err := Parse([]byte(tt.bundle)); err == nil || !tt.want(err) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	for _, key := range []string{"", "x", "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAA==\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"} {
		if _, err := ParsePrivateKey([]byte(key)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("private key %q: %v", key, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	key := privateKeys(f)["P-256"]
	p, err := Sign(key, statement)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p)
	f.Add([]byte(`{"mediaType":"application/vnd.dev.sigstore.bundle+json;version=0.1","verificationMaterial":{"certificate":{"rawBytes":"AA=="}},"dsseEnvelope":{}}`))
	trust := &Trust{Keys: []crypto.PublicKey{key.Public()}}
	f.Fuzz(func(t *testing.T, p []byte) {
		b, err := Parse(p)
		if err != nil {
			return
		}
		b.PredicateType()
		if s, _, err := trust.Verify(b); err == nil && s.PredicateType != statement.PredicateType {
			t.Errorf("verified, but states %q", s.PredicateType)
		}
	})
}
