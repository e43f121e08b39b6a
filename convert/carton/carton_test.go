package carton_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// open opens a valid carton.
func open(t *testing.T, src carton.Source, o carton.Options) *carton.Carton {
	t.Helper()
	c, err := carton.Open(context.Background(), src, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func at(p []byte) carton.Source { return carton.At(bytes.NewReader(p), int64(len(p))) }

// hydrate fetches a model into a store and returns its files.
func hydrate(t *testing.T, m *convert.Model, f transfer.Fetcher) (map[string]converttest.File, error) {
	t.Helper()
	ctx := context.Background()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	p, err := m.Table.Encode()
	if err != nil {
		t.Fatal(err)
	}
	d, err := s.PutTable(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddRef("pin/test", d, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Hydrate(ctx, d, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		return nil, err
	}
	files, err := s.Views.Files(d)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]converttest.File{}
	for _, f := range files {
		o, err := s.OpenObject(f.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(o)
		o.Close()
		if err != nil {
			t.Fatal(err)
		}
		all[f.Path] = converttest.File{Path: f.Path, Data: p, Mode: f.Mode}
	}
	return all, nil
}

// pull opens a carton and fetches its files into a store.
func pull(t *testing.T, src carton.Source, o carton.Options) map[string]converttest.File {
	t.Helper()
	c := open(t, src, o)
	m, err := c.Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	files, err := hydrate(t, m, c.Fetcher())
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func compare(t *testing.T, want converttest.Carton, got map[string]converttest.File) {
	t.Helper()
	equal := cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
	if d := cmp.Diff(want.Model(), got, equal); d != "" {
		t.Errorf("files (-want +got):\n%.2000s", d)
	}
}

// TestPullFromFileAndReader pulls a carton with members of all kinds from a file, and from an
// io.ReaderAt.
func TestPullFromFileAndReader(t *testing.T) {
	want := converttest.GoodCarton(storetest.Random(1, 9<<20))
	p := want.Bytes()
	name := filepath.Join(t.TempDir(), "model.carton")
	if err := os.WriteFile(name, p, 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := carton.OpenFile(name)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, want, pull(t, file, carton.Options{Hash: want.Hash()}))
	compare(t, want, pull(t, at(p), carton.Options{}))
}

// TestModelFacts checks the origin, layers, config and runner of a model.
func TestModelFacts(t *testing.T) {
	want := converttest.GoodCarton([]byte("weights"))
	c := open(t, at(want.Bytes()), carton.Options{})
	m, err := c.Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Table.Origin, (filetable.Origin{Format: "carton", Digest: want.Hash(), Mapping: convert.MappingVersion}); got != want {
		t.Errorf("origin: got %v, want %v", got, want)
	}
	kinds := map[string]mediatype.Kind{}
	for i, l := range m.Layers {
		kinds[l.Path] = l.Kind
		if b := m.Table.Blobs[i]; l.Desc.Digest != b.Digest || l.Desc.Size != b.Size {
			t.Errorf("layer %d is %s, its blob %s", i, l.Desc.Digest, b.Digest)
		}
	}
	wantKinds := map[string]mediatype.Kind{
		"carton.toml":             mediatype.KindWeightConfig,
		"misc/input.png":          mediatype.KindDoc,
		"misc/output.mp3":         mediatype.KindDoc,
		"model/a=b.txt":           mediatype.KindWeightConfig,
		"model/code/again.py":     mediatype.KindCode,
		"model/weights.bin":       mediatype.KindWeight,
		"model/weights.zst.bin":   mediatype.KindWeight,
		"tensor_data/index.toml":  mediatype.KindWeightConfig,
		"tensor_data/numbers.bin": mediatype.KindDataset,
	}
	if d := cmp.Diff(wantKinds, kinds); d != "" {
		t.Errorf("kinds (-want +got):\n%s", d)
	}
	m.Config.ModelFS = convert.ModelFS{}
	wantConfig := convert.Config{
		Descriptor: convert.ModelDescriptor{
			Name: "a_model", Title: "It answers every question.", Description: "It is shown in ![an image](@misc/input.png).\n",
			SourceURL: "https://example.com/packing", DocURL: "https://example.com/", Revision: want.Hash().Encoded(), Licenses: []string{"Apache-2.0"},
		},
		Config: convert.ModelConfig{
			Format:       "pt",
			Capabilities: &convert.Capabilities{InputTypes: []string{"other", "text"}, OutputTypes: []string{"other"}},
		},
	}
	if d := cmp.Diff(wantConfig, m.Config); d != "" {
		t.Errorf("config (-want +got):\n%s", d)
	}
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	man, err := convert.ParseManifest(im.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	wantRunner := convert.Runner{Name: "torchscript", FrameworkVersion: "=1.12.1", Platforms: []string{"x86_64-unknown-linux-gnu", "aarch64-apple-darwin"}}
	if d := cmp.Diff(wantRunner, image.RunnerOf(man.Annotations)); d != "" {
		t.Errorf("runner in the annotations of the image (-want +got):\n%s", d)
	}
}

// TestModelIsIndependentOfLayout packs the same files with each method, and with zip64, data
// descriptors and a directory: all have the same image.
func TestModelIsIndependentOfLayout(t *testing.T) {
	var images []digest.Digest
	for _, method := range []uint16{0, 8, 93} {
		c := converttest.GoodCarton([]byte("weights"))
		for i := range c.Files {
			c.Files[i].Method = method
			c.Files[i].Link = ""
		}
		m, err := open(t, at(c.Bytes()), carton.Options{}).Model(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		im, err := image.Build(m)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, im.Digest)
	}
	c := converttest.GoodCarton([]byte("weights"))
	c.Zip = func(z *converttest.Zip) {
		z.Zip64 = true
		for i := range z.Entries {
			z.Entries[i].Zip64 = true
			z.Entries[i].Descriptor = true
		}
		z.Entries = append(z.Entries, converttest.ZipEntry{Name: "model/", Mode: 0o040755})
	}
	m, err := open(t, at(c.Bytes()), carton.Options{}).Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	im, err := image.Build(m)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range images {
		if d != im.Digest {
			t.Errorf("layout %d: got image %s, want %s", i, d, im.Digest)
		}
	}
	compare(t, c, pull(t, at(c.Bytes()), carton.Options{}))
}

// TestUnlistedMembersAreLeftOut pulls an archive with a member that is not in MANIFEST.
func TestUnlistedMembersAreLeftOut(t *testing.T) {
	c := converttest.GoodCarton([]byte("weights"))
	c.Zip = func(z *converttest.Zip) {
		z.Entries = append(z.Entries, converttest.ZipEntry{Name: "model/extra", Data: []byte("x")})
	}
	compare(t, c, pull(t, at(c.Bytes()), carton.Options{}))
}

// TestWrongBytesAreNotStored fetches a member that does not match its digest in MANIFEST.
func TestWrongBytesAreNotStored(t *testing.T) {
	for _, method := range []uint16{0, 8, 93} {
		weights := storetest.Random(2, 5<<20)
		c := converttest.GoodCarton(weights)
		c = c.With(converttest.CartonFile{Path: "model/weights.bin", Data: weights, Method: method})
		c.Zip = func(z *converttest.Zip) {
			for i := range z.Entries {
				if z.Entries[i].Name == "model/weights.bin" {
					z.Entries[i].Data = bytes.Clone(weights)
					z.Entries[i].Data[4<<20+7] ^= 1
				}
			}
		}
		o := open(t, at(c.Bytes()), carton.Options{})
		m, err := o.Model(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hydrate(t, m, o.Fetcher()); !errdefs.IsDataLoss(err) {
			t.Errorf("method %d: got error %v", method, err)
		}
	}
}

// TestOtherHashIsRefused opens a carton with Options.Hash of another one.
func TestOtherHashIsRefused(t *testing.T) {
	c := converttest.GoodCarton([]byte("weights"))
	_, err := carton.Open(context.Background(), at(c.Bytes()), carton.Options{Hash: digest.FromString("another")})
	if !errdefs.IsDataLoss(err) {
		t.Errorf("got error %v", err)
	}
}

// TestBlobNeedsRanges reads a carton that is a layer of an artifact from a registry with ranges, and
// from one without.
func TestBlobNeedsRanges(t *testing.T) {
	want := converttest.GoodCarton(storetest.Random(3, 9<<20))
	b := converttest.CartonArtifact(want)
	m, err := convert.ParseManifest(b.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	l := m.Layers[0]
	compare(t, want, pull(t, carton.Blob(storetest.NewFetcher(b.Blobs[l.Digest]), l.Digest, l.Size), carton.Options{}))

	f := storetest.NewFetcher(b.Blobs[l.Digest])
	f.NoRanges = true
	if _, err := carton.Open(context.Background(), carton.Blob(f, l.Digest, l.Size), carton.Options{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without ranges: got error %v", err)
	}
}

// TestParseReadsNoWeights parses a carton in an artifact: the origin is the manifest, the files are
// those of the carton, and less than 1 MiB of the layer is read.
func TestParseReadsNoWeights(t *testing.T) {
	weights := storetest.Random(4, 9<<20)
	want := converttest.GoodCarton(weights)
	b := converttest.CartonArtifact(want)
	a := converttest.NewArtifact(b)
	m, err := formats.All().Parse(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.Table.Origin, (filetable.Origin{Format: "carton", Digest: b.Digest(), Mapping: convert.MappingVersion}); got != want {
		t.Errorf("origin: got %v, want %v", got, want)
	}
	if got, want := m.Config.Descriptor.Revision, want.Hash().Encoded(); got != want {
		t.Errorf("revision: got %s, want %s", got, want)
	}
	c := open(t, at(want.Bytes()), carton.Options{})
	files, err := hydrate(t, m, c.Fetcher())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, want, files)
	if n := a.BytesRead(digest.FromBytes(want.Bytes())); n > 1<<20 {
		t.Errorf("%d bytes of the layer were read", n)
	}
	none := converttest.ModelPackRaw(converttest.Files([]byte("GGUF")))
	parsed, err := convert.ParseManifest(none.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := carton.Format.Parse(context.Background(), format.Settings{}, converttest.NewArtifact(none), parsed); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without a carton: %v", err)
	}
}

// TestEmptyFilesAreNotBlobs checks that empty files are inline, and that their digest in MANIFEST is
// that of no bytes.
func TestEmptyFilesAreNotBlobs(t *testing.T) {
	good := converttest.GoodCarton([]byte("weights"))
	m, err := open(t, at(good.Bytes()), carton.Options{}).Model(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range m.Table.Blobs {
		if b.Size == 0 {
			t.Errorf("blob %s of no bytes", b.Digest)
		}
	}
	manifest := good.ManifestBytes()
	bad := good.With(converttest.CartonFile{Path: "model/weights.bin"})
	bad.Manifest = func([]byte) []byte { return manifest }
	if _, err := open(t, at(bad.Bytes()), carton.Options{}).Model(context.Background()); !errdefs.IsDataLoss(err) {
		t.Errorf("an empty file with the digest of another: %v", err)
	}
}

// TestModelIsIndependentOfLinks compares the table of a carton with that of the same carton with
// LINKS.
func TestModelIsIndependentOfLinks(t *testing.T) {
	inside := converttest.GoodCarton([]byte("weights"))
	links := func([]byte) []byte {
		return []byte("version = 1\n[urls]\n" + digest.FromString("weights").Encoded() + " = [\"https://example.com/a\"]\n")
	}
	linked := inside
	linked.Links = links
	var tables [][]byte
	for _, c := range []converttest.Carton{inside, linked} {
		m, err := open(t, at(c.Bytes()), carton.Options{}).Model(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Table.Encode()
		if err != nil {
			t.Fatal(err)
		}
		tables = append(tables, p)
	}
	if !bytes.Equal(tables[0], tables[1]) {
		t.Errorf("the table with LINKS differs:\n%s\n%s", tables[0], tables[1])
	}
}
