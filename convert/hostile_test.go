package convert_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// hostileManifests are manifests with several contradictions each.
func hostileManifests() map[string]string {
	const layer = "application/vnd.oci.image.layer.v1.tar"
	config := desc("application/vnd.oci.image.config.v1+json", digestA, 2)
	return map[string]string{
		"a million layers":                       manifest(config, strings.TrimSuffix(strings.Repeat("{},", 1_000_000), ",")),
		"a hundred thousand layers without size": manifest(config, strings.TrimSuffix(strings.Repeat("{},", 100_000), ",")),
		"layers is an object":                    `{"layers":{}}`,
		"size of 2^63-1":                         manifest(config, desc(layer, digestB, int64(1<<63-1))),
		"size of -1":                             manifest(config, desc(layer, digestB, -1)),
		"digest is a path":                       manifest(config, desc(layer, "sha256:../../x", 1)),
		"digest with 63 digits":                  manifest(config, desc(layer, digestB[:70], 1)),
		"digest of sha512":                       manifest(config, desc(layer, "sha512:"+strings.Repeat("a", 128), 1)),
		"one digest, two sizes":                  manifest(config, desc(layer, digestB, 1), desc(layer, digestB, 2)),
		"config and layer of two sizes":          manifest(config, desc(layer, digestA, 1)),
		"digest key twice":                       `{"layers":[{"mediaType":"a/b","digest":"` + digestA + `","digest":"` + digestB + `","size":1}]}`,
		"digest key in capitals":                 `{"layers":[{"mediaType":"a/b","DIGEST":"` + digestA + `","size":1}]}`,
		"nested deep":                            `{"layers":[],"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`,
		"layers and manifests":                   `{"layers":[],"manifests":[]}`,
		"HTML page":                              "<!doctype html><html></html>",
		"byte order mark":                        "\ufeff{}",
		"NaN":                                    `{"layers":[],"x":NaN}`,
		"trailing data":                          `{"layers":[]}{}`,
		"invalid UTF-8":                          "{\"layers\":[],\"x\":\"\xff\"}",
	}
}

func TestHostileManifests(t *testing.T) {
	t.Parallel()
	for name, p := range hostileManifests() {
		t.Run(name, func(t *testing.T) {
			m, err := convert.ParseManifest([]byte(p))
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotImplemented(err) {
				t.Errorf("got %v, %.200v", m, err)
			}
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// FuzzHostileManifest has contradictory manifests as seeds.
func FuzzHostileManifest(f *testing.F) {
	for _, p := range hostileManifests() {
		if len(p) < 1<<16 {
			f.Add([]byte(p))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := convert.ParseManifest(p)
		if err != nil {
			return
		}
		sizes := map[digest.Digest]int64{}
		for i, l := range append(slices.Clone(m.Layers), m.Config) {
			if l.Digest == "" {
				continue
			}
			if _, err := verify.ParseDigest(l.Digest.String()); err != nil {
				t.Errorf("layer %d: %v", i, err)
			}
			if size, ok := sizes[l.Digest]; ok && size != l.Size {
				t.Errorf("%s has sizes %d and %d", l.Digest, size, l.Size)
			}
			sizes[l.Digest] = l.Size
		}
	})
}

// TestHostileConfigs gives every format a config that is none.
func TestHostileConfigs(t *testing.T) {
	t.Parallel()
	configs := map[string]string{
		"larger than the limit":   `{"x":"` + strings.Repeat("x", convert.MaxConfigSize) + `"}`,
		"not JSON":                "GGUF",
		"nested 100000 deep":      `{"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`,
		"a key twice":             `{"config":{},"config":{}}`,
		"a key twice, far inside": `{"config":{"x":[{"a":1,"a":2}]}}`,
		"NaN":                     `{"config":NaN}`,
		"data after it":           `{}{}`,
		"invalid UTF-8":           "{\"config\":\"\xff\"}",
		"a byte order mark":       "\ufeff{}",
		"a list":                  "[]",
	}
	for format, spec := range formatSpecs() {
		for name, config := range configs {
			t.Run(format+"/"+name, func(t *testing.T) {
				t.Parallel()
				spec := spec
				spec.Config = config
				_, err := parsers.Parse(context.Background(), converttest.NewArtifact(converttest.Make(spec)))
				if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "config") && !strings.Contains(err.Error(), "diffID") {
					t.Errorf("got %.300v, want errdefs.ErrInvalidArgument that names the config", err)
				}
			})
		}
	}
}

// formatSpecs returns a small artifact of every format that has a config.
func formatSpecs() map[string]converttest.Spec {
	const (
		modelPack = "application/vnd.cncf.model."
		cnai      = "application/vnd.cnai.model."
	)
	at := converttest.At("model.bin")
	return map[string]converttest.Spec{
		"ModelPack": {ArtifactType: modelPack + "manifest.v1+json", ConfigType: modelPack + "config.v1+json",
			Layers: []converttest.Layer{{MediaType: modelPack + "weight.v1.raw", Data: "x", Annotations: at}}},
		"CNAI": {ArtifactType: cnai + "manifest.v1+json", ConfigType: cnai + "config.v1+json",
			Layers: []converttest.Layer{{MediaType: cnai + "weight.v1.raw", Data: "x", Annotations: at}}},
		"early CNAI": {ArtifactType: cnai + "manifest.v1+json", ConfigType: "application/vnd.oci.image.config.v1+json",
			Layers: []converttest.Layer{{MediaType: "application/vnd.oci.image.layer.v1.tar", Data: string(converttest.Tar(converttest.File{Path: "a"}))}}},
		"Docker AI": {ConfigType: "application/vnd.docker.ai.model.config.v0.1+json",
			Layers: []converttest.Layer{{MediaType: "application/vnd.docker.ai.gguf.v3", Data: "x"}}},
		"Ollama": {MediaType: "application/vnd.docker.distribution.manifest.v2+json", ConfigType: "application/vnd.docker.container.image.v1+json",
			Layers: []converttest.Layer{{MediaType: "application/vnd.ollama.image.model", Data: "x"}}},
	}
}

// TestModelConfigTypeWithImageConfig parses configs with the type of a model and the body of an
// image, and the reverse: no setting of an image becomes part of the model.
func TestModelConfigTypeWithImageConfig(t *testing.T) {
	t.Parallel()
	image := `{"architecture":"amd64","os":"linux","config":{"Env":["A=b"],"Cmd":["sh"]},"rootfs":{"type":"layers","diff_ids":[]}}`
	for format, spec := range formatSpecs() {
		spec.Config = image
		m, err := parsers.Parse(context.Background(), converttest.NewArtifact(converttest.Make(spec)))
		if err != nil {
			t.Errorf("%s: %v", format, err)
			continue
		}
		p, err := json.Marshal(m.Config)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"amd64", "linux", "A=b", "Cmd", "diff_ids"} {
			if strings.Contains(string(p), word) {
				t.Errorf("%s: config %s has %q", format, p, word)
			}
		}
	}
}

// bring brings a ModelPack of one layer into a real store and returns its files.
func bring(t *testing.T, mediaType string, blob []byte) (map[string]string, error) {
	t.Helper()
	files, err := brought(t, mediaType, blob)
	if err != nil {
		return nil, err
	}
	got := map[string]string{}
	for _, f := range files {
		got[f.Path] = fmt.Sprintf("%s %o %d %s", f.Type, f.Mode, f.Size, f.Target)
	}
	return got, nil
}

// brought is bring with all attributes of the files.
func brought(t *testing.T, mediaType string, blob []byte) ([]filetable.File, error) {
	t.Helper()
	ctx := context.Background()
	spec := formatSpecs()["ModelPack"]
	spec.Config = "{}"
	spec.Layers = []converttest.Layer{{MediaType: mediaType, Data: string(blob)}}
	b := converttest.Make(spec)
	m, err := parsers.Parse(ctx, converttest.NewArtifact(b))
	if err != nil {
		return nil, err
	}
	p, err := m.Table.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	d, err := s.PutTable(p)
	if err != nil {
		t.Fatal(err)
	}
	f := storetest.NewFetcher(slices.Collect(maps.Values(b.Blobs))...)
	if err := s.Hydrate(ctx, d, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		return nil, err
	}
	return s.Views.Files(d)
}

// rawTar writes headers as they are, with the given contents.
func rawTar(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// patch writes text into the header of an archive's first entry, and mends its checksum.
// https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html
func patch(p []byte, at int, text string) []byte {
	p = bytes.Clone(p)
	copy(p[at:], text)
	copy(p[148:156], "        ")
	sum := 0
	for _, c := range p[:512] {
		sum += int(c)
	}
	copy(p[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return p
}

func file(name string, size int64) tar.Header {
	return tar.Header{Name: name, Mode: 0o644, Size: size, Typeflag: tar.TypeReg}
}

// hostileTars are archives that a model must not have.
func hostileTars(t *testing.T) map[string][]byte {
	one := rawTar(t, file("a", 10))
	link := func(typ byte, name, target string) []byte {
		return rawTar(t, file("a", 1), tar.Header{Name: name, Typeflag: typ, Linkname: target, Mode: 0o777})
	}
	pax := rawTar(t, tar.Header{Name: "a", Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"comment": "x"}})
	sparse := rawTar(t, tar.Header{Name: "a", Mode: 0o644, Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"COM.sparse.major": "9"}})
	return map[string][]byte{
		"hardlink to an absolute path":   link(tar.TypeLink, "l", "/etc/passwd"),
		"hardlink to a parent":           link(tar.TypeLink, "l", "../a"),
		"hardlink to a later entry":      rawTar(t, tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "a"}, file("a", 1)),
		"symlink to an absolute path":    link(tar.TypeSymlink, "l", "/etc/passwd"),
		"symlink to a parent":            link(tar.TypeSymlink, "d/l", "../../x"),
		"file through a symlink":         rawTar(t, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d"}, file("l/x", 1)),
		"character device":               rawTar(t, tar.Header{Name: "c", Typeflag: tar.TypeChar}),
		"block device":                   rawTar(t, tar.Header{Name: "c", Typeflag: tar.TypeBlock}),
		"fifo":                           rawTar(t, tar.Header{Name: "c", Typeflag: tar.TypeFifo}),
		"size beyond the end":            patch(one, 124, "77777777777\x00"),
		"size of 2^95-1 in base 256":     patch(one, 124, "\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		"negative size in base 256":      patch(one, 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00"),
		"negative size in octal":         patch(one, 124, "-0000000001\x00"),
		"sparse file of GNU":             patch(one, 156, "S"),
		"sparse file in PAX headers":     bytes.ReplaceAll(sparse, []byte("COM.sparse."), []byte("GNU.sparse.")),
		"PAX header of 1 GB":             patch(pax, 124, "07346545000\x00"),
		"file and directory":             rawTar(t, file("a", 1), tar.Header{Name: "a/", Typeflag: tar.TypeDir, Mode: 0o755}),
		"file and file below it":         rawTar(t, file("a", 1), file("a/b", 1)),
		"one name with two contents":     rawTar(t, file("a", 1), file("a", 2)),
		"gzip bytes":                     converttest.Compress(one, filetable.CodecGzip),
		"zstd bytes":                     converttest.Compress(one, filetable.CodecZstd),
		"weights":                        []byte("GGUF" + strings.Repeat("x", 2000)),
		"content that is cut":            one[:515],
		"checksum that is wrong":         append([]byte("b"), one[1:]...),
		"garbage in the place of a file": append(bytes.Clone(one[:1024]), bytes.Repeat([]byte("g"), 1024)...),
	}
}

// TestHostileTars gives every hostile archive plain, and compressed: the first is refused when the
// model is resolved, the others before a file of theirs can be seen.
func TestHostileTars(t *testing.T) {
	t.Parallel()
	const layer = "application/vnd.cncf.model.weight.v1.tar"
	for name, p := range hostileTars(t) {
		for suffix, codec := range map[string]filetable.Codec{"": filetable.CodecNone, "+gzip": filetable.CodecGzip, "+zstd": filetable.CodecZstd} {
			t.Run(name+"/tar"+suffix, func(t *testing.T) {
				t.Parallel()
				blob := p
				if codec != filetable.CodecNone {
					blob = converttest.Compress(p, codec)
				}
				// What is cut inside of a stream that is whole is an unexpected end.
				if got, err := bring(t, layer+suffix, blob); !errdefs.IsInvalidArgument(err) {
					t.Errorf("got %v, %v; want an invalid argument", got, err)
				}
			})
		}
	}
}

// TestOddTars has archives with one meaning, though it is not what most writers do.
func TestOddTars(t *testing.T) {
	t.Parallel()
	one := rawTar(t, file("a", 10))
	const a = "reg 644 10 "
	for name, tt := range map[string]struct {
		tar  []byte
		want map[string]string
	}{
		"setuid, sticky and world-writable modes": {rawTar(t, tar.Header{Name: "a", Mode: 0o7777, Size: 1, Typeflag: tar.TypeReg},
			tar.Header{Name: "d/", Mode: 0o1777, Typeflag: tar.TypeDir}), map[string]string{"a": "reg 777 1 ", "d": "dir 777 0 "}},
		"an owner of 2^32-1":  {rawTar(t, tar.Header{Name: "a", Mode: 0o644, Size: 10, Typeflag: tar.TypeReg, Uid: 1<<32 - 1, Gid: 1<<32 - 1}), map[string]string{"a": a}},
		"the same file twice": {rawTar(t, file("a", 10), file("a", 10)), map[string]string{"a": a}},
		"a directory after a file in it": {rawTar(t, file("d/a", 10), tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}),
			map[string]string{"d": "dir 755 0 ", "d/a": a}},
		"no blocks at the end":      {one[:1024], map[string]string{"a": a}},
		"garbage after the end":     {append(bytes.Clone(one), bytes.Repeat([]byte("garbage!"), 1000)...), map[string]string{"a": a}},
		"whiteouts are files":       {rawTar(t, file(".wh.a", 10), file("d/.wh..wh..opq", 10)), map[string]string{".wh.a": a, "d/.wh..wh..opq": a}},
		"a symlink to a neighbour":  {rawTar(t, file("a", 10), tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"}), map[string]string{"a": a, "l": "symlink 0 0 a"}},
		"a hardlink to a neighbour": {rawTar(t, file("a", 10), tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "a"}), map[string]string{"a": a, "l": a}},
	} {
		for suffix, codec := range map[string]filetable.Codec{"": filetable.CodecNone, "+gzip": filetable.CodecGzip, "+zstd": filetable.CodecZstd} {
			t.Run(name+"/tar"+suffix, func(t *testing.T) {
				t.Parallel()
				blob := tt.tar
				if codec != filetable.CodecNone {
					blob = converttest.Compress(blob, codec)
				}
				got, err := bring(t, "application/vnd.cncf.model.weight.v1.tar"+suffix, blob)
				if err != nil || !maps.Equal(got, tt.want) {
					t.Errorf("got %q, %v; want %q", got, err, tt.want)
				}
			})
		}
	}
}

// TestHostileStreams has compressed archives whose compression is the trouble.
func TestHostileStreams(t *testing.T) {
	const layer = "application/vnd.cncf.model.weight.v1.tar"
	one := rawTar(t, file("a", 10))
	gz := func(p []byte) []byte { return converttest.Compress(p, filetable.CodecGzip) }
	// A frame with a window of 2 GiB, and a raw block of one byte, its last.
	// https://www.rfc-editor.org/rfc/rfc8878
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 9, 0, 0, 'x'}
	for name, tt := range map[string]struct {
		suffix string
		blob   []byte
	}{
		"plain tar that says gzip":      {"+gzip", one},
		"plain tar that says zstd":      {"+zstd", one},
		"zstd that says gzip":           {"+gzip", converttest.Compress(one, filetable.CodecZstd)},
		"gzip that says zstd":           {"+zstd", gz(one)},
		"gzip that is cut":              {"+gzip", gz(one)[:20]},
		"gzip with a wrong checksum":    {"+gzip", append(bytes.Clone(gz(one)[:len(gz(one))-8]), 1, 2, 3, 4, 0, 8, 0, 0)},
		"zstd with a window of 2 GiB":   {"+zstd", window},
		"GGUF that says gzip":           {"+gzip", []byte("GGUF" + strings.Repeat("x", 2000))},
		"gzip of several, the last cut": {"+gzip", append(gz(one[:512]), gz(one[512:])[:15]...)},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got, err := bring(t, layer+tt.suffix, tt.blob)
			runtime.ReadMemStats(&after)
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsDataLoss(err) {
				t.Errorf("got %v, %v; want an invalid argument", got, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 256<<20 {
				t.Errorf("%d bytes of memory for %d", n, len(tt.blob))
			}
		})
	}
	got, err := bring(t, layer+"+gzip", append(gz(one[:512]), gz(one[512:])...))
	if want := map[string]string{"a": "reg 644 10 "}; err != nil || !maps.Equal(got, want) {
		t.Errorf("gzip of several members: got %q, %v; want %q", got, err, want)
	}
}
