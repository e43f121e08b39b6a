package converttest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
)

// A StoreLayout is how an Ollama store keeps its manifests.
type StoreLayout string

// The layouts.
const (
	StoreLegacy StoreLayout = "manifests"         // until 0.39
	StoreV2Link StoreLayout = "manifests-v2"      // since 0.40, by symbolic link
	StoreV2Copy StoreLayout = "manifests-v2-copy" // since 0.40, where links are not possible
)

// WriteOllamaStore writes a model to the Ollama store at dir, under the name
// host/namespace/model/tag.
func WriteOllamaStore(dir string, layout StoreLayout, name string, b *Built) error {
	write := func(path string, p []byte) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, p, 0o644)
	}
	blob := func(d digest.Digest) string { return filepath.Join(dir, "blobs", "sha256-"+d.Encoded()) }
	for d, p := range b.Blobs {
		if err := write(blob(d), p); err != nil {
			return err
		}
	}
	if layout == StoreLegacy {
		return write(filepath.Join(dir, "manifests", filepath.FromSlash(name)), b.Manifest)
	}
	if err := write(blob(b.Digest()), b.Manifest); err != nil {
		return err
	}
	at := filepath.Join(dir, "manifests-v2", filepath.FromSlash(strings.ReplaceAll(name, ":", "%3A")))
	if layout == StoreV2Copy {
		return write(at, b.Manifest)
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.Symlink("../../../../blobs/sha256-"+b.Digest().Encoded(), at)
}
