package layout

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/durable"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestBlobsFirst checks that the names of blobs are durable before the index that names them is
// written.
func TestBlobsFirst(t *testing.T) {
	dir := t.TempDir()
	l, err := Create(dir, "v1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var synced []string
	l.sync = func(root *os.Root, name string) error {
		if _, err := os.Stat(filepath.Join(dir, ocispec.ImageIndexFile)); !os.IsNotExist(err) {
			t.Errorf("%s comes after the index", name)
		}
		synced = append(synced, name)
		return durable.Sync(root, name)
	}
	if err := l.PutManifest(t.Context(), mediatype.OCIManifest, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"blobs/sha256", "blobs"}; !slices.Equal(synced, want) {
		t.Errorf("got %q, want %q", synced, want)
	}
}
