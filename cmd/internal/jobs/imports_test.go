package jobs

import (
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/transfer"
)

// A model in a user's Ollama store is private, even under a name of the public library.
func TestImportIsPrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := converttest.Ollama(converttest.Files([]byte("weights")), converttest.OllamaConfigNew)
	if err := converttest.WriteOllamaStore(dir, converttest.StoreLegacy, "registry.ollama.ai/library/mine/1b", b); err != nil {
		t.Fatal(err)
	}
	m, err := openLocal(api.ImportRequest{Dir: dir, Model: "mine:1b"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for d, p := range b.Blobs {
		body, _, err := m.Fetch(t.Context(), d, int64(len(p)), 0, int64(len(p)))
		if err != nil {
			t.Fatal(err)
		}
		if !transfer.IsPrivate(body) {
			t.Errorf("blob %s is not private", d)
		}
		body.Close()
	}
}
