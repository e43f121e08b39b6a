package node

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// LlamaServer is an image in place of ghcr.io/ggml-org/llama.cpp:server: its program, at the same path and with the same flags,
// reads a model as llama.cpp does, and answers with what LlamaAnswer returns.
func LlamaServer(t TB) Artifact {
	t.Helper()
	program, err := os.ReadFile(built(t, "bin/test/llama-server", "make test-images"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	a := Image(t, nil, []File{{Path: "app/", Mode: 0o755}, {Path: "app/llama-server", Mode: 0o755, Data: program}})
	return entrypoint(t, a, "/app/llama-server")
}

// LlamaAnswer is what the server of LlamaServer answers with a model.
func LlamaAnswer(f converttest.GGUFFile) string {
	h := sha256.New()
	for _, t := range slices.Backward(f.Tensors) {
		h.Write(t.Data)
	}
	texts := map[string]any{}
	for _, k := range f.Keys {
		texts[k.Name] = k.Value
	}
	return fmt.Sprintf("%s %s, %d tensors, %x", texts["general.architecture"], texts["general.name"], len(f.Tensors), h.Sum(nil))
}

// entrypoint sets what an image starts.
func entrypoint(t TB, a Artifact, words ...string) Artifact {
	t.Helper()
	var manifest ocispec.Manifest
	var config ocispec.Image
	if err := errors.Join(json.Unmarshal(a.Manifest, &manifest), json.Unmarshal(a.Blobs[manifest.Config.Digest], &config)); err != nil {
		t.Fatalf("%v", err)
	}
	delete(a.Blobs, manifest.Config.Digest)
	config.Config.Entrypoint = words
	p, err := json.Marshal(config)
	if err != nil {
		t.Fatalf("%v", err)
	}
	manifest.Config.Digest, manifest.Config.Size = digest.FromBytes(p), int64(len(p))
	a.Blobs[manifest.Config.Digest] = p
	if a.Manifest, err = json.Marshal(manifest); err != nil {
		t.Fatalf("%v", err)
	}
	return a
}
