package remote_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
)

const secret = "s3cr3t-value"

func TestBasicAuth(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.putManifest("latest", manifestBytes("x"))
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if user, pw, _ := r.BasicAuth(); user == "alice" && pw == secret {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(401)
		// A registry whose error repeats the credentials that it received.
		fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":"not %s"}]}`, r.Header.Get("Authorization"))
		return true
	})
	good := &remote.Credentials{Username: "alice", Secret: secret}
	if _, err := u.repository(t, remote.Options{}, good).Manifest(t.Context(), "latest"); err != nil {
		t.Errorf("with credentials of the caller: %v", err)
	}
	o := remote.Options{Credentials: func(host, _ string) (remote.Credentials, error) {
		if host == u.Host() {
			return *good, nil
		}
		return remote.Credentials{}, nil
	}}
	c := newClient(t, o)
	ofNode, err := c.NodeRepository(u.ref(t, "latest"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ofNode.Manifest(t.Context(), "latest"); err != nil {
		t.Errorf("the node, with its own credentials: %v", err)
	}
	// A caller without credentials does not get those of the node, unless they are shared.
	_, err = repositoryOf(t, c, u.ref(t, "latest"), nil).Manifest(t.Context(), "latest")
	mustRefuse(t, err, errdefs.IsUnauthorized, "imagePullSecrets")
	o.Shared = func(host string) bool { return host == u.Host() }
	if _, err := u.repository(t, o, nil).Manifest(t.Context(), "latest"); err != nil {
		t.Errorf("with shared credentials: %v", err)
	}

	_, err = u.repository(t, o, &remote.Credentials{Username: "eve", Secret: secret + "x"}).Manifest(t.Context(), "latest")
	mustRefuse(t, err, errdefs.IsUnauthorized, "UNAUTHORIZED not ***")
	if s := err.Error(); strings.Contains(s, secret) || strings.Contains(s, base64.StdEncoding.EncodeToString([]byte("eve:"))[:5]) {
		t.Errorf("the error contains the credentials: %s", s)
	}
}

// bearer makes u require tokens, which its own /token issues; check receives the token requests.
func (u *upstream) bearer(realm string, check func(r *http.Request) bool) (tokens *atomic.Int64) {
	tokens = new(atomic.Int64)
	var mu sync.Mutex
	valid := map[string]bool{}
	u.Before(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			if err := r.ParseForm(); err != nil || !check(r) {
				w.WriteHeader(401)
				return true
			}
			tok := fmt.Sprintf("tok-%d", tokens.Add(1))
			mu.Lock()
			clear(valid)
			valid["Bearer "+tok] = true
			mu.Unlock()
			json.NewEncoder(w).Encode(map[string]string{"token": tok, "access_token": tok})
			return true
		}
		mu.Lock()
		defer mu.Unlock()
		if valid[r.Header.Get("Authorization")] {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="svc",scope="repository:org/model:pull"`, realm))
		w.WriteHeader(401)
		return true
	})
	return tokens
}

func TestBearerAuth(t *testing.T) {
	t.Parallel()
	user := &remote.Credentials{Username: "alice", Secret: secret}
	for _, tt := range []struct {
		name  string
		creds *remote.Credentials
		check func(r *http.Request) bool
	}{
		{"anonymous", nil, func(r *http.Request) bool {
			return r.Method == http.MethodGet && r.Form.Get("service") == "svc" && r.Form.Get("scope") == "repository:org/model:pull" && r.Header.Get("Authorization") == ""
		}},
		{"password", user, func(r *http.Request) bool {
			return r.Form.Get("username") == "alice" && r.Form.Get("password") == secret
		}},
		{"password by GET", user, func(r *http.Request) bool {
			u, p, _ := r.BasicAuth()
			return r.Method == http.MethodGet && u == "alice" && p == secret
		}},
		{"identity token", &remote.Credentials{Secret: secret}, func(r *http.Request) bool {
			return r.Form.Get("grant_type") == "refresh_token" && r.Form.Get("refresh_token") == secret
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := newUpstream(t)
			u.putManifest("latest", manifestBytes("x"))
			tokens := u.bearer(u.URL+"/token", tt.check)
			r := u.repository(t, remote.Options{}, tt.creds)
			for range 3 {
				if _, err := r.Manifest(t.Context(), "latest"); err != nil {
					t.Fatal(err)
				}
			}
			if n := tokens.Load(); n != 1 {
				t.Errorf("%d tokens for three requests, want 1", n)
			}
			// A token that has become invalid is replaced.
			if _, err := http.Get(u.URL + "/token?" + "grant_type=refresh_token&refresh_token=" + secret); err != nil {
				t.Fatal(err)
			}
			u.bearer(u.URL+"/token", tt.check)
			if _, err := r.Manifest(t.Context(), "latest"); err != nil {
				t.Errorf("after the token was revoked: %v", err)
			}
		})
	}
}

func TestBearerRefused(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	u.bearer(u.URL+"/token", func(*http.Request) bool { return false })
	_, err := u.repository(t, remote.Options{}, &remote.Credentials{Username: "alice", Secret: secret}).Manifest(t.Context(), "latest")
	mustRefuse(t, err, errdefs.IsUnauthorized, "the token server of "+u.Host()+" answered 401; use other credentials")
	if strings.Contains(err.Error(), secret) {
		t.Errorf("the error contains the secret: %v", err)
	}
}

// TestEchoedSecrets: an error has none of the secrets that a registry repeats.
func TestEchoedSecrets(t *testing.T) {
	t.Parallel()
	const header = "of-hosts-toml"
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError} {
		u := newUpstream(t)
		u.Before(func(w http.ResponseWriter, r *http.Request) bool {
			user, password, ok := r.BasicAuth()
			if !ok {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"errors":[{"code":"X","message":"got %s, %s, %s, %s"}]}`, r.Header.Get("Authorization"), user, password, r.Header.Get("X-Key"))
			return true
		})
		dir := hostsDir(t, u.Host(), "server = \""+u.URL+"\"\n[header]\nX-Key = \""+header+"\"\n")
		_, err := u.repository(t, remote.Options{HostsDir: dir}, &remote.Credentials{Username: "alice", Secret: secret}).Manifest(t.Context(), "latest")
		if err == nil || !strings.Contains(err.Error(), "got") {
			t.Fatalf("%d: %v", status, err)
		}
		encoded := base64.StdEncoding.EncodeToString([]byte("alice:" + secret))
		for _, s := range []string{secret, header, encoded} {
			if strings.Contains(err.Error(), s) {
				t.Errorf("%d: the error has %q: %v", status, s, err)
			}
		}
	}
}

// TestTokenSize limits the answer of a token server.
func TestTokenSize(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		size int
		good bool
	}{{1000, true}, {2 << 20, false}} {
		u := newUpstream(t)
		u.putManifest("latest", manifestBytes("x"))
		u.Before(func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case r.URL.Path == "/token":
				fmt.Fprintf(w, `{"pad":%q,"token":"t"}`, strings.Repeat("x", tt.size))
			case r.Header.Get("Authorization") != "Bearer t":
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="svc"`, u.URL))
				w.WriteHeader(http.StatusUnauthorized)
			default:
				return false
			}
			return true
		})
		if _, err := u.repository(t, remote.Options{}, nil).Manifest(t.Context(), "latest"); (err == nil) != tt.good {
			t.Errorf("an answer of %d bytes: %v", tt.size, err)
		}
	}
}

// TestRealmRefused checks that a registry cannot name a token server in a private network.
func TestRealmRefused(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	other := newUpstream(t)
	other.Before(func(w http.ResponseWriter, r *http.Request) bool {
		asked.Add(1)
		fmt.Fprint(w, `{"token":"x"}`)
		return true
	})
	_, port, _ := strings.Cut(other.Host(), ":")
	for _, tt := range []struct{ name, realm, want string }{
		{"metadata", "https://169.254.169.254/token", "not public"},
		{"private", "https://10.0.0.1/token", "not public"},
		{"mapped", "https://[::ffff:10.0.0.1]/token", "not public"},
		{"NAT64", "https://[64:ff9b::a00:1]/token", "not public"},
		{"plain http elsewhere", "http://auth.example.com/token", "not https"},
		{"localhost by name", "https://localhost:" + port + "/token", "internal"},
		{"cluster service", "https://auth.kube-system.svc/token", "internal"},
		{"other loopback", "https://127.0.0.2:" + port + "/token", "not public"},
		{"user name", "http://u:" + secret + "@" + other.Host() + "/token", "user name"},
		{"file", "file:///etc/passwd", "not a URL"},
		{"ftp", "ftp://auth.example.com/token", "scheme"},
		{"relative", "/token", "not a URL"},
		{"absent", "", "not a URL"},
		{"garbage", "http://[::1", "not a URL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := newUpstream(t)
			u.bearer(tt.realm, nil)
			_, err := u.repository(t, remote.Options{}, &remote.Credentials{Username: "alice", Secret: secret}).Manifest(t.Context(), "latest")
			mustRefuse(t, err, errdefs.IsPermissionDenied, tt.want)
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the secret: %v", err)
			}
		})
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("a refused token server got %d requests", n)
	}
}

// TestRealmDowngradeRefused checks that a registry with https cannot name a token server with http.
func TestRealmDowngradeRefused(t *testing.T) {
	t.Parallel()
	plain := newUpstream(t)
	u := newTLSUpstream(t)
	u.bearer(plain.URL+"/token", nil)
	_, err := u.repository(t, remote.Options{}, &remote.Credentials{Username: "alice", Secret: secret}).Manifest(t.Context(), "latest")
	mustRefuse(t, err, errdefs.IsPermissionDenied, "not https")
	if n := len(plain.Requests()); n != 0 {
		t.Errorf("the token server got %d requests", n)
	}
}

func TestRealmHostile(t *testing.T) {
	t.Parallel()
	thief := newUpstream(t)
	for _, tt := range []struct {
		name   string
		answer func(w http.ResponseWriter)
	}{
		{"endless", func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"token":"`)
			for range 4096 {
				if _, err := fmt.Fprint(w, strings.Repeat("a", 1024)); err != nil {
					return
				}
			}
			fmt.Fprint(w, `"}`)
		}},
		{"no token", func(w http.ResponseWriter) { fmt.Fprint(w, `{}`) }},
		{"HTML", func(w http.ResponseWriter) { fmt.Fprint(w, `<html>`) }},
		{"redirect", func(w http.ResponseWriter) {
			w.Header().Set("Location", thief.URL)
			w.WriteHeader(307)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := newUpstream(t)
			u.putManifest("latest", manifestBytes("x"))
			u.bearer(u.URL+"/token", nil)
			challenge := u.Before(nil)
			u.Before(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/token" {
					tt.answer(w)
					return true
				}
				return challenge(w, r)
			})
			if _, err := u.repository(t, remote.Options{}, &remote.Credentials{Username: "a", Secret: secret}).Manifest(t.Context(), "latest"); err == nil {
				t.Error("no error")
			} else if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "aaaaaaaaaa") {
				t.Errorf("the error contains a secret: %.200v", err)
			}
		})
	}
	if n := len(thief.Requests()); n != 0 {
		t.Errorf("the redirect of a token server was followed %d times", n)
	}
}
