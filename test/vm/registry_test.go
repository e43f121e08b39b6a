//go:build vm

package vm

import (
	"crypto/sha256"
	"encoding/hex"
	mathrand "math/rand/v2"
	"net"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// The addresses of the registries and of the machine, see files/etc.
const (
	registriesAddress = "203.0.113.100"
	nodeAddress       = "203.0.113.15"
)

// registries are those that a machine can reach.
type registries struct{ *node.Registries }

func startRegistries(t *testing.T) *registries {
	t.Helper()
	return &registries{node.StartRegistries(t, t.TempDir(), "127.0.0.1:0")}
}

// port is where the server for all names listens.
func (r *registries) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(r.Address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// link limits all registries together to a rate in bytes a second; zero is no limit.
func (r *registries) link(rate int64) {
	r.OCI.Wire.Link(rate, 0)
	r.Ollama.Blobs.Link(rate, 0)
}

// forget lets sent begin at zero.
func (r *registries) forget() {
	r.OCI.Wire.Reset()
	r.Ollama.Blobs.Reset()
}

// sent returns the number of bytes of blobs that were sent.
func (r *registries) sent() (n int64) {
	for _, w := range []*node.Wire{r.OCI.Wire, r.Ollama.Blobs} {
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
	r.OCI.Push(t, repository, tag, artifact(b))
	return newModel(node.OllamaHost+"/"+repository+":"+tag, w)
}

// pushConverted pushes a model to registry.example that `ballast convert` has given chunk digests.
func (r *registries) pushConverted(t *testing.T, repository string, w []byte) model {
	t.Helper()
	r.OCI.Push(t, repository+"-raw", "1", artifact(converttest.ModelPackRaw(converttest.Files(w))))
	out := node.Command(t.Context(), nil, node.Binary(t, "ballast"), "convert", r.OCI.Ref(repository+"-raw", "1"), r.OCI.Ref(repository, "1"))
	if out.Err != nil {
		t.Fatalf("ballast convert: %v\n%s", out.Err, out.Output())
	}
	return newModel(node.OtherHost+"/"+repository+":1", w)
}

// pushImage pushes an ordinary image to registry.example and returns its reference.
func (r *registries) pushImage(t *testing.T, repository string) string {
	t.Helper()
	r.OCI.Push(t, repository, "1", node.Busybox(t))
	return node.OtherHost + "/" + repository + ":1"
}
