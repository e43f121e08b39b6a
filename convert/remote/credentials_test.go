package remote_test

import (
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
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
		"bad.example":{"auth":"!!!"}},
		"credHelpers":{"helped.example":"test","token.example":"test","broken.example":"test","missing.example":"../evil"}}`
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
		{host: "other.example"},
	} {
		got, err := find(tt.host)
		if (err != nil) != tt.bad {
			t.Errorf("%s: error %v, want one: %t", tt.host, err, tt.bad)
		}
		if want := (remote.Credentials{Username: tt.user, Secret: tt.secret}); got != want {
			t.Errorf("%s: got user %q secret %q, want %q %q", tt.host, got.Username, got.Secret, tt.user, tt.secret)
		}
	}
	if got, err := remote.DockerCredentials(filepath.Join(dir, "none"))("x"); err != nil || got != (remote.Credentials{}) {
		t.Errorf("without a file: %v, %v", got, err)
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
