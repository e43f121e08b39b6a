package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ollamaPeer measures a pull by the server of Ollama, and a read of the stored blob.
func (b *bench) ollamaPeer(m model) *peer {
	p := &peer{what: "Ollama's server, its own format", blob: m.digest}
	if _, err := os.Stat(b.ollama); err != nil {
		p.missing = errors.New("it is not built")
		return p
	}
	b.pushOllama("peers/ollama", m)
	// The server requires a redirect to another host for blobs.
	front := strings.Replace(node.StartOllama(b.t, b.node.Registry).Host, "127.0.0.1", "localhost", 1)
	dir := filepath.Join(b.node.Dir, "ollama")
	blob := filepath.Join(dir, "blobs", strings.Replace(m.digest.String(), ":", "-", 1))
	address := node.FreeAddress(b.t)
	p.run = func() (first, all, cpu time.Duration) {
		// A new server for each round, because it keeps what it has pulled.
		server := node.Start(b.t, "ollama", filepath.Join(b.node.Dir, "ollama.log"), []string{"OLLAMA_MODELS=" + dir, "HOME=" + b.node.Dir, "GIN_MODE=release"}, b.ollama, address)
		server.WaitReady(b.t, func() error {
			c, err := net.Dial("tcp", address)
			if err != nil {
				return err
			}
			return c.Close()
		})
		start := time.Now()
		if err := ollamaPull("http://"+address, "http://"+front+"/peers/ollama:v1"); err != nil {
			b.t.Fatalf("Ollama: %v\n%s", err, server.Tail(20))
		}
		b.readOnce(blob, m.size/2)
		first = time.Since(start)
		b.task("load", loaders[0].name, blob)
		all, cpu = time.Since(start), b.cpuOf(server.Pid(), true)
		server.Stop(b.t)
		if err := os.RemoveAll(dir); err != nil {
			b.t.Fatalf("%v", err)
		}
		return first, all, cpu
	}
	return p
}

// ollamaPull requests a pull from the server and waits for its end.
func ollamaPull(server, model string) error {
	request, err := json.Marshal(map[string]any{"model": model, "insecure": true, "stream": false})
	if err != nil {
		return err
	}
	resp, err := http.Post(server+"/api/pull", "application/json", bytes.NewReader(request))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var result struct{ Status string }
	if err := json.Unmarshal(body, &result); err != nil || result.Status != "success" {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}

// pushOllama pushes the file of a model in Ollama's format.
func (b *bench) pushOllama(repository string, m model) {
	b.node.Registry.PushBlob(b.t, repository, m.digest, m.size, m.bytes())
	config := []byte(`{"model_format":"gguf","model_family":"llama","model_type":"1B","file_type":"F16"}`)
	configDigest := digest.FromBytes(config)
	p, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": dockerManifest,
		"config": ocispec.Descriptor{MediaType: "application/vnd.docker.container.image.v1+json", Digest: configDigest, Size: int64(len(config))},
		"layers": []ocispec.Descriptor{{MediaType: ollamaPrefix + "model", Digest: m.digest, Size: m.size}}})
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.Registry.Push(b.t, repository, "v1", node.Artifact{Manifest: p, MediaType: dockerManifest,
		Blobs: map[digest.Digest][]byte{configDigest: config}})
}
