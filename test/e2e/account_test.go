package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// An accountRegistry gives everybody a token, and refuses or hides manifests with a status from those who have no
// account: the user paid, or an identity token. With status 0 everybody has them.
type accountRegistry struct {
	host   string
	status int

	mu    sync.Mutex
	asked []string // guarded by mu: for manifests
}

const (
	accountSecret = "secret-of-the-account"
	identityToken = "identity-of-the-account"
	strangersText = "strangers have reached their limit"
)

func startAccountRegistry(t *testing.T, n *node.Node, status int) *accountRegistry {
	t.Helper()
	a := &accountRegistry{status: status}
	a.host = node.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			token := "token-of-nobody"
			if r.Method == http.MethodPost && (r.PostFormValue("username") == "paid" && r.PostFormValue("password") == accountSecret ||
				r.PostFormValue("grant_type") == "refresh_token" && r.PostFormValue("refresh_token") == identityToken) {
				token = "token-of-the-account"
			}
			fmt.Fprintf(w, `{"token":%q,"access_token":%q,"expires_in":300}`, token, token)
			return
		}
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if token == "" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="registry"`, a.host))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			a.mu.Lock()
			a.asked = append(a.asked, r.Method+" "+token)
			a.mu.Unlock()
			if token != "token-of-the-account" && a.status != 0 {
				w.WriteHeader(a.status)
				fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q}]}`, strangersText)
				return
			}
		}
		r.Header.Del("Authorization")
		n.Registry.Wire.ServeHTTP(w, r)
	}))
	n.Upstream(t, a.host, a.host)
	node.Belongs(accountSecret, a.host)
	node.Belongs(identityToken, a.host)
	return a
}

// requests returns the requests for manifests, and forgets them.
func (a *accountRegistry) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.asked
	a.asked = nil
	return l
}

// TestCredentialsOfAccount: with whatever status a registry refuses a stranger, it is asked with the credentials of the
// pull: a password or an identity token. Who has none gets its text. No time is spent on the limit of strangers.
func TestCredentialsOfAccount(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	pods := n.CRI(t)
	n.Registry.Push(t, "team/model", "1", artifact(converttest.ModelPackRaw(converttest.Files(weights(232, 1<<20)))))
	n.Registry.Push(t, "team/image", "1", node.Busybox(t))
	for _, status := range []int{http.StatusTooManyRequests, http.StatusForbidden, http.StatusNotFound, http.StatusUnauthorized} {
		for kind, auth := range map[string]*cri.AuthConfig{"password": {Username: "paid", Password: accountSecret}, "identity token": {IdentityToken: identityToken}} {
			a := startAccountRegistry(t, n, status)
			for _, repository := range []string{"team/image", "team/model"} {
				ref, start := a.host+"/"+repository+":1", time.Now()
				what := fmt.Sprintf("%d %s %s", status, kind, repository)
				_, err := pods.Pull(ref, "")
				if err == nil {
					t.Fatalf("%s: pulled without credentials", what)
				}
				wanted := map[int]string{429: strangersText, 403: strangersText, 404: "not found", 401: "imagePullSecrets"}[status]
				if !strings.Contains(err.Error(), wanted) {
					t.Errorf("%s: the message lacks %q: %v", what, wanted, err)
				}
				refused := a.requests()
				if _, err := pods.PullAs(ref, "", auth); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				l := a.requests()
				t.Log(what, time.Since(start), refused, l)
				strangers := slices.DeleteFunc(l, func(s string) bool { return !strings.HasSuffix(s, "nobody") })
				if status == http.StatusTooManyRequests && (len(refused) > 3 || len(strangers) > 2) {
					t.Errorf("%s: %d requests of a stranger without credentials, and %d with", what, len(refused), len(strangers))
				}
			}
			if kind != "password" {
				continue
			}
			if out := n.Pull("ballast", a.host+"/team/model:1"); out.Err == nil {
				t.Errorf("%d: ctr pulled without credentials what a pod has pulled with them", status)
			}
			mustPull(t, n, "ballast", a.host+"/team/model:1", "--user", "paid:"+accountSecret)
			n.Login(t, a.host, "paid", accountSecret)
			if out := n.Ballast("prefetch", a.host+"/team/model:1"); out.Err != nil {
				t.Errorf("%d: prefetch: %v\n%s", status, out.Err, out.Output())
			}
		}
	}
	noSecrets(t, n, accountSecret, identityToken)
}

// TestCountedRequests counts the requests for manifests that a registry such as Docker Hub counts, GET and not HEAD,
// beside a node without ballast: there are no more of them, and they are those of the account if the pull has one.
func TestCountedRequests(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	stock := node.StartNode(t, node.Options{Stock: true, Registry: n.Registry})
	a := startAccountRegistry(t, n, 0)
	stock.Upstream(t, a.host, a.host)
	n.Registry.Push(t, "team/known", "1", node.Busybox(t))
	mustPull(t, n, "ballast", a.host+"/team/known:1") // ballast has seen the registry
	clients := []struct {
		name string
		pull func(n *node.Node, ref string, account bool) error
	}{
		{"ctr", func(n *node.Node, ref string, account bool) error {
			snapshotter, flags := "ballast", []string(nil)
			if n == stock {
				snapshotter = "overlayfs"
			}
			if account {
				flags = []string{"--user", "paid:" + accountSecret}
			}
			return n.Pull(snapshotter, ref, flags...).Err
		}},
		{"CRI", func(n *node.Node, ref string, account bool) error {
			var auth *cri.AuthConfig
			if account {
				auth = &cri.AuthConfig{Username: "paid", Password: accountSecret}
			}
			_, err := n.CRI(t).PullAs(ref, "", auth)
			return err
		}},
	}
	a.requests()
	seed := byte(0)
	for _, client := range clients {
		for _, kind := range []string{"image", "model"} {
			for _, account := range []bool{false, true} {
				seed++
				repository := fmt.Sprintf("team/%s%d", kind, seed)
				if kind == "model" {
					n.Registry.Push(t, repository, "1", artifact(converttest.ModelPackRaw(converttest.Files(weights(seed, 1<<20)))))
				} else {
					image := node.Busybox(t)
					image.Manifest = append(image.Manifest, strings.Repeat(" ", int(seed))...) // of a digest of its own
					n.Registry.Push(t, repository, "1", image)
				}
				for i := range 3 {
					what := fmt.Sprintf("%s, %s, account %v, pull %d", client.name, kind, account, i+1)
					var gets [2]int
					for k, on := range []*node.Node{stock, n} {
						if err := client.pull(on, a.host+"/"+repository+":1", account); err != nil {
							t.Fatalf("%s: %v", what, err)
						}
						l := a.requests()
						t.Log(what, "ballast", k == 1, l)
						for _, r := range l {
							if method, token, _ := strings.Cut(r, " "); method == http.MethodGet {
								gets[k]++
								if account && token != "token-of-the-account" {
									t.Errorf("%s: GET with %s", what, token)
								}
							}
						}
					}
					if gets[1] > gets[0] {
						t.Errorf("%s: %d GETs of manifests, %d without ballast", what, gets[1], gets[0])
					}
				}
			}
		}
	}
}
