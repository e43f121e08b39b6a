package store_test

import (
	"archive/tar"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/google/go-cmp/cmp"
)

// TestStackedLayers shows three layers that change those below: a plain tar, a compressed tar and a raw
// file.
func TestStackedLayers(t *testing.T) {
	layer := func(files ...string) []byte { // name, content, …
		var headers []tar.Header
		var contents [][]byte
		for i := 0; i < len(files); i += 2 {
			headers = append(headers, tar.Header{Name: files[i], Mode: 0o644})
			contents = append(contents, []byte(files[i+1]))
		}
		return storetest.Tar(t, headers, contents)
	}
	plain := layer("config.json", "old", "a.bin", "aaaa", "d/x", "x", "d/y", "y")
	gzip := storetest.Compress(t, layer("config.json", "newer", ".wh.a.bin", "", "d/.wh..wh..opq", "", "d/z", "z"), filetable.CodecGzip)
	raw := []byte("on top")
	b := storetest.NewBuilder("stacked").Tar(t, plain).Unpack(gzip, filetable.CodecGzip, "").Raw("d/z", raw, 0o644)
	table := b.Table()
	table.Version, table.Stacked = filetable.StackedVersion, true
	table.Unpacks[0].Layer = 1
	for i := range table.Files {
		if table.Files[i].Source.Size == int64(len(raw)) {
			table.Files[i].Layer = 2
		}
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	d := b.Put(t, s)
	if err := s.Hydrate(t.Context(), d, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(plain, gzip, raw))}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"config.json": "newer", "d/z": "on top"}, content(t, s, d)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
