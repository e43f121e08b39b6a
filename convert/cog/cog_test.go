package cog_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestCog parses complete weights: files of uncompressed layers have the digests of the index.
func TestCog(t *testing.T) {
	t.Parallel()
	weights := []byte("GGUF and some weights")
	b := converttest.Cog(converttest.Files(weights))
	converttest.TestParser(t, formats.All().Parse, b)
	m, err := formats.All().Parse(t.Context(), converttest.NewArtifact(b))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Table.Files) != 1 || m.Table.Files[0].Path != "model.gguf" || m.Table.Files[0].Digest != digest.FromBytes(weights) {
		t.Errorf("files %+v", m.Table.Files)
	}
	if m.Config.Descriptor.Name != "a-model" || len(m.Documents.Config) == 0 {
		t.Errorf("config %+v", m.Config)
	}
}

var two = string(converttest.Tar(converttest.File{Path: "a.bin", Data: []byte("weights"), Mode: 0o644}, converttest.File{Path: "b.bin", Data: []byte("more"), Mode: 0o644}))

var tar = string(converttest.Tar(converttest.File{Path: "a.bin", Data: []byte("weights"), Mode: 0o644}))

// parse parses weights with a config.
func parse(config string, layers ...converttest.Layer) (*convert.Model, *converttest.Built, error) {
	b := converttest.Make(converttest.Spec{ArtifactType: mediatype.CogWeight, ConfigType: mediatype.CogConfig, Config: config, Layers: layers})
	m, err := formats.All().Parse(context.Background(), converttest.NewArtifact(b))
	return m, b, err
}

// index is a config with a file, of which some fields are replaced.
func index(replace ...string) string {
	p, err := json.Marshal(map[string]any{"files": []converttest.CogFile{{Path: "a.bin", Layer: digest.FromString(tar), Size: 7, Digest: digest.FromString("weights")}}})
	if err != nil {
		panic(err)
	}
	return strings.NewReplacer(replace...).Replace(string(p))
}

// TestRefused parses weights that must be refused, with a word of the error.
func TestRefused(t *testing.T) {
	t.Parallel()
	plain := converttest.Layer{MediaType: mediatype.OCILayer, Data: tar}
	if _, _, err := parse(index(), plain); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, config string
		layer        converttest.Layer
		want         error
		word         string
	}{
		{"another size", index(`"size":7`, `"size":8`), plain, errdefs.ErrInvalidArgument, "no such file of 8 bytes"},
		{"another path", index("a.bin", "b.bin"), plain, errdefs.ErrInvalidArgument, `"b.bin"`},
		{"a layer that is not there", index(digest.FromString(tar).String(), digest.FromString("x").String()), plain, errdefs.ErrInvalidArgument, "no layer"},
		{"a digest that is none", index(digest.FromString("weights").String(), "sha256:x"), plain, errdefs.ErrInvalidArgument, `"a.bin"`},
		{"a size that is none", index(`"size":7`, `"size":"7"`), plain, errdefs.ErrInvalidArgument, `"a.bin"`},
		{"a file that is not listed", index(digest.FromString(tar).String(), digest.FromString(two).String()), converttest.Layer{MediaType: mediatype.OCILayer, Data: two}, errdefs.ErrInvalidArgument, `"b.bin" of layer`},
		{"files that are none", `{"files":{}}`, plain, errdefs.ErrInvalidArgument, "files"},
		{"a config that is none", `[]`, plain, errdefs.ErrInvalidArgument, "config"},
		{"a member that leaves the model", `{}`, converttest.Layer{MediaType: mediatype.OCILayer, Data: string(converttest.Tar(converttest.File{Path: "../x"}))}, errdefs.ErrInvalidArgument, ".."},
		{"a layer that is no tar", `{}`, converttest.Layer{MediaType: filetable.MediaTypeBlobLayer, Data: "x"}, errdefs.ErrNotImplemented, "not a layer of weights"},
		{"a layer of another format", `{}`, converttest.Layer{MediaType: "application/vnd.cog.weight.layer.v1", Data: tar}, errdefs.ErrNotImplemented, "unknown cog"},
	} {
		_, _, err := parse(tt.config, tt.layer)
		if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.word) {
			t.Errorf("%s: got %v; want %v with %q", tt.name, err, tt.want, tt.word)
		}
	}
	if _, _, err := parse(""); err == nil {
		t.Error("no layers and no config")
	}
}

// TestCompressed pulls a compressed layer: its files must be those of the index.
func TestCompressed(t *testing.T) {
	t.Parallel()
	packed := string(converttest.Compress([]byte(tar), filetable.CodecGzip))
	other := digest.FromString("others")
	for name, tt := range map[string]struct {
		replace []string
		ok      bool
	}{
		"right":           {nil, true},
		"no index":        {[]string{"files", "others"}, true},
		"another digest":  {[]string{digest.FromString("weights").String(), other.String()}, false},
		"another size":    {[]string{`"size":7`, `"size":8`}, false},
		"another path":    {[]string{"a.bin", "b.bin"}, false},
		"one file more":   {[]string{"}]", `},{"path":"b.bin","layer":"` + digest.FromString(packed).String() + `","size":0,"digest":"` + other.String() + `"}]`}, false},
		"a file missing":  {nil, false},
		"the same, twice": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := packed
			switch name {
			case "a file missing":
				data = string(converttest.Compress([]byte(two), filetable.CodecGzip))
			case "the same, twice":
				data = string(converttest.Compress([]byte(tar[:1024]+tar), filetable.CodecGzip))
			}
			m, b, err := parse(index(append([]string{digest.FromString(tar).String(), digest.FromString(data).String()}, tt.replace...)...), converttest.Layer{MediaType: mediatype.OCILayerGzip, Data: data})
			if err != nil {
				t.Fatal(err)
			}
			s := storetest.Open(t, t.TempDir(), store.Options{})
			p, err := m.Table.Encode()
			if err != nil {
				t.Fatal(err)
			}
			table, err := s.PutTable(p)
			if err != nil {
				t.Fatal(err)
			}
			from := storetest.NewFetcher(slices.Collect(maps.Values(b.Blobs))...)
			err = s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(from)})
			if tt.ok && err != nil || !tt.ok && (!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "its files are not those that the config")) {
				t.Errorf("hydrate: %v", err)
			}
			files, err := s.Views.Files(table)
			if tt.ok != (err == nil) || tt.ok && (len(files) != 1 || files[0].Digest != digest.FromString("weights")) {
				t.Errorf("files %v, %v", files, err)
			}
		})
	}
}

// TestUnlistedLayers: an index that lists nothing of a layer refuses its files.
func TestUnlistedLayers(t *testing.T) {
	t.Parallel()
	first, plain := converttest.Layer{MediaType: mediatype.OCILayer, Data: tar}, string(converttest.Tar(converttest.File{Path: "evil.py", Data: []byte("x")}))
	if _, _, err := parse(index(), first, converttest.Layer{MediaType: mediatype.OCILayer, Data: plain}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), `"evil.py" of layer`) {
		t.Errorf("uncompressed: %v", err)
	}
	packed := converttest.Compress([]byte(plain), filetable.CodecGzip)
	m, _, err := parse(index(), first, converttest.Layer{MediaType: mediatype.OCILayerGzip, Data: string(packed)})
	if err != nil || m.Table.Blobs[1].Files != filetable.FilesDigest(nil) {
		t.Errorf("compressed: %v", err)
	}
}

func FuzzCog(f *testing.F) {
	for _, s := range []string{index(), index(`"size":7`, `"size":-1`), `{"files":[null]}`, `{"files":[{}],"name":1}`, ""} {
		f.Add(s, mediatype.OCILayer, tar)
		f.Add(s, mediatype.OCILayerGzip, tar)
	}
	f.Fuzz(func(t *testing.T, config, mediaType, data string) {
		m, b, err := parse(config, converttest.Layer{MediaType: mediaType, Data: data})
		if err != nil {
			return
		}
		if err := m.Table.Validate(); err != nil {
			t.Fatal(err)
		}
		if m.Table.Origin.Digest != b.Digest() {
			t.Fatalf("origin %s", m.Table.Origin.Digest)
		}
	})
}
