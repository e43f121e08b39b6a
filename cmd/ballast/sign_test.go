package main

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/opencontainers/go-digest"
)

// A program is ballast beside ballast-keyless, as they are installed.
type program string

func installed(t *testing.T) program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.ReadFile(self)
	dir := filepath.Dir(converttest.Keyless(t))
	path := filepath.Join(dir, "ballast")
	if err == nil {
		err = errors.Join(os.WriteFile(path, p, 0o755), os.WriteFile(filepath.Join(dir, "config.toml"), []byte("version = 1\n"), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return program(path)
}

// run runs a command line with more variables.
func (p program) run(t *testing.T, env []string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), string(p), args...)
	cmd.Env = append(append(os.Environ(), programVariable+"=1", "BALLAST_CONFIG="+filepath.Join(filepath.Dir(string(p)), "config.toml")), env...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), b.String()
}

// TestSignKeyless publishes a model with the identity of a token from each source: that identity is accepted, by the
// manifest and by the files, and no other. The token is in no argument, no environment of another program and no output.
func TestSignKeyless(t *testing.T) {
	s, r, p := converttest.NewSigstore(t), registrytest.New(t), installed(t)
	claims := map[string]any{"sub": "17", "email": "release@team.example", "email_verified": true}
	token := s.Token(claims)
	requestURL, requestToken := s.GitHub()
	secrets := []string{token, requestToken}
	var shown []string
	s.Before = func(_ http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, "/signingCert") {
			return false
		}
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, cmdline := range all {
			args, _ := os.ReadFile(cmdline)
			text := args
			if bytes.HasPrefix(args, []byte(filepath.Join(filepath.Dir(string(p)), "ballast-keyless"))) {
				env, _ := os.ReadFile(filepath.Join(filepath.Dir(cmdline), "environ"))
				text = append(args, env...)
				shown = append(shown, "-")
			}
			for _, secret := range secrets {
				if bytes.Contains(text, []byte(secret)) {
					shown = append(shown, string(text))
				}
			}
		}
		return false
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const workflow = "https://github.example/team/models/.github/workflows/release.yml@refs/heads/main"
	for name, tt := range map[string]struct {
		env, flags []string
		subject    string
	}{
		"file":     {nil, []string{"--as", "modelpack", "--identity-token", file}, "release@team.example"},
		"variable": {[]string{"SIGSTORE_ID_TOKEN=" + token}, nil, "release@team.example"},
		"github":   {[]string{"ACTIONS_ID_TOKEN_REQUEST_URL=" + requestURL, "ACTIONS_ID_TOKEN_REQUEST_TOKEN=" + requestToken}, []string{"--as", "cnai"}, workflow},
	} {
		shown = nil
		ref := r.Host() + "/team/" + name + ":v1"
		code, out := p.run(t, tt.env, append([]string{"convert", modelDir(t), ref, "--debug", "--signing-config", s.SigningConfig}, tt.flags...)...)
		if code != 0 || !strings.Contains(out, "signed by "+tt.subject+" of "+s.Issuer) {
			t.Fatalf("%s: code %d: %s", name, code, out)
		}
		for _, secret := range secrets {
			if strings.Contains(out, secret) {
				t.Errorf("%s: a token is in the output: %s", name, out)
			}
		}
		if strings.Join(shown, "\n") != "-" {
			t.Errorf("%s: want one ballast-keyless, and no token in what processes show: %q", name, shown)
		}
		for _, who := range []struct {
			issuer, subject string
			code            int
		}{
			{s.Issuer, tt.subject, 0}, {s.Issuer + "/", tt.subject, exitState}, {s.Issuer, "x" + tt.subject, exitState},
		} {
			code, out := p.run(t, nil, "verify", "--signatures", "--trusted-root", s.TrustedRoot, "--issuer", who.issuer, "--subject", who.subject, ref)
			if code != who.code {
				t.Errorf("%s by %s of %s: code %d, want %d: %s", name, who.subject, who.issuer, code, who.code, out)
			}
		}
		code, out = p.run(t, nil, "verify", "--signatures", "--trusted-root", converttest.NewSigstore(t).TrustedRoot, "--issuer", s.Issuer, "--subject", tt.subject, ref)
		if code != exitState {
			t.Errorf("%s by another Sigstore: code %d: %s", name, code, out)
		}
	}
	for _, n := range []string{"file", "variable"} { // the manifest and the files
		if got := referrers(r, "team/"+n); got != 2 {
			t.Errorf("%s has %d signatures, want 2", n, got)
		}
	}
}

// referrers counts the referrers of a tag.
func referrers(r *registrytest.Server, repository string) int {
	list := strings.Replace(digest.FromBytes(r.Manifest(repository, "v1")).String(), ":", "-", 1)
	return strings.Count(string(r.Manifest(repository, list)), `"artifactType"`)
}

// TestSignKeylessUsage refuses what cannot sign before anything is sent, and never repeats a token.
func TestSignKeylessUsage(t *testing.T) {
	s, r, p := converttest.NewSigstore(t), registrytest.New(t), installed(t)
	key, _ := converttest.KeyPair(t, t.TempDir(), "team")
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	_, tail, _ := strings.Cut(string(secret), "\n")
	base64, _, _ := strings.Cut(tail, "\n")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, old := s.Token(map[string]any{"sub": "me"}), s.Token(map[string]any{"sub": "me", "exp": 1})
	with := []string{"SIGSTORE_ID_TOKEN=" + good}
	for name, tt := range map[string]struct {
		env, flags []string
		code       int
		want       string
	}{
		"two ways":                 {with, []string{"--sign", key, "--signing-config", s.SigningConfig}, exitUsage, "give one"},
		"no services":              {with, []string{"--identity-token", write("good", good)}, exitUsage, "cosign signing-config create"},
		"no token":                 {nil, []string{"--signing-config", s.SigningConfig}, exitUsage, "SIGSTORE_ID_TOKEN"},
		"half of GitHub":           {[]string{"ACTIONS_ID_TOKEN_REQUEST_URL=" + s.URL}, []string{"--signing-config", s.SigningConfig}, exitUsage, "id-token: write"},
		"a token as an argument":   {nil, []string{"--signing-config", s.SigningConfig, "--identity-token", good}, exitUsage, "takes a file"},
		"a header as an argument":  {nil, []string{"--signing-config", s.SigningConfig, "--identity-token", " Bearer " + good}, exitUsage, "takes a file"},
		"an answer as an argument": {nil, []string{"--signing-config", s.SigningConfig, "--identity-token", `{"value":"` + good + `"}`}, exitUsage, "takes a file"},
		"a key as an argument":     {nil, []string{"--sign", string(secret)}, exitUsage, "--sign takes a file"},
		"a key in one line":        {nil, []string{"--sign", strings.ReplaceAll(string(secret), "\n", " ")}, exitUsage, "--sign takes a file"},
		"the end of a key":         {nil, []string{"--sign", tail}, exitUsage, "--sign takes a file"},
		"the middle of a key":      {nil, []string{"--sign", strings.ReplaceAll(tail[:strings.Index(tail, "-----")], "\n", "")}, exitUsage, "--sign: "},
		"no file of a token":       {nil, []string{"--signing-config", s.SigningConfig, "--identity-token", dir + "/none"}, exitUsage, "no such file"},
		"no token in the file":     {nil, []string{"--signing-config", s.SigningConfig, "--identity-token", write("text", "a secret text")}, exitUsage, "is not a token of OpenID Connect"},
		"an expired token":         {[]string{"SIGSTORE_ID_TOKEN=" + old}, []string{"--signing-config", s.SigningConfig}, exitUnauthorised, "has expired"},
		"no file of services":      {with, []string{"--signing-config", dir + "/none"}, exitUsage, "no such file"},
		"a large file":             {with, []string{"--signing-config", write("large", strings.Repeat(" ", maxSignFile+1))}, exitUsage, "larger than 1 MiB"},
		"another file":             {with, []string{"--signing-config", s.TrustedRoot}, exitUsage, "signing config: "},
		"for a carton":             {with, []string{"--as", "carton", "--signing-config", s.SigningConfig}, exitUsage, "and takes --runner"},
	} {
		t.Run(name, func(t *testing.T) {
			to := r.Host() + "/team/refused:v1"
			if name == "for a carton" {
				to = filepath.Join(t.TempDir(), "x.carton")
			}
			code, out := p.run(t, tt.env, append([]string{"convert", modelDir(t), to}, tt.flags...)...)
			if code != tt.code || !strings.Contains(out, tt.want) || strings.Contains(out, good) || strings.Contains(out, old) || strings.Contains(out, "a secret text") || strings.Contains(out, base64) {
				t.Errorf("code %d, %s; want %d, %q", code, out, tt.code, tt.want)
			}
		})
	}
	if n := len(r.Requests()); n > 0 {
		t.Errorf("%d requests to the registry", n)
	}
}
