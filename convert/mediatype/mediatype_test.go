package mediatype_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

const (
	none = filetable.ArchiveNone
	tar  = filetable.ArchiveTar
	gz   = filetable.CodecGzip
	zst  = filetable.CodecZstd
)

// layer is a Type of a layer.
func layer(base string, f mediatype.Format, k mediatype.Kind, p mediatype.Part, a filetable.Archive, c filetable.Codec) mediatype.Type {
	return mediatype.Type{Base: base, Format: f, Layer: true, Kind: k, Part: p, Archive: a, Codec: c}
}

func TestParse(t *testing.T) {
	t.Parallel()
	var want []mediatype.Type
	for dialect, f := range map[string]mediatype.Format{"cncf": "modelpack", "cnai": "cnai"} {
		p := "application/vnd." + dialect + ".model."
		for _, k := range []mediatype.Kind{"weight", "weight.config", "doc", "code", "dataset"} {
			want = append(want,
				layer(p+string(k)+".v1.raw", f, k, "", none, ""),
				layer(p+string(k)+".v1.tar", f, k, "", tar, ""),
				layer(p+string(k)+".v1.tar+gzip", f, k, "", tar, gz),
				layer(p+string(k)+".v1.tar+zstd", f, k, "", tar, zst))
		}
		want = append(want,
			layer(p+"weight.v1", f, "weight", "", none, ""),
			layer(p+"weight.v1.gguf", f, "weight", "", none, ""),
			layer(p+"weight.v1.safetensors", f, "weight", "", none, ""),
			mediatype.Type{Base: p + "manifest.v1+json", Format: f},
			mediatype.Type{Base: p + "config.v1+json", Format: f})
	}
	cnai, docker, ollama := "application/vnd.cnai.model.", "application/vnd.docker.ai.", "application/vnd.ollama.image."
	want = append(want,
		layer(cnai+"layer.v1.tar", "cnai", "", "", tar, ""),
		layer(cnai+"layer.v1.tar+gzip", "cnai", "", "", tar, gz),
		layer(cnai+"config.v1.tar", "cnai", "weight.config", "", tar, ""),

		mediatype.Type{Base: docker + "model.config.v0.1+json", Format: "docker-ai"},
		mediatype.Type{Base: docker + "model.config.v0.2+json", Format: "docker-ai"},
		mediatype.Type{Base: docker + "model.config.v1+json", Format: "docker-ai"},
		layer(docker+"gguf.v3", "docker-ai", "weight", "gguf", none, ""),
		layer(docker+"model.file.v1+gguf", "docker-ai", "weight", "gguf", none, ""),
		layer(docker+"gguf.v3.lora", "docker-ai", "weight", "adapter", none, ""),
		layer(docker+"gguf.v3.mmproj", "docker-ai", "weight", "projector", none, ""),
		layer(docker+"mmproj", "docker-ai", "weight", "projector", none, ""),
		layer(docker+"safetensors", "docker-ai", "weight", "safetensors", none, ""),
		layer(docker+"vllm.config.tar", "docker-ai", "weight.config", "dir", tar, ""),
		layer(docker+"dir.tar", "docker-ai", "weight", "dir", tar, ""),
		layer(docker+"dduf", "docker-ai", "weight", "dduf", none, ""),
		layer(docker+"license", "docker-ai", "doc", "license", none, ""),
		layer(docker+"chat.template.jinja", "docker-ai", "weight.config", "template", none, ""),
		layer(docker+"model.file", "docker-ai", "", "file", none, ""),

		mediatype.Type{Base: "application/vnd.ollama.manifest.list.v2+json", Format: "ollama-list"},
		layer(ollama+"model", "ollama", "weight", "model", none, ""),
		layer(ollama+"projector", "ollama", "weight", "projector", none, ""),
		layer(ollama+"adapter", "ollama", "weight", "adapter", none, ""),
		layer(ollama+"draft", "ollama", "weight", "draft", none, ""),
		layer(ollama+"template", "ollama", "weight.config", "template", none, ""),
		layer(ollama+"prompt", "ollama", "weight.config", "template", none, ""),
		layer(ollama+"system", "ollama", "weight.config", "system", none, ""),
		layer(ollama+"params", "ollama", "weight.config", "params", none, ""),
		layer(ollama+"messages", "ollama", "weight.config", "messages", none, ""),
		layer(ollama+"license", "ollama", "doc", "license", none, ""),
		layer(ollama+"embed", "ollama", "", "embed", none, ""),
		layer(ollama+"tensor", "ollama", "weight", "tensor", none, ""),
		layer(ollama+"json", "ollama", "weight.config", "json", none, ""),
		layer(ollama+"config", "ollama", "weight.config", "config", none, ""),
		layer(ollama+"tokenizer", "ollama", "weight.config", "tokenizer", none, ""),
		layer(ollama+"tokenizer.config", "ollama", "weight.config", "tokenizer.config", none, ""),

		mediatype.Type{Base: "application/vnd.oci.image.manifest.v1+json", Format: "image"},
		mediatype.Type{Base: "application/vnd.oci.image.index.v1+json", Format: "index"},
		mediatype.Type{Base: "application/vnd.oci.image.config.v1+json", Format: "image"},
		layer("application/vnd.oci.image.layer.v1.tar", "image", "", "", tar, ""),
		layer("application/vnd.oci.image.layer.v1.tar+gzip", "image", "", "", tar, gz),
		layer("application/vnd.oci.image.layer.v1.tar+zstd", "image", "", "", tar, zst),
		layer("application/vnd.docker.image.rootfs.diff.tar.gzip", "image", "", "", tar, gz),
		mediatype.Type{Base: "application/vnd.docker.distribution.manifest.v2+json", Format: "image"},
		mediatype.Type{Base: "application/vnd.docker.distribution.manifest.list.v2+json", Format: "index"},
		mediatype.Type{Base: "application/vnd.docker.container.image.v1+json", Format: "image"},
		layer("application/vnd.oci.image.layer.ballast.blob.v1", "image", "", "", none, ""),
		layer("application/vnd.oci.image.layer.ballast.table.v1+json", "image", "", "", none, ""),
	)
	for _, w := range want {
		t.Run(w.Base, func(t *testing.T) {
			for _, s := range []string{w.Base, strings.ToUpper(w.Base), " " + w.Base + " ; charset=utf-8"} {
				got, err := mediatype.Parse(s)
				if err != nil {
					t.Fatalf("Parse(%q): %v", s, err)
				}
				if diff := cmp.Diff(w, got); diff != "" {
					t.Errorf("Parse(%q) (-want +got):\n%s", s, diff)
				}
			}
		})
	}
}

func TestParseNonstandardParameters(t *testing.T) {
	t.Parallel()
	for _, params := range []string{
		"; name=input; dtype=F32; shape=1,2,3", "; shape=[1e9,1e9", `; name="../../x"`, "; name*=utf-8''..%2f", "; [name=x]",
		";", ";;;", "; name=" + strings.Repeat("x", 1<<20), "\t;\x00",
	} {
		got, err := mediatype.Parse("application/vnd.ollama.image.tensor" + params)
		if err != nil || got.Part != mediatype.PartTensor {
			t.Errorf("with %.40q: got %v, %v", params, got, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, mediaType string
		want            error
		text            string
	}{
		{"empty", "", errdefs.ErrInvalidArgument, "no type"},
		{"no slash", "weights", errdefs.ErrInvalidArgument, "no type"},
		{"no subtype", "application/", errdefs.ErrInvalidArgument, "no type"},
		{"a megabyte", "application/" + strings.Repeat("x", 1<<20), errdefs.ErrInvalidArgument, "bytes"},
		{"unknown", "application/zip", errdefs.ErrNotImplemented, `unknown media type "application/zip"`},
		{"ModelPack version 2", "application/vnd.cncf.model.weight.v2.raw", errdefs.ErrNotImplemented, "unknown version v2"},
		{"ModelPack config version 2", "application/vnd.cncf.model.config.v2+json", errdefs.ErrNotImplemented, "unknown version v2"},
		{"CNAI version 10", "application/vnd.cnai.model.doc.v10.tar", errdefs.ErrNotImplemented, "unknown version v10"},
		{"ModelPack unknown kind", "application/vnd.cncf.model.music.v1.raw", errdefs.ErrNotImplemented, "unknown modelpack media type"},
		{"ModelPack has no layer kind", "application/vnd.cncf.model.layer.v1.tar", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"unknown packing", "application/vnd.cncf.model.weight.v1.tar+brotli", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"a suffix that starts like a packing", "application/vnd.cncf.model.weight.v1.tarball", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"doc without packing", "application/vnd.cncf.model.doc.v1", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"gguf as doc", "application/vnd.cncf.model.doc.v1.gguf", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"no version", "application/vnd.cncf.model.weight", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"only the prefix", "application/vnd.cncf.model.", errdefs.ErrNotImplemented, "unknown modelpack"},
		{"Docker AI unknown", "application/vnd.docker.ai.gguf.v4", errdefs.ErrNotImplemented, "unknown docker-ai"},
		{"Ollama unknown", "application/vnd.ollama.image.hologram", errdefs.ErrNotImplemented, "unknown ollama"},
		{"Cog", "application/vnd.cog.weight.v2", errdefs.ErrNotImplemented, "unknown cog"},
		{"KitOps layer", "application/vnd.kitops.modelkit.model.v1.raw+gzip", errdefs.ErrNotImplemented, "unknown kitops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := mediatype.Parse(tt.mediaType)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, %v; want %v with %q", got, err, tt.want, tt.text)
			}
		})
	}
}

func TestLayerInvertsParse(t *testing.T) {
	t.Parallel()
	for _, f := range []mediatype.Format{mediatype.FormatModelPack, mediatype.FormatCNAI} {
		for _, k := range []mediatype.Kind{"weight", "weight.config", "doc", "code", "dataset"} {
			for _, p := range []struct {
				a filetable.Archive
				c filetable.Codec
			}{{none, ""}, {tar, ""}, {tar, gz}, {tar, zst}} {
				s := mediatype.Layer(f, k, p.a, p.c)
				got, err := mediatype.Parse(s)
				if want := layer(s, f, k, "", p.a, p.c); err != nil || got != want {
					t.Errorf("got %v, %v; want %v", got, err, want)
				}
			}
		}
	}
}

func TestFilepathAndMetadata(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		annotations    map[string]string
		path, metadata string
	}{
		{nil, "", ""},
		{map[string]string{"org.cncf.model.filepath": "a", "org.cncf.model.file.metadata+json": "1"}, "a", "1"},
		{map[string]string{"org.cnai.model.filepath": "b", "org.cnai.model.file.metadata+json": "2"}, "b", "2"},
		{map[string]string{"org.cnai.model.filepath": "c", "org.cnai.model.file.metadata": "3"}, "c", "3"},
		{map[string]string{"org.opencontainers.image.title": "d"}, "d", ""},
		{map[string]string{"org.cncf.model.filepath": "a", "org.cnai.model.filepath": "b", "org.opencontainers.image.title": "d"}, "a", ""},
	} {
		t.Run(fmt.Sprint(tt.annotations), func(t *testing.T) {
			if got := mediatype.Filepath(tt.annotations); got != tt.path {
				t.Errorf("path: got %q, want %q", got, tt.path)
			}
			if got := mediatype.Metadata(tt.annotations); got != tt.metadata {
				t.Errorf("metadata: got %q, want %q", got, tt.metadata)
			}
		})
	}
}

func FuzzMediaType(f *testing.F) {
	for _, s := range []string{
		"application/vnd.cncf.model.weight.v1.tar+gzip", "application/vnd.cnai.model.layer.v1.tar", "application/vnd.cnai.model.weight.v1",
		"application/vnd.ollama.image.tensor; name=\"../../x\"; shape=[1e9", "APPLICATION/VND.DOCKER.AI.GGUF.V3", "a/b", "", ";", "application/vnd.cncf.model..v1.",
		"application/vnd.ollama.image.tensor; name*=utf-8''..%2f..%2fx; shape=1", "application/vnd.ollama.image.tensor; name=x; shape=[1e9,1e9]",
		"application/vnd.ollama.image.", "application/vnd.ollama.image.model/../x", "application/vnd.cncf.model.weight.v1.tar+gzip+gzip", "application/vnd.docker.ai.\x00",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := mediatype.Parse(s)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalidArgument) && !errors.Is(err, errdefs.ErrNotImplemented) {
				t.Fatalf("error without a category: %v", err)
			}
			if len(err.Error()) > 4*255+200 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if got.Format == "" {
			t.Fatalf("got %v", got)
		}
		again, err := mediatype.Parse(got.Base)
		if err != nil || again != got {
			t.Fatalf("Parse(%q) = %v, %v; want %v", got.Base, again, err, got)
		}
		f := mediatype.FormatOf(s)
		if model := got.Format != mediatype.FormatImage && got.Format != mediatype.FormatIndex; model && f != got.Format || !model && f != "" {
			t.Fatalf("FormatOf(%q) = %q, Parse says %q", s, f, got.Format)
		}
	})
}

// TestOwnLayers checks that all types in the list are model layers and none is an image layer.
func TestOwnLayers(t *testing.T) {
	t.Parallel()
	l := mediatype.OwnLayers()
	for _, s := range l {
		got, err := mediatype.Parse(s)
		if err != nil || !got.Layer || got.Format == mediatype.FormatImage {
			t.Errorf("%s: got %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"application/vnd.cncf.model.weight.v1.raw", "application/vnd.cnai.model.doc.v1.tar+zstd", "application/vnd.kitops.modelkit.model.v1.tar"} {
		if !slices.Contains(l, s) {
			t.Errorf("%s is missing", s)
		}
	}
}
