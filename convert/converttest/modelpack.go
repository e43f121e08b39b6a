package converttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// mtime is the modification time of all files.
var mtime = time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC)

// ModelPackRaw makes a ModelPack artifact with a raw layer for each file.
func ModelPackRaw(files []File) *Built {
	return modelPack("modelpack-raw", files, filetable.ArchiveNone, filetable.CodecNone)
}

// ModelPackTar makes a ModelPack artifact with a tar layer for each file.
func ModelPackTar(files []File) *Built {
	return modelPack("modelpack-tar", files, filetable.ArchiveTar, filetable.CodecNone)
}

// ModelPackTarGzip makes a ModelPack artifact with a tar+gzip layer for each file.
func ModelPackTarGzip(files []File) *Built {
	return modelPack("modelpack-tar-gzip", files, filetable.ArchiveTar, filetable.CodecGzip)
}

// ModelPackTarZstd makes a ModelPack artifact with a tar+zstd layer for each file.
func ModelPackTarZstd(files []File) *Built {
	return modelPack("modelpack-tar-zstd", files, filetable.ArchiveTar, filetable.CodecZstd)
}

// ModelPackPacked makes a ModelPack artifact with a tar+zstd layer for each file, which pack compresses.
func ModelPackPacked(files []File, pack func([]byte) []byte) *Built {
	return modelPackOf("modelpack-packed", files, filetable.ArchiveTar, filetable.CodecZstd, pack)
}

func modelPack(name string, files []File, a filetable.Archive, c filetable.Codec) *Built {
	return modelPackOf(name, files, a, c, func(p []byte) []byte { return Compress(p, c) })
}

func modelPackOf(name string, files []File, a filetable.Archive, c filetable.Codec, pack func([]byte) []byte) *Built {
	b := newBuilder(name, mediatype.FormatModelPack, mediatype.OCIManifest)
	b.manifest.ArtifactType = mediatype.ModelPackManifest
	var diffIDs []digest.Digest
	for _, f := range files {
		p := f.Data
		if a == filetable.ArchiveTar {
			p = Tar(f)
		}
		diffIDs = append(diffIDs, digest.FromBytes(p))
		b.layer(mediatype.Layer(mediatype.FormatModelPack, convert.KindByPath(f.Path), a, c), pack(p), map[string]string{
			mediatype.AnnotationFilepath: f.Path,
			mediatype.AnnotationMetadata: metadata(f),
		})
		b.expect(f)
	}
	b.config(mediatype.ModelPackConfig, mustJSON(map[string]any{
		"descriptor": map[string]any{"name": "a-model", "family": "llama", "createdAt": "2025-01-01T00:00:00Z"},
		"config":     map[string]any{"architecture": "transformer", "format": "gguf", "paramSize": "8b"},
		"modelfs":    map[string]any{"type": "layers", "diffIds": diffIDs},
	}))
	return b.done()
}

// metadata is the value of the metadata annotation.
func metadata(f File) string {
	return string(mustJSON(map[string]any{
		"name": path.Base(f.Path), "mode": f.Mode, "uid": 1000, "gid": 1000,
		"size": len(f.Data), "mtime": mtime, "typeflag": 0,
	}))
}

// CNAI makes an artifact of later CNAI with a tar layer for each file, the type and the
// annotation keys being those before ModelPack, and a config that lists no diffIDs.
func CNAI(files []File) *Built { return cnai("cnai", files, false) }

// CNAIWeightAlias makes an artifact of later CNAI whose weights are raw, in the type without a
// suffix that drafts of the specification had.
func CNAIWeightAlias(files []File) *Built { return cnai("cnai-weight-alias", files, true) }

func cnai(name string, files []File, rawWeights bool) *Built {
	b := newBuilder(name, mediatype.FormatCNAI, mediatype.OCIManifest)
	b.manifest.ArtifactType = mediatype.CNAIManifest
	for _, f := range files {
		kind := convert.KindByPath(f.Path)
		if rawWeights && kind == mediatype.KindWeight {
			b.layer(mediatype.CNAIWeight, f.Data, map[string]string{
				mediatype.CNAIFilepath: f.Path, mediatype.CNAIMetadata: metadata(f),
			})
		} else {
			tarType := mediatype.Layer(mediatype.FormatCNAI, kind, filetable.ArchiveTar, filetable.CodecNone)
			b.layer(tarType, Tar(f), map[string]string{mediatype.CNAIFilepath: f.Path})
		}
		b.expect(f)
	}
	b.config(mediatype.CNAIConfig, cnaiConfig)
	return b.done()
}

// cnaiConfig has the spellings of the first releases.
var cnaiConfig = []byte(`{"descriptor":{"name":"a-model","createTime":"2025-01-01T00:00:00Z"},` +
	`"config":{"architecture":"transformer","format":"gguf","parameterSize":8000000000,"puantization":"gptq"},` +
	`"modelfs":{"type":"layers","diff_ids":null}}`)

// cnaiManifestType makes an artifact of the CNAI of January 2025, where the manifest itself
// had the type of the artifact.
func cnaiManifestType(files []File) *Built {
	b := newBuilder("cnai-manifest-type", mediatype.FormatCNAIEarly, mediatype.CNAIManifest)
	for _, f := range files {
		b.layer(mediatype.CNAIEarlyLayer, Tar(baseName(f)), map[string]string{mediatype.CNAIFilepath: f.Path})
		b.expect(f)
	}
	b.config(mediatype.CNAIConfig, cnaiConfig)
	return b.done()
}

// EarlyConfig is the form of the config of an early CNAI artifact.
type EarlyConfig string

// The configs seen.
const (
	EarlyConfigFull    EarlyConfig = "full"    // an image config with diffIDs
	EarlyConfigCreated EarlyConfig = "created" // {"Created":…} only
	EarlyConfigEmpty   EarlyConfig = "empty"   // {} with the empty type
)

// CNAIEarly makes an artifact of early CNAI: image layers with an artifactType, a tar for each
// file in which it has only its base name.
func CNAIEarly(files []File, c EarlyConfig) *Built {
	return cnaiEarly("cnai-early-"+string(c), files, c, filetable.CodecNone)
}

// CNAIEarlyGzip is CNAIEarly with compressed layers and a full config.
func CNAIEarlyGzip(files []File) *Built {
	return cnaiEarly("cnai-early-gzip", files, EarlyConfigFull, filetable.CodecGzip)
}

func cnaiEarly(name string, files []File, c EarlyConfig, codec filetable.Codec) *Built {
	b := newBuilder(name, mediatype.FormatCNAIEarly, mediatype.OCIManifest)
	b.manifest.ArtifactType = mediatype.CNAIManifest
	b.manifest.Annotations = map[string]string{
		mediatype.EarlyName: "a-model", mediatype.EarlyFamily: "llama", mediatype.EarlyParamSize: "8b",
	}
	layerType, artifactType := mediatype.OCILayer, mediatype.CNAIEarlyLayer
	if codec == filetable.CodecGzip {
		layerType, artifactType = mediatype.OCILayerGzip, mediatype.CNAIEarlyLayerGzip
	}
	var diffIDs []digest.Digest
	for _, f := range files {
		p := Tar(baseName(f))
		diffIDs = append(diffIDs, digest.FromBytes(p))
		desc := b.layer(layerType, Compress(p, codec), map[string]string{mediatype.CNAIFilepath: f.Path})
		desc.ArtifactType = artifactType
		b.expect(f)
	}
	switch c {
	case EarlyConfigFull:
		b.config(mediatype.OCIConfig, mustJSON(map[string]any{
			"created": "2024-12-01T00:00:00Z", "architecture": "amd64", "os": "linux",
			"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
		}))
	case EarlyConfigCreated:
		b.config(mediatype.OCIConfig, []byte(`{"Created":"2024-12-01T00:00:00.123456789Z"}`))
	case EarlyConfigEmpty:
		b.config(mediatype.OCIEmpty, []byte(`{}`))
	default:
		panic(fmt.Sprintf("converttest: internal error: config %q", c))
	}
	return b.done()
}

// baseName returns f with its base name as path.
func baseName(f File) File {
	f.Path = path.Base(f.Path)
	return f
}

// Tar returns a tar with the given files, and without entries for their directories, as
// modctl writes it.
func Tar(files ...File) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		must(w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: f.Path, Mode: int64(f.Mode), Size: int64(len(f.Data)),
			ModTime: mtime, Uid: 1000, Gid: 1000, Uname: "builder", Gname: "builder",
		}))
		_, err := w.Write(f.Data)
		must(err)
	}
	must(w.Close())
	return buf.Bytes()
}

// Compress returns p in the given codec.
func Compress(p []byte, c filetable.Codec) []byte {
	var buf bytes.Buffer
	var w io.WriteCloser
	var err error
	switch c {
	case filetable.CodecNone:
		return p
	case filetable.CodecGzip:
		w, err = gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	case filetable.CodecZstd:
		w, err = zstd.NewWriter(&buf, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	default:
		panic(fmt.Sprintf("converttest: internal error: codec %q", c))
	}
	must(err)
	_, err = w.Write(p)
	must(err)
	must(w.Close())
	return buf.Bytes()
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("converttest: internal error: %v", err))
	}
}
