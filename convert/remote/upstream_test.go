package remote_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
)

// An upstream is a registry over real HTTP whose behaviour a test can change.
type upstream struct {
	*httptest.Server
	connections atomic.Int64

	mu        sync.Mutex
	manifests map[string][]byte
	blobs     map[string][]byte
	seen      []seen

	// before, if not nil, can answer a request itself and return true.
	before func(w http.ResponseWriter, r *http.Request) bool
}

// seen is a request to an upstream.
type seen struct {
	method, path, query string
	header              http.Header
}

func newUpstream(t testing.TB) *upstream {
	u := bare()
	u.Start()
	t.Cleanup(u.Close)
	return u
}

func newTLSUpstream(t testing.TB) *upstream {
	u := bare()
	u.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	u.StartTLS()
	t.Cleanup(u.Close)
	return u
}

func bare() *upstream {
	u := &upstream{manifests: map[string][]byte{}, blobs: map[string][]byte{}}
	u.Server = httptest.NewUnstartedServer(u)
	u.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			u.connections.Add(1)
		}
	}
	return u
}

// host returns "127.0.0.1:port".
func (u *upstream) host() string {
	p, err := url.Parse(u.URL)
	if err != nil {
		panic(err)
	}
	return p.Host
}

func (u *upstream) ref(t testing.TB, object string) remote.Ref {
	t.Helper()
	ref, err := remote.NewRef(u.host(), "org/model", object)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (u *upstream) putBlob(p []byte) digest.Digest {
	d := digest.FromBytes(p)
	u.blobs[d.String()] = p
	return d
}

func (u *upstream) requests() []seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]seen(nil), u.seen...)
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.seen = append(u.seen, seen{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Clone()})
	u.mu.Unlock()
	if u.before != nil && u.before(w, r) {
		return
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/v2/org/model/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	kind, object, _ := strings.Cut(rest, "/")
	content := map[string]map[string][]byte{"manifests": u.manifests, "blobs": u.blobs}[kind][object]
	if content == nil {
		http.NotFound(w, r)
		return
	}
	if kind == "manifests" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// newClient returns a client, which the end of the test closes.
func newClient(t testing.TB, o remote.Options) *remote.Client {
	t.Helper()
	c, err := remote.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// repository returns the repository org/model of u.
func (u *upstream) repository(t testing.TB, o remote.Options, creds *remote.Credentials) *remote.Repository {
	t.Helper()
	c := newClient(t, o)
	return repositoryOf(t, c, u.ref(t, "latest"), creds)
}

func repositoryOf(t testing.TB, c *remote.Client, ref remote.Ref, creds *remote.Credentials) *remote.Repository {
	t.Helper()
	r, err := c.Repository(ref, creds)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hostsDir writes a hosts.toml for a host.
func hostsDir(t testing.TB, host, content string) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// mustRefuse fails the test if err is nil, has another category, or does not contain want.
func mustRefuse(t testing.TB, err error, is func(error) bool, want string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if !is(err) {
		t.Errorf("category of %v", err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not say %q", err, want)
	}
}

// random returns n bytes that do not repeat.
func random(n int) []byte {
	p := make([]byte, n)
	x := uint64(n) + 0x9e3779b97f4a7c15
	for i := range p {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		p[i] = byte(x)
	}
	return p
}

func manifestBytes(note string) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[],"annotations":{"note":%q}}`, note)
}
