package registry_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/containerd/errdefs"
)

// TestRuleErrors names what can not be read when the daemon starts.
func TestRuleErrors(t *testing.T) {
	t.Parallel()
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})
	dir := t.TempDir()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const root = "../signature/keyless/testdata/public-good.json"
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
		{"keyless without an issuer", signature.SignerOptions{Type: signature.TypeCosign, TrustedRoot: root, Subject: "s"}, "needs an issuer and a subject"},
		{"keyless without a subject", signature.SignerOptions{Type: signature.TypeCosign, TrustedRoot: root, Issuer: "i"}, "needs an issuer and a subject"},
		{"keyless with a key", signature.SignerOptions{Type: signature.TypeCosign, TrustedRoot: root, Issuer: "i", Subject: "s", Key: root}, "neither key nor roots"},
		{"no trusted root", signature.SignerOptions{Type: signature.TypeOMS, TrustedRoot: filepath.Join(dir, "none.json"), Issuer: "i", Subject: "s"}, "none.json"},
		{"a trusted root of another type", signature.SignerOptions{Type: signature.TypeOMS, TrustedRoot: write("b", `{"mediaType":"application/json"}`), Issuer: "i", Subject: "s"}, "not that of a trusted root"},
		{"a trusted root that is not JSON", signature.SignerOptions{Type: signature.TypeOMS, TrustedRoot: write("z", "x"), Issuer: "i", Subject: "s"}, "trusted root"},
		{"notation", signature.SignerOptions{Type: "notation"}, "not one of oms, cosign"},
		{"another type", signature.SignerOptions{Type: "gpg"}, "not one of oms, cosign"},
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
