package store_test

import (
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestImageWithDocuments: an image and its documents are recorded together, or nothing is.
func TestImageWithDocuments(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	manifest, config := []byte(`{"a manifest": 1}`), []byte(`{"a config": 1}`)
	table, err := storetest.NewBuilder("m").Inline("a", []byte("a file"), 0o644).Table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	put := func(table []byte) store.Image {
		im := store.Image{
			Manifest: digest.FromBytes(manifest), Config: digest.FromBytes(config), Table: digest.FromBytes(table), Refs: []string{"r.example/m:v1"},
		}
		err = s.PutImage(im, manifest, config, table)
		return im
	}
	im := put([]byte("no table"))
	if err == nil {
		t.Error("an image without a table is recorded")
	}
	if _, err := s.Catalog.Image(im.Manifest); !errdefs.IsNotFound(err) {
		t.Errorf("a refused image: %v", err)
	}
	if s.Has(im.Config) {
		t.Error("a document of a refused image is there")
	}
	for range 2 { // the second time all of it is there
		if im = put(table); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Catalog.Image(im.Manifest); err != nil {
		t.Error(err)
	}
	if _, err := s.Table(im.Table); err != nil {
		t.Error(err)
	}
	for _, d := range []digest.Digest{im.Manifest, im.Config, im.Table} {
		if _, err := s.ReadDocument(im, d, 1000); err != nil {
			t.Errorf("document %s: %v", d, err)
		}
	}
}
