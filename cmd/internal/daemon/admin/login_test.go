package admin_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
)

// TestCredentialHelper: root learns what pulls are refused, and gets a password that the facade takes.
func TestCredentialHelper(t *testing.T) {
	private := registrytest.New(t)
	private.SetUser("org/model", "alice:s3cret")
	client, err := remote.New(remote.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r := newRig(t)
	r.handler.Facade = &registry.Handler{Resolver: resolve.Resolver{Upstream: client}, Store: r.store}
	host := private.Host()
	ask := func(password string) int {
		req := httptest.NewRequest(http.MethodGet, "/v2/org/model/manifests/v1?ns="+host, nil)
		if password != "" {
			req.SetBasicAuth("ballast", password)
		}
		w := httptest.NewRecorder()
		r.handler.Facade.ServeHTTP(w, req)
		return w.Code
	}
	if got := ask(""); got != http.StatusUnauthorized {
		t.Errorf("without a password: status %d", got)
	}
	asked, err := r.client.Asked(t.Context())
	if err != nil || !slices.Equal(asked.Names, []string{host + "/org/model"}) {
		t.Fatalf("asked: %q, %v", asked.Names, err)
	}
	p, err := r.client.Login(t.Context(), wire.Login{Of: []wire.Credentials{{Name: asked.Names[0], Username: "alice", Secret: "s3cret"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(p.Password); got != http.StatusNotFound {
		t.Errorf("with a password: status %d, want what the registry says", got)
	}
	// Other users of the node get nothing of that.
	w := httptest.NewRecorder()
	r.handler.StatusRoutes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/asked", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("at the status socket: status %d", w.Code)
	}
}
