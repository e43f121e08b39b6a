package registry_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// tokenGate gives the registry a token server, and makes it refuse callers without credentials as the large registries
// do. alice:s3cret may read everything; for others, the token server has a status and a code, or, if the status is 0, a
// token that opens nothing.
// https://distribution.github.io/distribution/spec/auth/token/
func (u *upstream) tokenGate(refuse int, code string) {
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		fail := func(status int, code string) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]string{"code": code, "message": "no access"}}})
		}
		user, secret, _ := r.BasicAuth()
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case r.URL.Path != "/token" && token == "alice":
			return false
		case r.URL.Path != "/token":
			challenge := `Bearer realm="` + u.URL + `/token",service="test",scope="repository:org/model:pull"`
			if token != "" {
				challenge += `,error="insufficient_scope"`
			}
			w.Header().Set("WWW-Authenticate", challenge)
			fail(http.StatusUnauthorized, "UNAUTHORIZED")
		case r.Method != http.MethodGet:
			fail(http.StatusMethodNotAllowed, "UNSUPPORTED") // OAuth 2 is optional; clients ask again with GET
		case user == "alice" && secret == "s3cret":
			_ = json.NewEncoder(w).Encode(map[string]string{"token": "alice"})
		case refuse != 0:
			fail(refuse, code)
		default:
			_ = json.NewEncoder(w).Encode(map[string]string{"token": "nobody"})
		}
		return true
	})
}

// TestPrivateRegistries: however a registry refuses callers without credentials, a model that a pull with
// credentials has read is private, and its credentials are kept for the rest.
func TestPrivateRegistries(t *testing.T) {
	t.Parallel()
	b := converttest.ModelPackRaw(converttest.Files(weights(1007)))
	for _, tt := range []struct {
		name   string
		refuse int
		code   string
	}{
		{"a token that opens nothing: Docker Hub, Harbor", 0, ""},
		{"the token server denies: GitHub, Google Artifact Registry", http.StatusForbidden, "DENIED"},
		{"the token server does not know the caller: Quay, Azure", http.StatusUnauthorized, "UNAUTHORIZED"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Add("org/model", "v1", b)
			u.tokenGate(tt.refuse, tt.code)
			host := u.Host()
			f := newFacade(t, remote.Options{})
			f.h.Origins = true
			ask := func(object string, header ...string) reply {
				return f.ask(t, http.MethodGet, "/v2/org/model/manifests/"+object, host, header...)
			}
			if got := ask("v1"); got.status != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") == "" {
				t.Fatalf("without credentials: status %d", got.status)
			}
			got := ask("v1", basic("alice:s3cret")...)
			if got.status != http.StatusOK {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			d := digest.FromBytes(got.body)
			for _, object := range []string{"v1", d.String(), b.Digest().String()} {
				if got := ask(object); got.status != http.StatusUnauthorized {
					t.Errorf("%s, without credentials: status %d", object, got.status)
				}
				if got := ask(object, basic("mallory:guess")...); got.status != http.StatusUnauthorized {
					t.Errorf("%s, with wrong credentials: status %d", object, got.status)
				}
				if got := ask(object, basic("alice:s3cret")...); got.status != http.StatusOK {
					t.Errorf("%s, with credentials: status %d: %s", object, got.status, got.body)
				}
			}
			im, err := f.h.Store.Catalog.Image(d)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{host + "/org/model"}, im.PrivateNames); diff != "" {
				t.Errorf("private names (-want +got):\n%s", diff)
			}
			if n := len(f.h.Secrets.Of(host + "/org/model")); n != 1 {
				t.Errorf("%d secrets are kept", n)
			}
		})
	}
}
