package agent

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/ballast-fleet/plan"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/opencontainers/go-digest"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// A reader has secrets by name. One that is empty may not be read.
type reader map[string]string

func (r reader) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch content, ok := r[key.Name]; {
	case !ok:
		return apierrors.NewNotFound(core.Resource("secrets"), key.Name)
	case content == "":
		return apierrors.NewForbidden(core.Resource("secrets"), key.Name, errors.New("not listed"))
	default:
		o.(*core.Secret).Data = map[string][]byte{core.DockerConfigJsonKey: []byte(content)}
		return nil
	}
}

func (reader) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// TestSecretsOfOthers: a pull secret of another set with the model, which is stale, hidden or gone, decides nothing.
func TestSecretsOfOthers(t *testing.T) {
	config := func(user string) string {
		return fmt.Sprintf(`{"auths": {"r.example": {"username": %q, "password": "p"}}}`, user)
	}
	secrets := reader{"good": config("good"), "stale": config("stale"), "hides": config("hides"), "down": config("down"), "hidden": "", "broken": "{", "other": `{"auths": {}}`}
	for name, tt := range map[string]struct {
		wish plan.Wish
		want string // the logins that are tried
		err  string
	}{
		"mine":                  {plan.Wish{Secrets: []string{"good"}}, "good", ""},
		"after others":          {plan.Wish{Secrets: []string{"hidden", "gone", "broken", "stale", "hides", "good"}}, "stale hides good", ""},
		"before others":         {plan.Wish{Secrets: []string{"good", "stale"}}, "good", ""},
		"public for another":    {plan.Wish{Secrets: []string{"stale"}, Public: true}, "stale -", "pull secret stale: "},
		"no entry":              {plan.Wish{Secrets: []string{"other"}}, "-", "no entry for it in the pull secrets other: "},
		"none":                  {plan.Wish{Public: true}, "-", "refused"},
		"only stale":            {plan.Wish{Secrets: []string{"stale"}}, "stale", "pull secret stale: refused"},
		"hidden":                {plan.Wish{Secrets: []string{"hidden"}}, "", "add it to fleet.pullSecrets"},
		"the first error":       {plan.Wish{Secrets: []string{"broken", "stale"}}, "stale", "pull secret broken in namespace ns: "},
		"a registry without it": {plan.Wish{Secrets: []string{"down", "good"}}, "down", "unavailable"},
	} {
		c, tried := pulls(t, map[string]*wire.Error{
			"good": nil, "": {Code: "unauthenticated", Message: "refused"}, "stale": {Code: "permission_denied", Message: "refused"},
			"hides": {Code: "not_found", Message: "not found"}, "down": {Code: "unavailable", Message: "unavailable"},
		})
		a := &Agent{daemon: c, direct: secrets, Namespace: "ns"}
		im, err := a.fetch(t.Context(), "r.example/a:1", tt.wish, func(wire.Event) {})
		if got := strings.Join(*tried, " "); got != tt.want || (err == nil) != (tt.err == "") || (err == nil) != (im.Manifest != "") {
			t.Errorf("%s: tried %q, want %q: %+v, %v", name, got, tt.want, im, err)
		}
		if err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
	}
}

// pulls serves the pulls of a daemon, with an error for each user, and returns the users that were tried; "-": none.
func pulls(t *testing.T, of map[string]*wire.Error) (c *wire.Client, tried *[]string) {
	t.Helper()
	tried = new([]string)
	return serve(t, map[string]http.HandlerFunc{"POST /v1/fleet/pull": func(w http.ResponseWriter, r *http.Request) {
		var req wire.FleetPullRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			t.Error(err)
		}
		*tried = append(*tried, cmp.Or(req.Username, "-"))
		line := wire.Event{Error: of[req.Username]}
		if line.Error == nil {
			line = wire.Event{Status: wire.StatusSuccess, Image: &wire.Record{Manifest: digest.FromString("x")}}
		}
		_ = json.NewEncoder(w).Encode(line)
	}}), tried
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
