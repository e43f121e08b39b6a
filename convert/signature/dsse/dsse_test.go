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
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

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
		if err != nil || s.PredicateType != statement.PredicateType || who != "key "+fingerprint(key.Public()) {
			t.Errorf("%s: %+v by %q, %v", name, s, who, err)
		}
	}
}

// TestCertificates trusts certificates of a root that are for signing code, by names of the given type.
func TestCertificates(t *testing.T) {
	keys := privateKeys(t)
	ca, key := keys["P-384"], keys["P-256"]
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	certificate := func(template, parent *x509.Certificate, public crypto.PublicKey) []byte {
		t.Helper()
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, ca)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	root, err := x509.ParseCertificate(certificate(authority, authority, ca.Public()))
	if err != nil {
		t.Fatal(err)
	}
	message := []byte("model")
	sig, err := signMessage(key, message)
	if err != nil {
		t.Fatal(err)
	}
	code := []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}
	signer := func(parent *x509.Certificate, usage []x509.ExtKeyUsage) []byte {
		return certificate(&x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "release@team.example"}, ExtKeyUsage: usage,
			DNSNames: []string{"dns.team.example"}, EmailAddresses: []string{"mail@team.example"}, URIs: []*url.URL{{Scheme: "https", Host: "team.example", Path: "/uri"}},
			NotBefore: time.Now(), NotAfter: time.Now().Add(time.Minute),
		}, parent, key.Public())
	}
	for _, tt := range []struct {
		name    string
		usage   []x509.ExtKeyUsage
		subject string
		ok      bool
	}{
		{"for code", code, "", true},
		{"for code and more", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageCodeSigning}, "", true},
		{"of a server", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, "", false},
		{"of a client", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, "", false},
		{"for anything", []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, "", false},
		{"for nothing in particular", nil, "", false},
		{"email", code, "email:mail@team.example", true},
		{"uri", code, "uri:https://team.example/uri", true},
		{"dns", code, "dns:dns.team.example", true},
		{"common name", code, "cn:release@team.example", true},
		{"a common name as email", code, "email:release@team.example", false},
		{"a common name as DNS name", code, "dns:release@team.example", false},
		{"an email as common name", code, "cn:mail@team.example", false},
		{"a DNS name as uri", code, "uri:dns.team.example", false},
		{"without type", code, "mail@team.example", false},
	} {
		trust := &Trust{Roots: []*x509.Certificate{root}, Subject: tt.subject}
		if _, err := trust.VerifyMessage(message, sig, [][]byte{signer(root, tt.usage)}); (err == nil) != tt.ok || err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v, want trusted %v", tt.name, err, tt.ok)
		}
	}
	web := *authority
	web.SerialNumber, web.Subject, web.ExtKeyUsage = big.NewInt(3), pkix.Name{CommonName: "authority of servers"}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der := certificate(&web, root, ca.Public())
	between, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Trust{Roots: []*x509.Certificate{root}}).VerifyMessage(message, sig, [][]byte{signer(between, code), der}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("by an authority of servers: %v", err)
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

// TestParseMemory: the lists of a bundle cost no multiple of its size.
func TestParseMemory(t *testing.T) {
	elements := strings.TrimSuffix(strings.Repeat("{},", 2_700_000), ",")
	for _, form := range []string{`{"dsseEnvelope":{"signatures":[%s]}}`, `{"verificationMaterial":{"x509CertificateChain":{"certificates":[%s]}}}`} {
		p := fmt.Appendf(nil, form, elements)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := Parse(p); err == nil || len(p) > MaxSize {
			t.Errorf("%d bytes: %v", len(p), err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Errorf("%.40s: %d MiB are allocated for %d MiB", form, n>>20, len(p)>>20)
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
