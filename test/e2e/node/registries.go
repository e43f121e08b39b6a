package node

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"time"
)

// Names of the registries of machines.
const (
	OllamaHost = "registry.ollama.ai"
	BlobsHost  = "blobs.ollama.example"
	OtherHost  = "registry.example"
	GithubHost = "ghcr.io"
)

// Registries are those that a machine reaches by their usual names, with TLS: registry.ollama.ai, and an OCI registry.
type Registries struct {
	OCI    *Registry
	Ollama *Ollama
	Github http.Handler // of ghcr.io: OCI, unless it is replaced

	Address   string // of the server for all names
	Authority []byte // the certificate that machines trust
}

// StartRegistries starts registries at an address, with their content below dir.
func StartRegistries(t TB, dir, address string) *Registries {
	t.Helper()
	r := &Registries{OCI: StartRegistry(t, dir)}
	r.Github = r.OCI.Wire
	r.Ollama = StartOllama(t, r.OCI)
	r.Ollama.BlobServer = "https://" + BlobsHost
	authority, certPEM, key := Certificates(t, OllamaHost, BlobsHost, OtherHost, GithubHost)
	r.Authority = authority
	cert, err := tls.X509KeyPair(certPEM, key)
	if err != nil {
		t.Fatalf("%v", err)
	}
	l, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatalf("%v", err)
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
	r.Address = l.Addr().String()
	return r
}

// ServeHTTP serves by the name that the client asks for.
func (r *Registries) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch req.Host {
	case OllamaHost:
		r.Ollama.Wire.ServeHTTP(w, req)
	case BlobsHost:
		r.Ollama.Blobs.ServeHTTP(w, req)
	case OtherHost:
		r.OCI.Wire.ServeHTTP(w, req)
	case GithubHost:
		r.Github.ServeHTTP(w, req)
	default:
		http.NotFound(w, req)
	}
}
