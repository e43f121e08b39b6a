package titled_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/titled"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

const (
	unknown  = "application/vnd.unknown.artifact.v1"
	ociLayer = "application/vnd.oci.image.layer.v1.tar"
	empty    = "application/vnd.oci.empty.v1+json"
	ociImage = "application/vnd.oci.image.config.v1+json"
)

// parse parses an artifact.
func parse(b *converttest.Built) (*convert.Model, error) {
	m, err := convert.ParseManifest(b.Manifest)
	if err != nil {
		return nil, err
	}
	return titled.Format.Parse(context.Background(), format.Settings{}, converttest.NewArtifact(b), m)
}

func layer(mediaType, title, data string) converttest.Layer {
	return converttest.Layer{MediaType: mediaType, Data: data, Annotations: map[string]string{"org.opencontainers.image.title": title}}
}

// directory returns a layer as made by oras from a directory.
func directory(name string, files ...converttest.File) converttest.Layer {
	p := converttest.Tar(files...)
	l := layer(ociLayer+"+gzip", name, string(converttest.Compress(p, filetable.CodecGzip)))
	l.Annotations["io.deis.oras.content.unpack"] = "true"
	l.Annotations["io.deis.oras.content.digest"] = digest.FromBytes(p).String()
	return l
}

func file(p, data string) converttest.File {
	return converttest.File{Path: p, Data: []byte(data), Mode: 0o644}
}

func artifact(layers ...converttest.Layer) converttest.Spec {
	return converttest.Spec{ArtifactType: unknown, ConfigType: empty, Config: "{}", Layers: layers}
}

func TestTitledLayersAreFiles(t *testing.T) {
	t.Parallel()
	custom := artifact(layer("text/plain", "a.txt", "a"))
	custom.ConfigType, custom.Config, custom.ArtifactType = "application/vnd.example.config.v1+json", `{"x":1}`, ""
	old := artifact(layer(ociLayer, "a.txt", "a"))
	old.ConfigType, old.ArtifactType = "application/vnd.unknown.config.v1+json", ""
	for _, tt := range []struct {
		name string
		spec converttest.Spec
		want map[string]string
	}{
		{"files, as oras pushes them", artifact(layer(ociLayer, "model.gguf", "w"), layer(ociLayer, "sub/config.json", "{}")), map[string]string{"model.gguf": "w", "sub/config.json": "{}"}},
		{"files of other types, one of them twice", artifact(layer("text/plain", "a", "x"), layer("application/octet-stream", "b", "x")), map[string]string{"a": "x", "b": "x"}},
		{"a directory is unpacked", artifact(directory("dir", file("dir/a", "1"), file("dir/sub/b", "2")), layer(ociLayer, "c", "3")), map[string]string{"dir/a": "1", "dir/sub/b": "2", "c": "3"}},
		{"a config of a type of its own", custom, map[string]string{"a.txt": "a"}},
		{"as older oras pushed", old, map[string]string{"a.txt": "a"}},
		{"an empty file", artifact(layer(ociLayer, "a", "x"), layer(ociLayer, "empty", "")), map[string]string{"a": "x", "empty": ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := converttest.Make(tt.spec)
			m, err := parse(b)
			if err != nil {
				t.Fatal(err)
			}
			got, err := converttest.Texts(m, b.Blobs)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if m.Table.Origin.Format != "artifact" || m.Table.Origin.Digest != b.Digest() {
				t.Errorf("origin %+v", m.Table.Origin)
			}
		})
	}
}

// TestOtherManifestsAreNotTitled has images and artifacts that are never mounted by titles.
func TestOtherManifestsAreNotTitled(t *testing.T) {
	t.Parallel()
	with := func(change func(s *converttest.Spec)) converttest.Spec {
		s := artifact(layer(ociLayer, "a", "x"))
		change(&s)
		return s
	}
	untitled := layer(ociLayer, "", "x")
	for name, s := range map[string]converttest.Spec{
		"an image with titles":                         with(func(s *converttest.Spec) { s.ConfigType = ociImage }),
		"an image with titles and no artifactType":     with(func(s *converttest.Spec) { s.ConfigType, s.ArtifactType = ociImage, "" }),
		"an image with the type in capitals":           with(func(s *converttest.Spec) { s.ConfigType = strings.ToUpper(ociImage) + "; x=y" }),
		"a Docker image with titles":                   with(func(s *converttest.Spec) { s.ConfigType = mediatype.DockerConfig }),
		"a Docker manifest":                            with(func(s *converttest.Spec) { s.MediaType = mediatype.DockerManifest }),
		"image layers, and nothing says it is another": with(func(s *converttest.Spec) { s.ArtifactType = "" }),
		"a config only":                                with(func(s *converttest.Spec) { s.Layers = nil }),
		"no config":                                    with(func(s *converttest.Spec) { s.ConfigType = "" }),
		"one layer without a title":                    with(func(s *converttest.Spec) { s.Layers = append(s.Layers, untitled) }),
		"the empty layer of an artifact without files": with(func(s *converttest.Spec) { s.Layers = []converttest.Layer{{MediaType: empty, Data: "{}"}} }),
	} {
		b := converttest.Make(s)
		if name == "no config" {
			b.Manifest = bytes.Replace(b.Manifest, []byte(`"config":{"mediaType":"","digest":"","size":0}`), []byte(`"config":{"digest":""}`), 1)
		}
		if _, err := parse(b); !errors.Is(err, convert.ErrNotModel) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	b := converttest.Make(artifact(layer(ociLayer, "a", "x")))
	if _, err := (formats.All()).Parse(context.Background(), converttest.NewArtifact(b)); !errors.Is(err, convert.ErrNotModel) {
		t.Errorf("nobody wants files: got %v", err)
	}
}

func TestHostileTitles(t *testing.T) {
	t.Parallel()
	for _, title := range []string{"../x", "/etc/passwd", "a/../../x", ".", "..", "a\x00b", "a\nb", `..\..\x`, strings.Repeat("a", 256)} {
		layers := []converttest.Layer{layer(ociLayer, title, "y")}
		if !strings.Contains(title, "\x00") { // which is not valid in a tar
			layers = append(layers, directory("dir", file(title, "y")))
		}
		for _, l := range layers {
			b := converttest.Make(artifact(layer(ociLayer, "good", "x"), l))
			m, err := parse(b)
			if err == nil { // an archive is read when it is unpacked
				_, err = converttest.Extract(m, b.Blobs)
			}
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%q: got %v", title, err)
			}
		}
	}
	wrong := directory("dir", file("dir/a", "1"))
	wrong.Annotations["io.deis.oras.content.digest"] = "sha256:x"
	two := []converttest.Layer{layer(ociLayer, "a", "1"), layer(ociLayer, "a", "2")}
	for name, layers := range map[string][]converttest.Layer{"a digest that is none": {wrong}, "one title twice": two, "a file and a directory": {two[0], layer(ociLayer, "a/b", "2")}} {
		b := converttest.Make(artifact(layers...))
		if _, err := parse(b); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), "layer") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzTitled parses artifacts of two layers: every accepted one has a valid table.
func FuzzTitled(f *testing.F) {
	f.Add("a", "b/c", ociLayer, empty, true)
	f.Add("../a", "/etc/passwd", "text/plain", ociImage, false)
	f.Fuzz(func(t *testing.T, one, two, layerType, configType string, unpack bool) {
		s := artifact(layer(layerType, one, "x"), layer(layerType, two, "y"))
		s.ConfigType = configType
		if unpack {
			s.Layers[1].Annotations["io.deis.oras.content.unpack"] = "true"
		}
		b := converttest.Make(s)
		m, err := parse(b)
		if err != nil {
			return
		}
		if mediatype.IsImageConfig(configType) {
			t.Fatal("an image was taken for files")
		}
		if _, err := m.Table.Encode(); err != nil {
			t.Fatal(err)
		}
	})
}
