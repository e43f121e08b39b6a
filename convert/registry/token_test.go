package registry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
)

const hiderText = "no such thing for you"

// hide gives the registry a token server that gives everybody a token, and refuses or hides everything from those who
// have no account.
func (u *upstream) hide(status int) {
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		switch {
		case r.URL.Path == "/token":
			who := "nobody"
			password := r.PostFormValue("grant_type") == "password" && r.PostFormValue("username") == "alice" && r.PostFormValue("password") == "s3cret"
			if password || r.PostFormValue("grant_type") == "refresh_token" && r.PostFormValue("refresh_token") == "identity" {
				who = "account"
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"token": who, "access_token": who})
		case token == "":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+u.URL+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
		case token != "account":
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q}]}`, hiderText)
		default:
			return false
		}
		return true
	})
}

// asked returns the tokens that manifests were asked for with, and forgets all requests.
func (u *upstream) asked() (tokens []string) {
	for _, r := range u.Requests() {
		if token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); token != "" && strings.Contains(r.URL.Path, "/manifests/") {
			tokens = append(tokens, token)
		}
	}
	u.Count("")
	return tokens
}

// TestCallersSecret: with whatever status a registry refuses a stranger, it is asked with the credentials of the
// pull, and who has none gets its text. What the account opened is not public.
func TestCallersSecret(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 429} {
		for kind, form := range map[string]url.Values{
			"password":       {"grant_type": {"password"}, "username": {"alice"}, "password": {"s3cret"}},
			"identity token": {"grant_type": {"refresh_token"}, "refresh_token": {"identity"}},
		} {
			t.Run(fmt.Sprint(status, " ", kind), func(t *testing.T) {
				t.Parallel()
				u := newUpstream(t)
				u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1007))))
				u.Put("org/image", "v1", ordinary(2), mediatype.OCIManifest)
				u.hide(status)
				host := u.Host()
				f := newFacade(t, remote.Options{})
				for i, repository := range []string{"org/model", "org/image"} {
					path := "/v2/" + repository + "/manifests/v1"
					first := f.askOnce(t, http.MethodGet, path, host)
					if first.status != http.StatusUnauthorized || strings.Contains(first.header.Get("WWW-Authenticate"), "error=") {
						t.Fatalf("%s without credentials: status %d, challenge %q", path, first.status, first.header.Get("WWW-Authenticate"))
					}
					// The registry is known to ask for a token after the first time.
					if l, want := u.asked(), []string{"nobody"}[i:]; !slices.Equal(l, want) {
						t.Errorf("%s without credentials: asked as %q, want %q", path, l, want)
					}
					bearer := []string{"Authorization", "Bearer " + f.token(t, first, form)}
					if got := f.askOnce(t, http.MethodGet, path, host, bearer...); got.status != http.StatusOK {
						t.Fatalf("%s with credentials: status %d: %s", path, got.status, got.body)
					}
					// Without credentials it is only asked whether everybody may have it, by HEAD.
					if l := u.asked(); !slices.Equal(l, []string{"account", "nobody"}) {
						t.Errorf("%s with credentials: asked as %q", path, l)
					}
					stranger := f.ask(t, http.MethodGet, path, host)
					want := map[int]int{401: 401, 403: 403, 404: 404, 429: 403}[status]
					if text := string(stranger.body); stranger.status != want || status != 401 && status != 404 && !strings.Contains(text, hiderText) {
						t.Errorf("%s for a stranger after that: status %d: %s", path, stranger.status, text)
					}
					u.asked()
				}
				if im := onlyImage(t, f); !slices.Equal(im.PrivateNames, []string{host + "/org/model"}) || !slices.Equal(registry.Names(im), im.PrivateNames) {
					t.Errorf("private names %q", im.PrivateNames)
				}
				if l := f.h.Secrets.Of(host + "/org/model"); len(l) != 1 {
					t.Errorf("%d secrets are kept", len(l))
				}
			})
		}
	}
}

// TestTokens: a token is opaque, and good for one registry and a short time.
func TestTokens(t *testing.T) {
	u, other := newUpstream(t), newUpstream(t)
	for _, u := range []*upstream{u, other} {
		u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1007))))
		u.SetUser("org/model", "alice:s3cret")
	}
	f := newFacade(t, remote.Options{})
	const path = "/v2/org/model/manifests/v1"
	form := url.Values{"grant_type": {"password"}, "username": {"alice"}, "password": {"s3cret"}}
	token := f.token(t, f.askOnce(t, http.MethodGet, path, u.Host()), form)
	if strings.Contains(token, "s3cret") || strings.Contains(token, "alice") || token == f.token(t, f.askOnce(t, http.MethodGet, path, u.Host()), form) {
		t.Errorf("token %q", token)
	}
	ask := func(host, token string) reply {
		return f.askOnce(t, http.MethodGet, path, host, "Authorization", "Bearer "+token)
	}
	if got := ask(u.Host(), token); got.status != http.StatusOK {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	other.Count("")
	for name, got := range map[string]reply{
		"another registry": ask(other.Host(), token), "changed": ask(u.Host(), token[:len(token)-4]+"AAAA"), "invented": ask(u.Host(), "x"),
		"of another process": newFacade(t, remote.Options{}).askOnce(t, http.MethodGet, path, u.Host(), "Authorization", "Bearer "+token),
	} {
		if got.status != http.StatusUnauthorized || !strings.Contains(got.header.Get("WWW-Authenticate"), "error=") {
			t.Errorf("%s: status %d, challenge %q", name, got.status, got.header.Get("WWW-Authenticate"))
		}
	}
	if n := other.Count(""); n != 0 {
		t.Errorf("%d requests to a registry that the token is not for", n)
	}
	defer registry.SetTokenTime(-time.Second)()
	resp, err := f.Client().PostForm(f.URL+"/token", url.Values{"grant_type": {"password"}, "username": {"alice"}, "password": {"s3cret"}, "service": {u.Host()}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct{ Token string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if got := ask(u.Host(), answer.Token); got.status != http.StatusUnauthorized {
		t.Errorf("an expired token: status %d", got.status)
	}
	for _, form := range []url.Values{nil, {"grant_type": {"client_credentials"}}, {"grant_type": {"password"}, "password": {strings.Repeat("x", 64<<10)}}} {
		resp, err := f.Client().PostForm(f.URL+"/token", form)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("a form of %d bytes: status %d", len(form.Encode()), resp.StatusCode)
		}
	}
	if s := f.logs.String(); strings.Contains(s, "s3cret") || strings.Contains(s, token) {
		t.Error("the log has credentials")
	}
}

// TestResolver pulls with the client of containerd.
func TestResolver(t *testing.T) {
	t.Parallel()
	for _, status := range []int{401, 403, 404, 429} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.Add("org/model", "v1", converttest.ModelPackRaw(converttest.Files(weights(1007))))
			u.hide(status)
			host, f := u.Host(), newFacade(t, remote.Options{})
			for _, tt := range []struct{ user, secret, want string }{
				{"", "", map[int]string{401: "imagePullSecrets", 403: hiderText, 404: "not found", 429: hiderText}[status]},
				{"alice", "wrong", map[int]string{401: "use other credentials", 403: hiderText, 404: "not found", 429: hiderText}[status]},
				{"alice", "s3cret", ""},
				{"", "identity", ""},
			} {
				if status == 429 && tt.secret == "wrong" {
					continue // not a stranger: the registry is asked again, for ten seconds
				}
				u.asked()
				r := docker.NewResolver(docker.ResolverOptions{Hosts: func(string) ([]docker.RegistryHost, error) {
					creds := docker.WithAuthCreds(func(string) (string, string, error) { return tt.user, tt.secret, nil })
					return []docker.RegistryHost{{
						Client: f.Client(), Authorizer: docker.NewDockerAuthorizer(creds), Host: strings.TrimPrefix(f.URL, "http://"),
						Scheme: "http", Path: "/v2", Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
					}}, nil
				}})
				name, d, err := r.Resolve(t.Context(), host+"/org/model:v1")
				if l := u.asked(); status == 429 && len(l) > 3 {
					t.Errorf("%q %q: %d requests: %q", tt.user, tt.secret, len(l), l)
				}
				if tt.want != "" {
					if err == nil || !strings.Contains(err.Error(), tt.want) {
						t.Errorf("%q %q: %v, want %q", tt.user, tt.secret, err, tt.want)
					}
					continue
				}
				if err != nil {
					t.Errorf("%q %q: %v", tt.user, tt.secret, err)
					continue
				}
				fetcher, err := r.Fetcher(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				rc, err := fetcher.Fetch(t.Context(), d)
				if err != nil {
					t.Errorf("%q %q: fetch: %v", tt.user, tt.secret, err)
					continue
				}
				if p, err := io.ReadAll(rc); err != nil || digest.FromBytes(p) != d.Digest {
					t.Errorf("%d bytes: %v", len(p), err)
				}
				rc.Close()
			}
		})
	}
}
