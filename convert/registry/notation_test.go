package registry_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/containerd/errdefs"
	lib "github.com/notaryproject/notation-go"
	"github.com/notaryproject/notation-go/signer"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// notary returns a signer as of notation, and its certificate in PEM.
func notary(t *testing.T, name string) (lib.Signer, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"team"}, Country: []string{"DE"}, Province: []string{"B"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s, err := signer.NewGenericSigner(key, []*x509.Certificate{cert})
	if err != nil {
		t.Fatal(err)
	}
	return s, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// trustPolicy writes a policy that trusts a certificate, in the layout of notation.
func trustPolicy(t *testing.T, cert []byte) string {
	t.Helper()
	dir := t.TempDir()
	ca := filepath.Join(dir, "truststore", "x509", "ca", "team")
	if err := os.MkdirAll(ca, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(ca, "team.pem"), cert, 0o644); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(dir, "trustpolicy.json")
	err := os.WriteFile(policy, []byte(`{"version":"1.0","trustPolicies":[{"name":"team","registryScopes":["*"],
		"signatureVerification":{"level":"strict"},"trustStores":["ca:team"],"trustedIdentities":["*"]}]}`), 0o644)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func TestNotation(t *testing.T) {
	t.Parallel()
	team, cert := notary(t, "team")
	stranger, _ := notary(t, "stranger")
	b := converttest.ModelPackRaw(converttest.Files(weights(1000)))
	other := converttest.ModelPackRaw(converttest.Files(weights(1001)))
	for _, tt := range []struct {
		name   string
		signer lib.Signer
		of     *converttest.Built
		status int
	}{
		{"signed", team, b, http.StatusOK},
		{"signed by a stranger", stranger, b, http.StatusForbidden},
		{"the signature of another", team, other, http.StatusForbidden},
		{"nothing", nil, nil, http.StatusForbidden},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u, f := newUpstream(t), newFacade(t, remote.Options{})
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{Type: signature.TypeNotation, Policy: trustPolicy(t, cert)}}})
			u.push("team/m", "v1", b)
			if tt.signer != nil {
				for _, kind := range []string{"application/jose+json", "application/cose"} {
					desc := ocispec.Descriptor{MediaType: tt.of.MediaType, Digest: tt.of.Digest(), Size: int64(len(tt.of.Manifest))}
					p, _, err := tt.signer.Sign(t.Context(), desc, lib.SignerSignOptions{SignatureMediaType: kind})
					if err != nil {
						t.Fatal(err)
					}
					u.attach(t, "api", "team/m", b.Digest(), mediatype.Notation, kind, p)
				}
			}
			if r := f.team(t, u, "v1"); r.status != tt.status {
				t.Errorf("status %d: %s, want %d", r.status, r.body, tt.status)
			}
		})
	}
}

// TestRuleErrors names what can not be read when the daemon starts.
func TestRuleErrors(t *testing.T) {
	t.Parallel()
	_, cert := notary(t, "team")
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, tt := range []struct {
		name   string
		signer signature.SignerOptions
		want   string
	}{
		{"no file", signature.SignerOptions{Type: signature.TypeOMS, Key: filepath.Join(dir, "none.pub")}, "none.pub"},
		{"no key", signature.SignerOptions{Type: signature.TypeOMS, Key: write("x", "x")}, "no public key"},
		{"a certificate in the place of a key", signature.SignerOptions{Type: signature.TypeCosign, Key: write("c", string(cert))}, "not a public key"},
		{"no certificate", signature.SignerOptions{Type: signature.TypeOMS, Roots: write("y", "")}, "no certificate"},
		{"a directory", signature.SignerOptions{Type: signature.TypeOMS, Roots: dir}, "not a regular file"},
		{"neither", signature.SignerOptions{Type: signature.TypeCosign}, "neither a key nor roots"},
		{"another type", signature.SignerOptions{Type: "gpg"}, "not one of oms, cosign, notation"},
		{"no policy", signature.SignerOptions{Type: signature.TypeNotation, Policy: write("p.json", "{}")}, "p.json"},
		{"no trust store", signature.SignerOptions{Type: signature.TypeNotation, Policy: write("q.json", `{"version":"1.0","trustPolicies":[{"name":"t","registryScopes":["*"],"signatureVerification":{"level":"strict"},"trustStores":["ca:t"],"trustedIdentities":["*"]}]}`)}, "trust store"},
	} {
		_, err := signature.NewRule(signature.RuleOptions{Name: "r", Mode: signature.Enforce, Any: []signature.SignerOptions{tt.signer}})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), `rule "r": signer 1`) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if tt.name == "no key" && !errdefs.IsInvalidArgument(err) {
			t.Errorf("category of %v", err)
		}
	}
}
