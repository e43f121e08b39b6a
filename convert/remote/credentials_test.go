package remote_test

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

func TestDockerCredentials(t *testing.T) {
	dir := t.TempDir()
	helper := "#!/bin/sh\nread host\ncase \"$host\" in\n" +
		"helped.example) echo '{\"ServerURL\":\"helped.example\",\"Username\":\"h\",\"Secret\":\"hs\"}';;\n" +
		"token.example) echo '{\"Username\":\"<token>\",\"Secret\":\"idtok\"}';;\n" +
		"broken.example) echo 'no such keychain'; exit 1;;\n" +
		"*) echo 'credentials not found in native keychain'; exit 1;;\nesac\n"
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-test"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	path := filepath.Join(dir, "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte("u:p:with:colons"))
	config := `{"auths":{
		"https://index.docker.io/v1/":{"auth":"` + auth + `"},
		"plain.example:5000":{"username":"pu","password":"pp"},
		"id.example":{"auth":"` + auth + `","identitytoken":"refresh"},
		"broken.example":{"username":"unused","password":"unused"},
		"bad.example":{"auth":"!!!"},
		"secret.example":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("hunter2")) + `"},
		"both.example":{"username":"fallback","password":"bp"}},
		"credHelpers":{"helped.example":"test","token.example":"test","broken.example":"test","missing.example":"../evil","both.example":"test"}}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	find := remote.DockerCredentials(path)
	for _, tt := range []struct {
		host, user, secret string
		bad                bool
	}{
		{host: "registry-1.docker.io", user: "u", secret: "p:with:colons"},
		{host: "docker.io", user: "u", secret: "p:with:colons"},
		{host: "plain.example:5000", user: "pu", secret: "pp"},
		{host: "plain.example"},
		{host: "id.example", secret: "refresh"},
		{host: "helped.example", user: "h", secret: "hs"},
		{host: "token.example", secret: "idtok"},
		{host: "broken.example", bad: true},
		{host: "missing.example", bad: true},
		{host: "bad.example", bad: true},
		{host: "secret.example", bad: true},
		{host: "both.example", user: "fallback", secret: "bp"},
		{host: "other.example"},
	} {
		got, err := find(tt.host, "team/m")
		if (err != nil) != tt.bad {
			t.Errorf("%s: got error %v, want an error: %t", tt.host, err, tt.bad)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error contains the secret: %v", tt.host, err)
		}
		if want := (remote.Credentials{Username: tt.user, Secret: tt.secret}); got != want {
			t.Errorf("%s: got user %q secret %q, want %q %q", tt.host, got.Username, got.Secret, tt.user, tt.secret)
		}
	}
	if got, err := remote.DockerCredentials(filepath.Join(dir, "none"))("x", "m"); err != nil || got != (remote.Credentials{}) {
		t.Errorf("without a file: %v, %v", got, err)
	}
}

// TestDockerCredentialsHub checks that every name of Docker Hub in a docker config is found.
func TestDockerCredentialsHub(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io", "https://docker.io"} {
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, fmt.Appendf(nil, `{"auths":{%q:{"username":"u","password":"p"}}}`, key), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"docker.io", "registry-1.docker.io"} {
			if got, err := remote.DockerCredentials(path)(host, "team/m"); err != nil || got.Username != "u" {
				t.Errorf("key %s, host %s: got user %q, %v", key, host, got.Username, err)
			}
		}
	}
}

// TestDockerCredentialsOfAliases finds credentials by any name of a registry.
func TestDockerCredentialsOfAliases(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"auths":{"huggingface.co":{"username":"u","password":"p"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := remote.DockerCredentials(path)("hf.co", "org/m"); err != nil || got.Username != "u" {
		t.Errorf("got user %q, %v", got.Username, err)
	}
}

// TestCredentialsByPath: each repository of a registry is asked with the credentials that are stored for it, and with
// none that are stored for others.
func TestCredentialsByPath(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, ok := r.BasicAuth(); ok {
			w.Write(manifestBytes("x"))
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	path := filepath.Join(t.TempDir(), "config.json")
	config := `{"auths":{"HOST/team-a":{"username":"a","password":"p"},"HOST/team-b":{"username":"b","password":"p"},
		"HOST/team-b/empty":{},"HOST/team-c/m":{"auth":"!!!"},"HOST/v2/team-d":{"identitytoken":""}}}`
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(config, "HOST", u.Host())), 0o600); err != nil {
		t.Fatal(err)
	}
	for repository, want := range map[string]string{"team-a/m": "a", "team-b/m": "b", "team-b/empty/m": "b", "team-c/other": "", "team-d/m": "", "team/m": "", "team-a2/m": ""} {
		c := newClient(t, remote.Options{Credentials: remote.DockerCredentials(path)})
		for range 20 { // the entries of a file have no order
			n := len(u.Requests())
			ref := u.ref(t, "latest")
			ref.Repository = repository
			r, err := c.NodeRepository(ref)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Manifest(t.Context(), "latest"); (err == nil) != (want != "") {
				t.Errorf("%s: %v", repository, err)
			}
			for _, s := range u.Requests()[n:] {
				if user, _, ok := (&http.Request{Header: s.Header}).BasicAuth(); ok && user != want {
					t.Fatalf("%s: the registry got the secret of %s", repository, user)
				}
			}
		}
	}
	if _, err := remote.DockerCredentials(path)(u.Host(), "team-c/m"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an entry that cannot be read: %v", err)
	}
}

// TestCredentialsOfMirror: a mirror is asked with the credentials that are stored for the repository at the mirror.
func TestCredentialsOfMirror(t *testing.T) {
	t.Parallel()
	mirror := newUpstream(t)
	var users []string
	mirror.Before(func(w http.ResponseWriter, r *http.Request) bool {
		user, _, ok := r.BasicAuth()
		users = append(users, user)
		if w.Header().Set("WWW-Authenticate", `Basic realm="x"`); !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	path := filepath.Join(t.TempDir(), "config.json")
	config := `{"auths":{"HOST/library":{"username":"wrong","password":"p"},"HOST/proxy/hub":{"username":"right","password":"p"}}}`
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(config, "HOST", mirror.Host())), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := hostsDir(t, "registry.example", "server = \"http://127.0.0.1:1\"\n[host.\""+mirror.URL+"/v2/proxy/hub\"]\n  override_path = true\n")
	c := newClient(t, remote.Options{HostsDir: dir, Credentials: remote.DockerCredentials(path)})
	r, err := c.NodeRepository(exampleRef(t, "x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Manifest(t.Context(), "latest") // the mirror has none
	if len(users) < 2 || users[len(users)-1] != "right" {
		t.Errorf("the mirror was asked as %q", users)
	}
}

// TestHelperRunsOnce checks that a helper without credentials for Docker Hub is asked once, by the name that docker
// uses, and that a helper has a plain name.
func TestHelperRunsOnce(t *testing.T) {
	dir := t.TempDir()
	log, path := filepath.Join(dir, "log"), filepath.Join(dir, "config.json")
	helper := "#!/bin/sh\ncat >>" + log + "\necho >>" + log + "\necho 'credentials not found in native keychain'\nexit 1\n"
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-none"), []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, helpers := range []string{`"credsStore":"none"`, `"credHelpers":{"docker.io":"none"}`} {
		if err := os.WriteFile(path, []byte(`{"auths":{"registry-1.docker.io":{"username":"u","password":"p"}},`+helpers+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := remote.DockerCredentials(path)("docker.io", "library/m"); err != nil || c.Username != "u" {
			t.Errorf("%s: user %q, %v", helpers, c.Username, err)
		}
		if p, err := os.ReadFile(log); err != nil || strings.TrimSpace(string(p)) != "https://index.docker.io/v1/" {
			t.Errorf("%s: the helper was asked for %q: %v", helpers, p, err)
		}
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte(`{"credsStore":"../none"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.DockerCredentials(path)("docker.io", "library/m"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "plain name") {
		t.Errorf("a helper that is a path: %v", err)
	}
}

func TestCredentialsDoNotPrint(t *testing.T) {
	t.Parallel()
	c := remote.Credentials{Username: "alice", Secret: "hunter2"}
	var b strings.Builder
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "creds", c, "ptr", &c)
	fmt.Fprintf(&b, "%v %+v %#v %s %v %+v", c, c, c, c, &c, []remote.Credentials{c})
	if s := b.String(); strings.Contains(s, "hunter2") || strings.Contains(s, "alice") {
		t.Errorf("credentials are printed: %s", s)
	}
}

// TestHelperTimeout checks that a helper whose child keeps its output open after the helper was
// killed does not delay a lookup beyond the time limit.
func TestHelperTimeout(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-slow"), []byte("#!/bin/sh\nwhile [ -e \"$0\" ]; do sleep 0.1; done &\nwait\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	start := time.Now() // the child runs until the directory is gone
	if _, err := remote.Ask(credentials.NewNativeStore("slow"), "x", 100*time.Millisecond); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want errdefs.ErrUnavailable", err)
	}
	if d := time.Since(start); d > 50*time.Second {
		t.Errorf("took %s", d)
	}
}
