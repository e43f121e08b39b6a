package localstore_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/ollama/localstore"
	"github.com/opencontainers/go-digest"
)

// FuzzLink puts a link in place of a manifest: it leads to a blob of the store that matches the
// digest in its name, or is refused.
func FuzzLink(f *testing.F) {
	outside := f.TempDir()
	dir := filepath.Join(outside, "store")
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		f.Fatal(err)
	}
	b := gguf("weights")
	if err := converttest.WriteOllamaStore(dir, converttest.StoreV2Link, "registry.ollama.ai/library/m/latest", b); err != nil {
		f.Fatal(err)
	}
	at := filepath.Join(dir, "manifests-v2", "registry.ollama.ai", "library", "m", "latest")
	s, err := localstore.Open(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	up := "../../../../"
	for _, s := range []string{
		up + "blobs/sha256-" + b.Digest().Encoded(), up + "blobs/../blobs/sha256-" + b.Digest().Encoded(), up + "../../../../../../../etc/hostname", "/etc/hostname",
		filepath.Join(outside, "secret"), up + "blobs/sha256-../../secret", "latest", ".", up + "blobs", up + "blobs/sha256-" + digest.FromString("weights").Encoded(),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		if err := os.RemoveAll(at); err != nil {
			t.Fatal(err)
		}
		if os.Symlink(target, at) != nil {
			return // not a valid file name
		}
		a, err := s.Artifact("registry.ollama.ai/library/m:latest")
		if err != nil {
			return
		}
		if _, ok := b.Blobs[digest.FromBytes(a.Manifest())]; !ok && !bytes.Equal(a.Manifest(), b.Manifest) {
			t.Fatalf("a link to %q gave %q", target, a.Manifest())
		}
	})
}
