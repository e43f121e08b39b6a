//go:build vm

package vm

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"io"
	"log"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/cluster/plane"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// Names of the registries, see files/etc/hosts.
const (
	ollamaHost = "registry.ollama.ai"
	blobsHost  = "blobs.ollama.example"
	otherHost  = "registry.example"
	githubHost = "ghcr.io" // TestCluster adds it
)

// The addresses of the registries and of the machine, see files/etc.
const (
	registriesAddress = "203.0.113.100"
	nodeAddress       = "203.0.113.15"
)

// registries are those that a machine can reach: registry.ollama.ai, and registry.example, an OCI registry.
type registries struct {
	oci     *node.Registry
	ollama  *node.Ollama
	address string // of the server for all names, with TLS
	ca      []byte // the certificate that machines trust
}

func startRegistries(t *testing.T) *registries {
	t.Helper()
	r := &registries{oci: node.StartRegistry(t, filepath.Join(t.TempDir(), "registry"))}
	r.ollama = node.StartOllama(t, r.oci)
	r.ollama.BlobServer = "https://" + blobsHost
	authority, certPEM, key := plane.Certificates(t, ollamaHost, blobsHost, otherHost, githubHost)
	r.ca = authority
	cert, err := tls.X509KeyPair(certPEM, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: r, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		_ = s.Serve(l) // ends with Close
		close(done)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	r.address = l.Addr().String()
	return r
}

// ServeHTTP serves by the name that the client asks for.
func (r *registries) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.Host {
	case ollamaHost:
		r.ollama.Wire.ServeHTTP(w, req)
	case blobsHost:
		r.ollama.Blobs.ServeHTTP(w, req)
	case otherHost, githubHost:
		r.oci.Wire.ServeHTTP(w, req)
	default:
		http.NotFound(w, req)
	}
}

// port is where the server for all names listens.
func (r *registries) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(r.address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// link limits all registries together to a rate in bytes a second; zero is no limit.
func (r *registries) link(rate int64) {
	r.oci.Wire.Link(rate, 0)
	r.ollama.Blobs.Link(rate, 0)
}

// forget lets sent begin at zero.
func (r *registries) forget() {
	r.oci.Wire.Reset()
	r.ollama.Blobs.Reset()
}

// sent returns the number of bytes of blobs that were sent.
func (r *registries) sent() (n int64) {
	for _, w := range []*node.Wire{r.oci.Wire, r.ollama.Blobs} {
		for _, b := range w.BlobBytes() {
			n += b
		}
	}
	return n
}

// A model is a model in a registry, with the digests of its weights.
type model struct {
	ref  string
	size int64
	sum  string // SHA-256 of model.gguf, in hex
}

// weights returns size random bytes; a seed always gives the same ones.
func weights(seed byte, size int) []byte {
	p := make([]byte, size)
	_, _ = mathrand.NewChaCha8([32]byte{seed}).Read(p)
	return p
}

func newModel(ref string, w []byte) model {
	sum := sha256.Sum256(w)
	return model{ref: ref, size: int64(len(w)), sum: hex.EncodeToString(sum[:])}
}

func artifact(b *converttest.Built) node.Artifact {
	return node.Artifact{Manifest: b.Manifest, MediaType: b.MediaType, Blobs: b.Blobs}
}

// pushOllama pushes a model to registry.ollama.ai.
func (r *registries) pushOllama(t *testing.T, repository, tag string, w []byte) model {
	t.Helper()
	b := converttest.Ollama(converttest.Files(w), converttest.OllamaConfigNew)
	r.oci.Push(t, repository, tag, artifact(b))
	return newModel(ollamaHost+"/"+repository+":"+tag, w)
}

// pushConverted pushes a model to registry.example that `ballast convert` has given chunk digests.
func (r *registries) pushConverted(t *testing.T, repository string, w []byte) model {
	t.Helper()
	r.oci.Push(t, repository+"-raw", "1", artifact(converttest.ModelPackRaw(converttest.Files(w))))
	out := node.Command(t.Context(), nil, node.Binary(t, "ballast"), "convert", r.oci.Ref(repository+"-raw", "1"), r.oci.Ref(repository, "1"))
	if out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	return newModel(otherHost+"/"+repository+":1", w)
}

// pushImage pushes an ordinary image to registry.example and returns its reference.
func (r *registries) pushImage(t *testing.T, repository string) string {
	t.Helper()
	r.oci.Push(t, repository, "1", node.Busybox(t))
	return otherHost + "/" + repository + ":1"
}

// lines returns the lines of a text, without empty ones.
func lines(text string) []string {
	var all []string
	for l := range bytes.Lines([]byte(text)) {
		if l = bytes.TrimSpace(l); len(l) > 0 {
			all = append(all, string(l))
		}
	}
	return all
}
