package remote_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
)

// An upstream is a registry with the repository org/model. It counts its connections.
type upstream struct {
	*registrytest.Server
	connections atomic.Int64
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
	u := &upstream{Server: registrytest.Unstarted()}
	u.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			u.connections.Add(1)
		}
	}
	return u
}

func (u *upstream) ref(t testing.TB, object string) remote.Ref {
	t.Helper()
	ref, err := remote.NewRef(u.Host(), "org/model", object)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func (u *upstream) putBlob(p []byte) digest.Digest { return u.PutBlob("org/model", p) }

// putManifest serves a manifest of which the registry says no media type.
func (u *upstream) putManifest(object string, p []byte) { u.Put("org/model", object, p, "") }

// lie makes the registry serve other bytes of the same length for a blob.
func (u *upstream) lie(d digest.Digest) {
	size := len(u.Blob("org/model", d))
	u.Serve("/v2/org/model/blobs/"+d.String(), bytes.Repeat([]byte("lie"), size)[:size])
}

// empty is a hook of a registry that has nothing.
func empty(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true }

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
