package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestVerifyByKey publishes models and checks their signatures with a key alone: no daemon runs, and the registry wants
// the credentials of the user. Nothing is left behind, and no weights are read.
func TestVerifyByKey(t *testing.T) {
	r := registrytest.New(t)
	dir, temp := t.TempDir(), t.TempDir()
	private, public := converttest.KeyPair(t, dir, "team")
	_, stranger := converttest.KeyPair(t, dir, "stranger")
	login := fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, r.Host(), base64.StdEncoding.EncodeToString([]byte("team:secret")))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(login), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	t.Setenv("TMPDIR", temp)
	model := modelDir(t)
	publish := func(name string, flags ...string) (ref string) {
		t.Helper()
		r.SetUser("team/"+name, "team:secret")
		ref = r.Host() + "/team/" + name + ":v1"
		if code, _, stderr := ballast(t, append([]string{"convert", model, ref}, flags...)...); code != 0 {
			t.Fatal(code, stderr)
		}
		return ref
	}
	signed, unsigned := publish("signed", "--as", "modelpack", "--sign", private), publish("unsigned", "--as", "modelpack")
	const root = "../../convert/signature/keyless/testdata/public-good.json"
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"its key":               {[]string{signed, "--key", public}, 0, "accepted"},
		"one of two keys":       {[]string{signed, "--key", stranger, "--key", public}, 0, "accepted"},
		"with tars":             {[]string{publish("tars", "--as", "cnai", "--sign", private), "--key", public}, 0, "cosign key team.pub"},
		"converted ahead":       {[]string{publish("ahead", "--as", "ballast", "--sign", private), "--key", public}, 0, "accepted"},
		"as JSON":               {[]string{signed, "--key", public, "-o", "json"}, 0, `"state":"accepted"`},
		"the key of a stranger": {[]string{signed, "--key", stranger}, exitState, "not signed by " + stranger},
		"no signature":          {[]string{unsigned, "--key", public}, exitState, "no signature was found"},
		"a private key":         {[]string{signed, "--key", private}, exitUsage, private},
		"no file":               {[]string{signed, "--key", filepath.Join(dir, "none")}, exitError, "no such file"},
		"an identity":           {[]string{signed, "--trusted-root", root, "--issuer", "i", "--subject", "s"}, exitState, "not signed by s of i"},
		"half an identity":      {[]string{signed, "--trusted-root", root, "--issuer", "i"}, exitUsage, "needs --trusted-root, --issuer and --subject"},
		"an issuer alone":       {[]string{signed, "--issuer", "i"}, exitUsage, "needs --trusted-root, --issuer and --subject"},
		"an empty root":         {[]string{signed, "--trusted-root", "", "--issuer", "i", "--subject", "s"}, exitUsage, "needs --trusted-root, --issuer and --subject"},
		"an empty issuer":       {[]string{signed, "--trusted-root", root, "--issuer", "", "--subject", "s"}, exitUsage, "needs --trusted-root, --issuer and --subject"},
		"an empty key":          {[]string{signed, "--key", ""}, exitUsage, "--key needs the file of a public key"},
		"an empty second key":   {[]string{signed, "--key", public, "--key", ","}, exitUsage, "--key needs the file of a public key"},
		"a key or an identity":  {[]string{signed, "--key", public, "--trusted-root", root, "--issuer", "i", "--subject", "s"}, 0, "accepted"},
		"no model":              {[]string{"--key", public}, exitUsage, "--signatures needs a reference"},
		"with --repair":         {[]string{signed, "--key", public, "--repair"}, exitUsage, "cannot be used with --repair"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := ballast(t, append([]string{"verify", "--signatures"}, tt.args...)...)
			if code != tt.code || !strings.Contains(strings.ReplaceAll(stdout+stderr, ": \"", ":\""), tt.want) {
				t.Errorf("code %d, stdout %q, stderr %q; want %d, %q", code, stdout, stderr, tt.code, tt.want)
			}
		})
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if code, _, stderr := ballast(t, "verify", signed, "--key", public); code != exitUsage || !strings.Contains(stderr, "--key is for --signatures") {
		t.Errorf("without --signatures: code %d, stderr %q", code, stderr)
	}
	if code, _, stderr := ballast(t, "verify", signed, "--trusted-root", root, "--issuer", "i", "--subject", "s"); code != exitUsage || !strings.Contains(stderr, "--subject are for --signatures") {
		t.Errorf("an identity without --signatures: code %d, stderr %q", code, stderr)
	}
}

// TestVerifyUnanswered tells a signature that the registry does not serve from one that it does not have. Neither hides
// another one.
func TestVerifyUnanswered(t *testing.T) {
	r := registrytest.New(t)
	private, public := converttest.KeyPair(t, t.TempDir(), "team")
	ref := r.Host() + "/team/m:v1"
	if code, _, stderr := ballast(t, "convert", modelDir(t), ref, "--as", "modelpack", "--sign", private); code != 0 {
		t.Fatal(code, stderr)
	}
	list := r.Manifest("team/m", remote.ReferrersTag(digest.FromBytes(r.Manifest("team/m", "v1"))))
	var documents, bundles []string
	for _, d := range parse[ocispec.Index](t, string(list)).Manifests {
		documents = append(documents, "/manifests/"+d.Digest.String())
		m := parse[ocispec.Manifest](t, string(r.Manifest("team/m", d.Digest.String())))
		bundles = append(bundles, "/blobs/"+m.Layers[0].Digest.String())
	}
	for _, tt := range []struct {
		without      []string
		status, code int
	}{
		{documents, http.StatusServiceUnavailable, exitNetwork},
		{bundles, http.StatusServiceUnavailable, exitNetwork},
		{documents, http.StatusNotFound, exitState},
		{bundles, http.StatusNotFound, exitState},
		{documents[:1], http.StatusServiceUnavailable, 0},
		{bundles[1:], http.StatusServiceUnavailable, 0},
	} {
		r.Before(func(w http.ResponseWriter, req *http.Request) bool {
			hit := slices.ContainsFunc(tt.without, func(path string) bool { return strings.HasSuffix(req.URL.Path, path) })
			if hit {
				w.WriteHeader(tt.status)
			}
			return hit
		})
		if code, stdout, stderr := ballast(t, "verify", "--signatures", "--key", public, ref); code != tt.code {
			t.Errorf("%d for %q: code %d, want %d: %s%s", tt.status, tt.without, code, tt.code, stdout, stderr)
		}
	}
}
