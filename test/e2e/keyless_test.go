package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
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
