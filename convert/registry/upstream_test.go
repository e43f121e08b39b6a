package registry_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/pullsecret"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An upstream is a registry.
type upstream struct{ *registrytest.Server }

func newUpstream(t testing.TB) *upstream { return &upstream{registrytest.New(t)} }

func (u *upstream) ref(t testing.TB, repository, tag string) remote.Ref {
	t.Helper()
	ref, err := remote.NewRef(u.Host(), repository, tag)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// failing is a hook that answers all requests with a status.
func failing(status int) registrytest.Hook {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Retry-After", "17")
		w.WriteHeader(status)
		return true
	}
}

// A facade is a handler with a store of its own, behind real HTTP.
type facade struct {
	*httptest.Server
	h    *registry.Handler
	logs *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newFacade(t testing.TB, o remote.Options) *facade {
	t.Helper()
	logs := &logBuffer{}
	log := slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	client, err := remote.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s, err := store.Open(t.TempDir(), store.Options{Reserve: 1, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	f := &facade{h: &registry.Handler{Secrets: &pullsecret.Secrets{}, Resolver: resolve.Resolver{Upstream: client}, Store: s, Log: log}, logs: logs}
	f.Server = httptest.NewServer(f.h)
	t.Cleanup(f.Close)
	return f
}

// A reply is what the facade answered.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// errorText returns the text of the error, checking its format.
func (r reply) errorText(t testing.TB) string {
	t.Helper()
	var e struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal(r.body, &e); err != nil || len(e.Errors) != 1 || e.Errors[0].Code == "" {
		t.Fatalf("status %d: body %q is no error of a registry", r.status, r.body)
	}
	return e.Errors[0].Code + " " + e.Errors[0].Message
}

// ask sends a request, and again with a token for nobody if the facade asks for credentials and there are none.
// object is a tag or a digest; header is pairs.
func (f *facade) ask(t testing.TB, method, path, ns string, header ...string) reply {
	t.Helper()
	r := f.askOnce(t, method, path, ns, header...)
	if r.status == http.StatusUnauthorized && !slices.Contains(header, "Authorization") {
		r = f.askOnce(t, method, path, ns, append(slices.Clone(header), "Authorization", "Bearer "+f.token(t, r, nil))...)
	}
	return r
}

// token gets a token of the facade after a challenge, as containerd does: with a form, or without credentials.
func (f *facade) token(t testing.TB, r reply, form url.Values) string {
	t.Helper()
	c := auth.ParseAuthHeader(r.header)
	if len(c) != 1 || c[0].Scheme != auth.BearerAuth || c[0].Parameters["realm"] != f.URL+"/token" {
		t.Fatalf("status %d, challenge %q", r.status, r.header.Get("WWW-Authenticate"))
	}
	service := c[0].Parameters["service"]
	var resp *http.Response
	var err error
	if form == nil {
		resp, err = f.Client().Get(f.URL + "/token?service=" + url.QueryEscape(service))
	} else {
		form.Set("service", service)
		resp, err = f.Client().PostForm(f.URL+"/token", form)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Token  string
		Access string `json:"access_token"`
		Expire int    `json:"expires_in"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Token == "" || answer.Token != answer.Access || answer.Expire <= 0 {
		t.Fatalf("status %d, answer %+v: %v", resp.StatusCode, answer, err)
	}
	return answer.Token
}

// askOnce sends a request.
func (f *facade) askOnce(t testing.TB, method, path, ns string, header ...string) reply {
	t.Helper()
	address := f.URL + path
	if ns != "" {
		address += "?ns=" + ns
	}
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, p}
}

// get asks for a manifest and fails the test if the answer is not 200.
func (f *facade) get(t testing.TB, u *upstream, repository, object string, header ...string) reply {
	t.Helper()
	r := f.ask(t, http.MethodGet, "/v2/"+repository+"/manifests/"+object, u.Host(), header...)
	if r.status != http.StatusOK {
		t.Fatalf("%s %s: status %d: %s", repository, object, r.status, r.body)
	}
	return r
}

// decode decodes the manifest in r.
func decode[T any](t testing.TB, r reply) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// ordinary returns the manifest of an ordinary image.
func ordinary(layers int) []byte {
	m := ocispec.Manifest{MediaType: mediatype.OCIManifest, Config: ocispec.Descriptor{
		MediaType: mediatype.OCIConfig, Digest: digest.FromString("config"), Size: 6,
	}}
	m.SchemaVersion = 2
	for i := range layers {
		m.Layers = append(m.Layers, ocispec.Descriptor{
			MediaType: mediatype.OCILayerGzip, Digest: digest.FromString(fmt.Sprint(i)), Size: int64(i + 1),
		})
	}
	p, err := json.MarshalIndent(m, "", "   ") // byte for byte matters
	if err != nil {
		panic(err)
	}
	return p
}

// weights returns n bytes that do not repeat.
func weights(n int) []byte {
	p := make([]byte, n)
	x := uint64(0x9e3779b97f4a7c15)
	for i := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[i] = byte(x)
	}
	copy(p, "GGUF")
	return p
}

func basic(user string) []string {
	req := http.Request{Header: http.Header{}}
	name, pw, _ := strings.Cut(user, ":")
	req.SetBasicAuth(name, pw)
	return []string{"Authorization", req.Header.Get("Authorization")}
}
