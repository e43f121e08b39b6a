package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// A tokenRegistry requires bearer tokens and redirects requests for blobs to signed addresses, as the
// registries of the large clouds do. Tokens and addresses are valid until expire.
type tokenRegistry struct {
	next http.Handler
	host string

	mu       sync.Mutex // guards the following
	age      int        // tokens and addresses of another age are invalid
	password string     // of "user"
	renewals int        // tokens issued
	refused  int        // requests with an invalid token or address
}

func (r *tokenRegistry) expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.age++
	r.renewals, r.refused = 0, 0
}

func (r *tokenRegistry) setPassword(p string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.password = p
}

func (r *tokenRegistry) seen() (renewals, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.renewals, r.refused
}

// ServeHTTP implements http.Handler.
func (r *tokenRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	good := fmt.Sprintf("Bearer age%d", r.age)
	signed := fmt.Sprintf("/signed%d", r.age)
	user, password, _ := req.BasicAuth()
	welcome := user == "user" && password == r.password
	refuse := func(status int) {
		r.refused++
		r.mu.Unlock()
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="registry"`, r.host))
		w.WriteHeader(status)
	}
	switch {
	case req.URL.Path == "/token" && !welcome:
		refuse(http.StatusUnauthorized)
	case req.URL.Path == "/token":
		r.renewals++
		r.mu.Unlock()
		fmt.Fprintf(w, `{"token":"age%d","expires_in":3600}`, r.age)
	case strings.HasPrefix(req.URL.Path, "/signed") && !strings.HasPrefix(req.URL.Path, signed+"/"):
		refuse(http.StatusForbidden)
	case strings.HasPrefix(req.URL.Path, "/signed"):
		r.mu.Unlock()
		http.StripPrefix(signed, r.next).ServeHTTP(w, req)
	case req.Header.Get("Authorization") != good:
		refuse(http.StatusUnauthorized)
	case node.AnyBlob(req):
		r.mu.Unlock()
		http.Redirect(w, req, "http://"+r.host+signed+req.URL.Path, http.StatusTemporaryRedirect)
	default:
		r.mu.Unlock()
		r.next.ServeHTTP(w, req)
	}
}

// TestLazyCredentials reads a model after its token and its addresses have expired: they are renewed
// with the credentials. Without credentials present bytes can be read, and the log says what is wrong.
func TestLazyCredentials(t *testing.T) {
	n := node.StartNode(t, node.Options{Config: slowBackground})
	front := &tokenRegistry{next: n.Registry.Wire, password: "secret"}
	front.host = node.Serve(t, front)
	n.Upstream(t, front.host, front.host)
	want := weights(160, 200<<20)
	ref := convertedModel(t, n, converttest.ModelPackRaw(converttest.Files(want)))
	ref = strings.Replace(ref, n.Registry.Host, front.host, 1)
	n.Registry.Wire.Link(6<<20, 5*time.Millisecond)
	mustPull(t, n, "ballast", ref, "--user", "user:secret")
	m := &lazyModel{node: n, ref: ref, want: want, path: filepath.Join(rootOf(t, n, ref), "model.gguf")}
	if err := m.read(100<<20, 4096); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{140 << 20, 180 << 20} {
		front.expire()
		if err := m.read(at, 4096); err != nil {
			t.Errorf("after the token expired: %v", err)
		}
		if renewed, refused := front.seen(); renewed == 0 || refused == 0 {
			t.Errorf("%d tokens were renewed after %d refusals; the test proves nothing", renewed, refused)
		}
	}
	front.setPassword("another")
	front.expire()
	if err := m.read(190<<20, 4096); !errors.Is(err, syscall.EIO) {
		t.Errorf("missing bytes without credentials: got %v, want EIO", err)
	}
	if err := m.read(100<<20, 4096); err != nil {
		t.Errorf("bytes that are there: %v", err)
	}
	if !logged(t, n, "level=ERROR", "cannot be read", "credentials") && !logged(t, n, "level=ERROR", "cannot be read", "401") {
		t.Error("the log does not say why")
	}
	if m.complete() {
		t.Error("the model was complete too early; the test proves nothing")
	}
	front.setPassword("secret")
	if err := m.read(196<<20, 4096); err != nil {
		t.Errorf("with credentials again: %v", err)
	}
	m.readAll(t)
}
