package ollama_test

import (
	"context"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
)

// TestStoreAssemblesTensorModels downloads models into a store, and reads the files back.
func TestStoreAssemblesTensorModels(t *testing.T) {
	t.Parallel()
	shared := converttest.NewOllama("shared", "") // blobs in two files, and in one file twice
	shared.JSON("vae/config.json", "{}")
	shared.Layer(tensorType, st(entries("data"), "aaaa"), "vae/a")
	shared.Layer(tensorType, st(entries("data"), "aaaa"), "vae/b")
	shared.Layer(tensorType, st(entries("data"), "aaaa"), "c")
	shared.Layer(tensorType, st(entries("vae/d", "e", "vae/f"), "ddddeeeeffff"), "x")
	shared.Layer(tensorType+"; name=empty; dtype=F32; shape=0", nil, "")
	value := func(name, data string) converttest.SafeTensor {
		return converttest.SafeTensor{Name: name, DType: "F32", Shape: []uint64{1}, Data: []byte(data)}
	}
	models := []*converttest.TensorModel{{Built: shared.Done(), Tensors: map[string]map[string]converttest.SafeTensor{
		"vae/model.safetensors": {"a": value("a", "aaaa"), "b": value("b", "aaaa"), "d": value("d", "dddd"), "f": value("f", "ffff")},
		"model.safetensors": {"c": value("c", "aaaa"), "e": value("e", "eeee"),
			"empty": {Name: "empty", DType: "F32", Shape: []uint64{0}}},
	}}}
	shared.Built.Files["Modelfile"] = converttest.File{Path: "Modelfile", Data: []byte(header + "FROM .\n"), Mode: 0o644}
	for _, g := range converttest.Generations {
		models = append(models, converttest.OllamaTensors(g, converttest.Tensors(60, 5000)))
	}
	for _, m := range models {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			model, err := parsers.Parse(ctx, converttest.NewArtifact(m.Built))
			if err != nil {
				t.Fatal(err)
			}
			im, err := image.Build(model)
			if err != nil {
				t.Fatal(err)
			}
			s := storetest.Open(t, t.TempDir(), store.Options{})
			table, err := s.PutTable(im.Table)
			if err != nil {
				t.Fatal(err)
			}
			f := storetest.NewFetcher(slices.Collect(maps.Values(m.Blobs))...)
			if err := s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Fatal(err)
			}
			files, err := s.Views.Files(table)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]converttest.File{}
			for _, file := range files {
				o, err := s.OpenObject(file.Digest, nil)
				if err != nil {
					t.Fatalf("%s: %v", file.Path, err)
				}
				p, err := io.ReadAll(o)
				o.Close()
				if err != nil {
					t.Fatal(err)
				}
				got[file.Path] = converttest.File{Path: file.Path, Data: p}
			}
			if err := m.Check(got); err != nil {
				t.Error(err)
			}
			for _, b := range model.Table.Blobs {
				if n := f.Sent(b.Digest); n > b.Size {
					t.Errorf("%d bytes were fetched of a blob of %d", n, b.Size)
				}
			}
		})
	}
}
