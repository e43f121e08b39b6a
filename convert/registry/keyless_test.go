package registry_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature"
	"github.com/opencontainers/go-digest"
)

// TestKeyless answers models with a keyless signature of the rule's identity only, with the program once and without it
// after that. A change of any part of the identity needs the program again.
func TestKeyless(t *testing.T) {
	t.Parallel()
	const dir = "../signature/keyless/testdata"
	program := converttest.Keyless(t)
	id := signature.SignerOptions{
		Type: signature.TypeOMS, Issuer: "https://sigstore.verify.ibm.com/oauth2", Subject: "stefanb@us.ibm.com", TrustedRoot: filepath.Join(dir, "public-good.json"),
	}
	u, f := newUpstream(t), newFacade(t, remote.Options{})
	files := filesOf(t, filepath.Join(dir, "v1.1.0"))
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	for _, tt := range []struct {
		name, program string
		change        func(*signature.SignerOptions)
		status        int
		want          string
	}{
		{"the program is missing", "/none/ballast-keyless", nil, http.StatusForbidden, "install it in /none"},
		{"another issuer", program, func(s *signature.SignerOptions) { s.Issuer += "/" }, http.StatusForbidden, "whose issuer"},
		{"another subject", program, func(s *signature.SignerOptions) { s.Subject = "u" + s.Subject }, http.StatusForbidden, "signed by \\\"stefanb@us.ibm.com\\\", not by"},
		{"another trusted root", program, func(s *signature.SignerOptions) { s.TrustedRoot = filepath.Join(dir, "scaffolding.json") }, http.StatusForbidden, "log"},
		{"of the manifest", program, func(s *signature.SignerOptions) { s.Type = signature.TypeCosign }, http.StatusForbidden, "no signature was found"},
		{"the signer", program, nil, http.StatusOK, ""},
		{"the verdict is kept", "/none/ballast-keyless", nil, http.StatusOK, ""},
		{"not for another issuer", "/none/ballast-keyless", func(s *signature.SignerOptions) { s.Issuer += "/" }, http.StatusForbidden, "install it"},
		{"not for another subject", "/none/ballast-keyless", func(s *signature.SignerOptions) { s.Subject += "x" }, http.StatusForbidden, "install it"},
		{"not for another trusted root", "/none/ballast-keyless", func(s *signature.SignerOptions) { s.TrustedRoot = filepath.Join(dir, "scaffolding.json") }, http.StatusForbidden, "install it"},
	} {
		s := id
		if tt.change != nil {
			tt.change(&s)
		}
		f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{s}})
		f.h.Signatures.Keyless.Path = tt.program
		if r := f.team(t, u, "v1"); r.status != tt.status || !strings.Contains(string(r.body), tt.want) {
			t.Errorf("%s: status %d: %s, want %d: %s", tt.name, r.status, r.body, tt.status, tt.want)
		}
	}
	f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{id}})
	f.h.Signatures.Keyless.Path = program
	files[len(files)-1].Data = append(files[len(files)-1].Data, 0)
	u.Add("team/m", "v1", converttest.ModelPackRaw(files))
	if r := f.team(t, u, "v1"); r.status != http.StatusForbidden || !strings.Contains(string(r.body), "differs from the signed one") {
		t.Errorf("changed: status %d: %s", r.status, r.body)
	}
}

// TestCosignReferrer answers a model with a keyless signature as cosign's own library made and stored it, for its identity
// only, whether the registry lists referrers or cosign had to write the list.
func TestCosignReferrer(t *testing.T) {
	t.Parallel()
	const dir = "../signature/cosign/testdata/referrer"
	program := converttest.Keyless(t)
	read := func(name string) []byte {
		p, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	model, referrer := read("manifest.json"), read("referrer.json")
	for _, where := range []string{"api", "tag"} {
		u := newUpstream(t)
		for _, name := range []string{"config.json", "model.gguf", "bundle.json"} {
			u.PutBlob("team/m", read(name))
		}
		u.PutBlob("team/m", []byte("{}"))
		of := u.Put("team/m", "v1", model, mediatype.OCIManifest)
		d := u.Put("team/m", "", referrer, mediatype.OCIManifest)
		list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"artifactType":%q}]}`,
			mediatype.OCIIndex, mediatype.OCIManifest, d, len(referrer), mediatype.Bundle)
		if where == "tag" {
			u.Put("team/m", remote.ReferrersTag(of), list, mediatype.OCIIndex)
		} else {
			u.Serve("/v2/team/m/referrers/"+of.String(), list)
		}
		f := newFacade(t, remote.Options{})
		for _, tt := range []struct {
			subject string
			status  int
		}{
			{"https://ci.example/team/models/release.yml@refs/heads/other", http.StatusForbidden},
			{"https://ci.example/team/models/release.yml@refs/heads/main", http.StatusOK},
		} {
			f.rule(t, signature.RuleOptions{Mode: signature.Enforce, Any: []signature.SignerOptions{{
				Type: signature.TypeCosign, Issuer: "https://issuer.example", Subject: tt.subject, TrustedRoot: filepath.Join(dir, "trusted_root.json"),
			}}})
			f.h.Signatures.Keyless.Path = program
			if r := f.team(t, u, "v1"); r.status != tt.status {
				t.Errorf("%s, %s: status %d: %s", where, tt.subject, r.status, r.body)
			}
		}
		// The same bundle beside another model, as whoever can write to the registry puts it.
		other := append([]byte(" "), model...)
		u.Put("team/m", "v2", other, mediatype.OCIManifest)
		u.Serve("/v2/team/m/referrers/"+digest.FromBytes(other).String(), list)
		if r := f.team(t, u, "v2"); r.status != http.StatusForbidden {
			t.Errorf("%s, another model: status %d: %s", where, r.status, r.body)
		}
	}
}
