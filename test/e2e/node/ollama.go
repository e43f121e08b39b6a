package node

import (
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Ollama is a front of a Registry that behaves as the Ollama registry does: manifests are
// text/plain without a digest and only by tag, HEAD of a manifest is not allowed, /v2/ does not
// exist, and blobs are on another server, which refuses credentials.
type Ollama struct {
	// Host is "127.0.0.1:port" of the registry, plain HTTP.
	Host string

	// Wire records and can disturb requests to the registry, Blobs those to the blob server.
	Wire, Blobs *Wire

	// BlobServer starts the addresses of blobs: "http://127.0.0.1:port", or that of something in front of it.
	BlobServer string

	registry *Registry
}

// AllowLoopback is the part of ballastd's configuration that allows redirects between servers on
// 127.0.0.1, such as those of an Ollama front.
const AllowLoopback = "[upstream]\nallow_hosts = [\"127.0.0.0/8\"]\n"

// signature makes a blob address valid, like the signed addresses of a CDN.
const signature = "signature=1"

// StartOllama starts a front of r.
func StartOllama(t TB, r *Registry) *Ollama {
	t.Helper()
	o := &Ollama{registry: r}
	o.Blobs = &Wire{Next: http.HandlerFunc(o.serveBlob)}
	o.BlobServer = "http://" + Serve(t, o.Blobs)
	o.Wire = &Wire{Next: http.HandlerFunc(o.serve)}
	o.Host = Serve(t, o.Wire)
	return o
}

func (o *Ollama) serve(w http.ResponseWriter, r *http.Request) {
	_, last, _ := strings.Cut(r.URL.Path, "/manifests/")
	switch {
	case last != "" && r.Method != http.MethodGet:
		http.Error(w, "405 method not allowed", http.StatusMethodNotAllowed)
	case last != "" && digest.Digest(last).Validate() != nil:
		o.serveManifest(w, r)
	case blobOf(r.URL.Path) != "" && r.Method == http.MethodHead:
		o.registry.app.ServeHTTP(w, r)
	case blobOf(r.URL.Path) != "" && r.Method == http.MethodGet:
		w.Header().Set("Location", o.BlobServer+r.URL.Path+"?"+signature)
		w.WriteHeader(http.StatusTemporaryRedirect)
	default:
		http.Error(w, "404 page not found", http.StatusNotFound)
	}
}

func (o *Ollama) serveManifest(w http.ResponseWriter, r *http.Request) {
	inner := r.Clone(r.Context())
	inner.Header.Set("Accept", "*/*, application/vnd.docker.distribution.manifest.v2+json, "+
		"application/vnd.oci.image.manifest.v1+json")
	rec := httptest.NewRecorder()
	o.registry.serve(rec, inner)
	if rec.Code != http.StatusOK {
		w.WriteHeader(rec.Code)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = http.NewResponseController(w).Flush() // no Content-Length
	_, _ = w.Write(rec.Body.Bytes())
}

func (o *Ollama) serveBlob(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" || r.URL.RawQuery != signature {
		http.Error(w, "credentials do not belong here", http.StatusForbidden)
		return
	}
	o.registry.app.ServeHTTP(w, r)
}
