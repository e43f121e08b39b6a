package agent

import (
	"encoding/base64"
	"strings"
	"testing"
)

func TestLoginOf(t *testing.T) {
	both := base64.StdEncoding.EncodeToString([]byte("user:pass:word"))
	u := func(user string) string { return `{"username": "` + user + `", "password": "p"}` }
	for name, tt := range map[string]struct{ config, ref, user, password, err string }{
		"auth":          {`{"auths": {"ghcr.io": {"auth": "` + both + `"}}}`, "ghcr.io/a/b:1", "user", "pass:word", ""},
		"password":      {`{"auths": {"https://ghcr.io/v2/": {"username": "u", "password": "p"}}}`, "ghcr.io/a/b:1", "u", "p", ""},
		"docker.io":     {`{"auths": {"https://index.docker.io/v1/": {"username": "u", "password": "p"}}}`, "docker.io/a/b:1", "u", "p", ""},
		"port":          {`{"auths": {"r.example:5000": {"username": "u", "password": "p"}}}`, "r.example:5000/a:1", "u", "p", ""},
		"of a path":     {`{"auths": {"ghcr.io": ` + u("host") + `, "ghcr.io/team-a": ` + u("a") + `, "ghcr.io/team-b": ` + u("b") + `}}`, "ghcr.io/team-b/m:1", "b", "p", ""},
		"whole names":   {`{"auths": {"ghcr.io": ` + u("host") + `, "ghcr.io/team": ` + u("team") + `}}`, "ghcr.io/team-b/m:1", "host", "p", ""},
		"of a model":    {`{"auths": {"ghcr.io/a": ` + u("a") + `, "https://ghcr.io/a/m": ` + u("m") + `}}`, "ghcr.io/a/m:1", "m", "p", ""},
		"other path":    {`{"auths": {"ghcr.io/team-a": ` + u("a") + `}}`, "ghcr.io/team-b/m:1", "", "", ""},
		"other host":    {`{"auths": {"ghcr.io.example": {"auth": "` + both + `"}}}`, "ghcr.io/a/b:1", "", "", ""},
		"pattern":       {`{"auths": {"*.dkr.ecr.*.example": ` + u("ecr") + `}}`, "1.dkr.ecr.eu.example/a/m:1", "ecr", "p", ""},
		"normal port":   {`{"auths": {"GHCR.io:443": ` + u("u") + `}}`, "ghcr.io/a/m@sha256:00", "u", "p", ""},
		"empty entry":   {`{"auths": {"ghcr.io/a": {}, "ghcr.io": ` + u("u") + `}}`, "ghcr.io/a/m:1", "u", "p", ""},
		"no separator":  {`{"auths": {"ghcr.io": {"auth": "dXNlcg=="}}}`, "ghcr.io/a/b:1", "", "", "no user and password"},
		"no base64":     {`{"auths": {"ghcr.io": {"auth": "%"}}}`, "ghcr.io/a/b:1", "", "", "no user and password"},
		"no json":       {`pass:word`, "ghcr.io/a/b:1", "", "", "cannot be read"},
		"nothing":       {``, "ghcr.io/a/b:1", "", "", "no .dockerconfigjson"},
		"another field": {`{"credsStore": "x"}`, "ghcr.io/a/b:1", "", "", ""},
	} {
		user, password, err := loginOf([]byte(tt.config), tt.ref)
		switch {
		case user != tt.user || password != tt.password || (err == nil) != (tt.err == ""):
			t.Errorf("%s: %q, %q, %v", name, user, password, err)
		case err != nil && (!strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "pass:word")):
			t.Errorf("%s: %v, want %q, without secrets", name, err, tt.err)
		}
	}
}

// FuzzLoginOf: errors come without credentials, and what kubectl writes is read.
func FuzzLoginOf(f *testing.F) {
	f.Add([]byte(`{"auths": {"ghcr.io": {"auth": "dXNlcjpwYXNz"}}}`), "user", "pass:word")
	f.Add([]byte(`{"auths": {"https://ghcr.io/": {"username": "u", "password": "p"}}}`), "", "")
	f.Fuzz(func(t *testing.T, config []byte, user, password string) {
		if u, p, err := loginOf(config, "ghcr.io/a/b:1"); err != nil && (u != "" || p != "") {
			t.Errorf("%q: %q, %q, %v", config, u, p, err)
		}
		if strings.Contains(user, ":") {
			return
		}
		written := `{"auths": {"ghcr.io": {"auth": "` + base64.StdEncoding.EncodeToString([]byte(user+":"+password)) + `"}}}`
		if u, p, err := loginOf([]byte(written), "ghcr.io/a/b:1"); err != nil || u != user || p != password {
			t.Errorf("%q, %q: got %q, %q, %v", user, password, u, p, err)
		}
	})
}
