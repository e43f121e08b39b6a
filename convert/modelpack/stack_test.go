package modelpack_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

const ociTarType = "application/vnd.oci.image.layer.v1.tar"

// changesets returns early CNAI with a layer for each list of files; codecs has "" or "+gzip" for
// each.
func changesets(codecs []string, layers ...[]converttest.File) *converttest.Built {
	return changesetsOf(ociTarType, codecs, layers...)
}

func changesetsOf(mediaType string, codecs []string, layers ...[]converttest.File) *converttest.Built {
	s := converttest.Spec{ArtifactType: cnaiType, ConfigType: "application/vnd.oci.empty.v1+json", Config: "{}"}
	for i, files := range layers {
		p := converttest.Tar(files...)
		if codecs[i] != "" {
			p = converttest.Compress(p, filetable.CodecGzip)
		}
		s.Layers = append(s.Layers, converttest.Layer{MediaType: mediaType + codecs[i], ArtifactType: "application/vnd.cnai.model.layer.v1.tar" + codecs[i], Data: string(p)})
	}
	return converttest.Make(s)
}

// TestEarlyLayersAreChangesets has layers that change those below, plain and compressed.
func TestEarlyLayersAreChangesets(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		layers [][]converttest.File
		want   map[string]string
	}{
		{"a later layer wins", [][]converttest.File{{file("config.json", "old"), file("a", "a")}, {file("config.json", "newer")}}, map[string]string{"config.json": "newer", "a": "a"}},
		{"a later layer of the same size wins", [][]converttest.File{{file("a", "1")}, {file("a", "2")}}, map[string]string{"a": "2"}},
		{"a whiteout takes a file away", [][]converttest.File{{file("a.bin", "a"), file("b.bin", "b")}, {file(".wh.a.bin", "")}}, map[string]string{"b.bin": "b"}},
		{"an opaque whiteout takes a directory's files away", [][]converttest.File{{file("d/a", "a"), file("b", "b")}, {file("d/.wh..wh..opq", ""), file("d/c", "c")}}, map[string]string{"d/c": "c", "b": "b"}},
		{"the first layer again, above", [][]converttest.File{{file("a", "1")}, {file("a", "2")}, {file("a", "1")}}, map[string]string{"a": "1"}},
		{"a whiteout alone in one layer", [][]converttest.File{{file("a", "1"), file(".wh.a", "")}}, map[string]string{"a": "1"}},
	} {
		for mask := range 1 << len(tt.layers) {
			codecs := make([]string, len(tt.layers))
			for i := range codecs {
				if mask>>i&1 != 0 {
					codecs[i] = "+gzip"
				}
			}
			t.Run(fmt.Sprintf("%s %q", tt.name, codecs), func(t *testing.T) {
				t.Parallel()
				b := changesets(codecs, tt.layers...)
				m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
				if err != nil {
					t.Fatal(err)
				}
				if err := m.Table.Validate(); err != nil {
					t.Fatal(err)
				}
				got, err := converttest.Texts(m, b.Blobs)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("files (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestEarlyLayersWithoutChangesAreNotStacked keeps the table that older versions can read.
func TestEarlyLayersWithoutChangesAreNotStacked(t *testing.T) {
	t.Parallel()
	m, err := parsers.Parse(context.Background(), converttest.NewArtifact(changesets([]string{"", ""}, []converttest.File{file("a", "1")}, []converttest.File{file("b", "2")})))
	if err != nil || m.Table.Stacked || m.Table.Version != 1 {
		t.Errorf("got %+v, %v", m, err)
	}
}

// TestEarlyLayerTypes has layers with a type that only the early generation has, as their media type.
func TestEarlyLayerTypes(t *testing.T) {
	t.Parallel()
	for _, codecs := range [][]string{{"", ""}, {"+gzip", ""}} {
		b := changesetsOf("application/vnd.cnai.model.layer.v1.tar", codecs, []converttest.File{file("gone", "1"), file("a", "old")}, []converttest.File{file(".wh.gone", ""), file("a", "new")})
		m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
		if err != nil {
			t.Fatal(err)
		}
		got, err := converttest.Texts(m, b.Blobs)
		if diff := cmp.Diff(map[string]string{"a": "new"}, got); err != nil || diff != "" {
			t.Errorf("%q: %v, files (-want +got):\n%s", codecs, err, diff)
		}
	}
}

// Only early CNAI is stacked.
func TestLaterLayersAreNotChangesets(t *testing.T) {
	t.Parallel()
	_, err := parse("{}", converttest.Layer{MediaType: tarType, Data: tarOf(file("a", "1"))}, converttest.Layer{MediaType: tarType, Data: tarOf(file("a", "22"))})
	if !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
	m, err := parse("{}", converttest.Layer{MediaType: tarType, Data: tarOf(file("a", "1"), file(".wh.a", ""))})
	if err != nil || cmp.Diff([]string{".wh.a", "a"}, paths(m)) != "" {
		t.Errorf("got %v, %v", m, err)
	}
}

// TestEarlyMediaTypeAndArtifactTypeAreConsistent has the requirements of the specification for each
// layer.
func TestEarlyMediaTypeAndArtifactTypeAreConsistent(t *testing.T) {
	t.Parallel()
	const artifact = "application/vnd.cnai.model.layer.v1.tar"
	docker := "application/vnd.docker.image.rootfs.diff.tar"
	for _, tt := range []struct {
		mediaType, artifactType string
		want                    error
	}{
		{ociTarType, artifact, nil},
		{ociTarType, "", nil}, // a type dropped by a registry is ignored
		{docker, artifact, nil},
		{ociTarType + "+gzip", artifact + "+gzip", nil},
		{ociTarType + "+zstd", artifact + "+zstd", nil},
		{ociTarType, artifact + "+gzip", errdefs.ErrInvalidArgument},
		{ociTarType + "+gzip", artifact, errdefs.ErrInvalidArgument},
		{ociTarType + "+gzip", artifact + "+zstd", errdefs.ErrInvalidArgument},
		{docker + ".gzip", artifact, errdefs.ErrInvalidArgument},
		{ociTarType, "application/vnd.cnai.model.layer.v2.tar", errdefs.ErrNotImplemented},
	} {
		p := converttest.Tar(file("a", "1"))
		switch {
		case strings.HasSuffix(tt.mediaType, "gzip"):
			p = converttest.Compress(p, filetable.CodecGzip)
		case strings.HasSuffix(tt.mediaType, "zstd"):
			p = converttest.Compress(p, filetable.CodecZstd)
		}
		b := converttest.Make(converttest.Spec{ArtifactType: cnaiType, ConfigType: "application/vnd.oci.empty.v1+json", Config: "{}",
			Layers: []converttest.Layer{{MediaType: tt.mediaType, ArtifactType: tt.artifactType, Data: string(p), Annotations: map[string]string{"org.cnai.model.layer.model.weight": "true"}}}})
		var m *convert.Model
		m, err := parsers.Parse(context.Background(), converttest.NewArtifact(b))
		if tt.want == nil && (err != nil || len(m.Layers) != 1) || tt.want != nil && (!errors.Is(err, tt.want) || !strings.Contains(err.Error(), "layer 0")) {
			t.Errorf("%s as %s: got %v, want %v", tt.mediaType, tt.artifactType, err, tt.want)
		}
	}
}
