package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// TestKeyless pulls a model with a keyless signature by a daemon with the capabilities of its unit, which starts
// ballast-keyless as another user: it is accepted for the identity that signed it, and refused for others.
func TestKeyless(t *testing.T) {
	vectors, err := filepath.Abs("../../convert/signature/keyless/testdata")
	if err != nil {
		t.Fatal(err)
	}
	rule := func(match, issuer, subject string) string {
		return "\n[[verify.rule]]\nmatch = \"*/" + match + "/*\"\nmode = \"enforce\"\nany = [{type = \"oms\", trusted_root = \"" + vectors + "/public-good.json\", issuer = \"" +
			issuer + "\", subject = \"" + subject + "\"}]\n"
	}
	const issuer, subject = "https://sigstore.verify.ibm.com/oauth2", "stefanb@us.ibm.com"
	n := node.StartNode(t, node.Options{Wrap: asUnit(t), Config: rule("team", issuer, subject) + rule("issuer", issuer+"/", subject) + rule("subject", issuer, "x"+subject)})
	var files []converttest.File
	for _, name := range []string{"ignore-me", "model.sig", "signme-1", "signme-2"} {
		p, err := os.ReadFile(filepath.Join(vectors, "v1.1.0", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, converttest.File{Path: name, Data: p, Mode: 0o644})
	}
	b := converttest.ModelPackRaw(files)
	refs := map[string]string{}
	for _, of := range []string{"team", "issuer", "subject"} {
		n.Registry.Push(t, of+"/model", "1", artifact(b))
		refs[of] = n.Registry.Ref(of+"/model", "1")
	}
	wantError(t, n.Pull("ballast", refs["issuer"]), "refused by [[verify.rule]]", "whose issuer")
	wantError(t, n.Pull("ballast", refs["subject"]), "refused by [[verify.rule]]", "not by")
	mustPull(t, n, "ballast", refs["team"])
	wantFiles(t, n, refs["team"], states(b))
	wantError(t, n.Ballast("verify", "--signatures", refs["subject"]), "refused")
	out := n.Ballast("verify", "--signatures", "--trusted-root", vectors+"/public-good.json", "--issuer", issuer, "--subject", subject, refs["team"])
	if out.Err != nil {
		t.Errorf("verify without the daemon: %v\n%s", out.Err, out.Output())
	}
}

// TestKeylessPublished publishes models with "convert --signing-config" and pulls them under an enforced rule for the
// identity of the token: what another identity or nobody has signed is refused. It also pulls what cosign's own library
// has signed, whose signature is in the list of referrers that cosign writes for such a registry.
func TestKeylessPublished(t *testing.T) {
	vectors, err := filepath.Abs("../../convert/signature/cosign/testdata/referrer")
	if err != nil {
		t.Fatal(err)
	}
	s, dir := converttest.NewSigstore(t), t.TempDir()
	const subject = "https://ci.example/team/models/release.yml@refs/heads/main"
	rule := func(match, root string) string {
		signer := func(kind string) string {
			return `{type = "` + kind + `", trusted_root = "` + root + `", issuer = "` + s.Issuer + `", subject = "` + subject + `"}`
		}
		return "\n[[verify.rule]]\nmatch = \"*/" + match + "/*\"\nmode = \"enforce\"\nany = [" + signer("cosign") + ", " + signer("oms") + "]\n"
	}
	n := node.StartNode(t, node.Options{Wrap: asUnit(t), Config: rule("team", s.TrustedRoot) + rule("cosign", vectors+"/trusted_root.json")})
	b := converttest.ModelPackRaw(converttest.Files(weights(91, 5<<20)))
	from := push(t, n, b)
	publish := func(name, as, by string) string {
		t.Helper()
		ref := n.Registry.Ref("team/"+name, "1")
		args := []string{"convert", from, ref, "--as", as}
		if by != "" {
			token := filepath.Join(dir, name)
			if err := os.WriteFile(token, []byte(s.Token(map[string]any{"sub": by})), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, "--signing-config", s.SigningConfig, "--identity-token", token)
		}
		if out := n.Ballast(args...); out.Err != nil || by != "" && !strings.Contains(out.Output(), "signed by "+by+" of "+s.Issuer) {
			t.Fatalf("ballast %v: %v\n%s", args, out.Err, out.Output())
		}
		return ref
	}
	for _, ref := range []string{publish("nobody", "modelpack", ""), publish("other", "modelpack", subject+"x"), publish("otherahead", "ballast", subject+"x")} {
		wantError(t, n.Pull("ballast", ref), "refused by [[verify.rule]]")
		wantError(t, n.Ballast("verify", "--signatures", ref), "refused")
	}
	for _, ref := range []string{publish("model", "modelpack", subject), publish("ahead", "ballast", subject)} {
		mustPull(t, n, "ballast", ref)
		wantFiles(t, n, ref, states(b))
		if out := n.Ballast("verify", "--signatures", ref); out.Err != nil || !strings.Contains(out.Output(), subject) {
			t.Errorf("%s: %v\n%s", ref, out.Err, out.Output())
		}
	}

	read := func(name string) []byte {
		p, err := os.ReadFile(filepath.Join(vectors, name))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	blobs := map[digest.Digest][]byte{}
	for _, p := range [][]byte{read("config.json"), read("model.gguf"), read("bundle.json"), []byte("{}")} {
		blobs[digest.FromBytes(p)] = p
	}
	of := n.Registry.Push(t, "cosign/model", "1", node.Artifact{Manifest: read("manifest.json"), MediaType: mediatype.OCIManifest, Blobs: blobs})
	ref := n.Registry.Ref("cosign/model", "1")
	wantError(t, n.Pull("ballast", ref), "refused by [[verify.rule]]")
	referrer := read("referrer.json")
	d := n.Registry.Push(t, "cosign/model", "sig", node.Artifact{Manifest: referrer, MediaType: mediatype.OCIManifest})
	list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"artifactType":%q}]}`,
		mediatype.OCIIndex, mediatype.OCIManifest, d, len(referrer), mediatype.Bundle)
	n.Registry.Push(t, "cosign/model", strings.Replace(of.String(), ":", "-", 1), node.Artifact{Manifest: list, MediaType: mediatype.OCIIndex})
	mustPull(t, n, "ballast", ref)
}
