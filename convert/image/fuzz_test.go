package image_test

import (
	"encoding/json"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// FuzzDocuments reads documents from untrusted image configs: a document matches its digest or is missing.
func FuzzDocuments(f *testing.F) {
	for _, b := range converttest.All(converttest.Files([]byte("GGUF"))) {
		m, err := convert.ParseManifest(b.Manifest)
		if err != nil {
			f.Fatal(err)
		}
		cfg, err := json.Marshal(map[string]any{"descriptor": map[string]any{"revision": b.Digest()}, "origin": map[string]any{"manifest": b.Manifest, "config": b.Blobs[m.Config.Digest]}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(cfg, b.Manifest, b.Blobs[m.Config.Digest])
		f.Add([]byte("{}"), b.Manifest, b.Manifest)
	}
	f.Add([]byte(`{"descriptor":{"revision":"x"},"origin":{"manifest":"!"}}`), []byte("{"), []byte{})
	f.Fuzz(func(t *testing.T, config, manifest, inline []byte) {
		tab := &filetable.Table{Origin: filetable.Origin{Digest: digest.FromBytes(manifest)}}
		for _, p := range [][]byte{manifest, inline} {
			tab.Files = append(tab.Files, filetable.File{Digest: digest.FromBytes(p), Source: &filetable.Source{Inline: p}})
		}
		for _, t2 := range []*filetable.Table{tab, {Origin: tab.Origin, Files: tab.Files[1:]}} {
			docs, err := image.Documents(config, t2)
			if err != nil {
				continue
			}
			if digest.FromBytes(docs.Manifest) != t2.Origin.Digest {
				t.Fatalf("manifest %q is not the origin", docs.Manifest)
			}
			m, err := convert.ParseManifest(docs.Manifest)
			if docs.Child != nil {
				m, err = convert.ParseManifest(docs.Child)
			}
			if docs.Config != nil && (err != nil || digest.FromBytes(docs.Config) != m.Config.Digest) {
				t.Fatalf("config %q is not that of %q", docs.Config, docs.Manifest)
			}
		}
	})
}
