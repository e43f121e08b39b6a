package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // the storage
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
)

// Artifact is a manifest with its blobs.
type Artifact struct {
	Manifest  []byte
	MediaType string // of the manifest
	Blobs     map[digest.Digest][]byte
}

// Registry is the reference implementation of an OCI registry behind a Wire.
type Registry struct {
	// Host is "127.0.0.1:port", plain HTTP.
	Host string

	// Dir is the directory of its content.
	Dir string

	// Wire records and can disturb every request.
	Wire *Wire

	app http.Handler

	// User and Password are required if User is not empty.
	User, Password string

	mu  sync.Mutex          // guards odd
	odd map[string]Artifact // by path
}

var quietDistribution = sync.OnceFunc(func() { logrus.SetOutput(io.Discard) })

// StartRegistry starts a registry that stores its content below dir.
func StartRegistry(t TB, dir string) *Registry {
	t.Helper()
	quietDistribution()
	config := &configuration.Configuration{
		Version: configuration.CurrentVersion,
		Storage: configuration.Storage{
			"filesystem": configuration.Parameters{"rootdirectory": dir},
			"delete":     configuration.Parameters{"enabled": true},
			"maintenance": configuration.Parameters{
				"uploadpurging": map[any]any{"enabled": false},
			},
		},
	}
	config.HTTP.Secret = "of no use outside of a test"
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := &Registry{Dir: dir, app: handlers.NewApp(ctx, config), odd: map[string]Artifact{}}
	r.Wire = &Wire{Next: http.HandlerFunc(r.serve)}
	r.Host = Serve(t, r.Wire)
	return r
}

// serve serves manifests of types that the reference implementation does not accept, as other
// registries do.
func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	if user, password, _ := req.BasicAuth(); r.User != "" && req.Header.Get(pastWire) == "" && (user != r.User || password != r.Password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	r.mu.Lock()
	a, ok := r.odd[req.URL.Path]
	r.mu.Unlock()
	if !ok || req.Method != http.MethodGet && req.Method != http.MethodHead {
		r.app.ServeHTTP(w, req)
		return
	}
	w.Header().Set("Content-Type", a.MediaType)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(a.Manifest).String())
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(a.Manifest))
}

// known are the manifest types that the reference implementation accepts.
var known = []string{
	"application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json",
	"application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.distribution.manifest.list.v2+json",
}

// Serve serves h on a free port of 127.0.0.1 and returns "127.0.0.1:port". The clean-up fails the
// test if the server received credentials that do not belong to it, see Belongs.
func Serve(t TB, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	// Some tests abort connections; these errors are not logged.
	o := &origin{Handler: h, address: l.Addr().String()}
	s := &http.Server{Handler: o, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		_ = s.Serve(l)
		close(done)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
		o.check(t)
	})
	return l.Addr().String()
}

// Ref returns the reference of a tag in a repository of this registry.
func (r *Registry) Ref(repository, tag string) string {
	return fmt.Sprintf("%s/%s:%s", r.Host, repository, tag)
}

// BlobURL returns the address of a blob in a repository of this registry.
func (r *Registry) BlobURL(repository string, d digest.Digest) string {
	return fmt.Sprintf("http://%s/v2/%s/blobs/%s", r.Host, repository, d)
}

// Push uploads an artifact and returns the digest of its manifest. The wire does not record it.
func (r *Registry) Push(t TB, repository, tag string, a Artifact) digest.Digest {
	t.Helper()
	for d, p := range a.Blobs {
		r.PushBlob(t, repository, d, int64(len(p)), bytes.NewReader(p))
	}
	d := digest.FromBytes(a.Manifest)
	for _, name := range []string{d.String(), tag} {
		path := "/v2/" + repository + "/manifests/" + name
		if !slices.Contains(known, a.MediaType) {
			r.mu.Lock()
			r.odd[path] = a
			r.mu.Unlock()
			continue
		}
		req := r.request(t, http.MethodPut, path, bytes.NewReader(a.Manifest))
		req.Header.Set("Content-Type", a.MediaType)
		r.do(t, req, http.StatusCreated)
	}
	return d
}

// PushBlob uploads a blob.
func (r *Registry) PushBlob(t TB, repository string, d digest.Digest, size int64, body io.Reader) {
	t.Helper()
	start := r.do(t, r.request(t, http.MethodPost, "/v2/"+repository+"/blobs/uploads/", nil), http.StatusAccepted)
	to, err := url.Parse(start.Get("Location"))
	if err != nil {
		t.Fatalf("upload location: %v", err)
	}
	q := to.Query()
	q.Set("digest", d.String())
	req := r.request(t, http.MethodPut, to.Path+"?"+q.Encode(), body)
	req.ContentLength = size
	req.Header.Set("Content-Type", "application/octet-stream")
	r.do(t, req, http.StatusCreated)
}

func (r *Registry) request(t TB, method, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+r.Host+path, body)
	if err != nil {
		t.Fatalf("%v", err)
	}
	req.Header.Set(pastWire, "1")
	return req
}

func (r *Registry) do(t TB, req *http.Request, want int) http.Header {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("registry: %v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		t.Fatalf("registry: %s %s: %s: %s", req.Method, req.URL.Path, resp.Status, b)
	}
	return resp.Header
}
