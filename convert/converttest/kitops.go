package converttest

import (
	"bytes"
	"encoding/json"
	"path"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// KitOps makes a ModelKit with a tar layer for each file at the top and for each directory.
func KitOps(files []File) *Built { return kitOps("kitops", files, "tar", filetable.CodecNone) }

// KitOpsGzip is KitOps with compressed layers.
func KitOpsGzip(files []File) *Built {
	return kitOps("kitops-gzip", files, "tar+gzip", filetable.CodecGzip)
}

// A kitEntry is the entry of a layer in a Kitfile.
type kitEntry struct {
	Name   string        `json:"name,omitempty"`
	Path   string        `json:"path"`
	Digest digest.Digest `json:"digest,omitempty"`
	DiffID digest.Digest `json:"diffId,omitempty"`
	Format string        `json:"format,omitempty"`
	Parts  []kitEntry    `json:"parts,omitempty"`
}

// A kit is a Kitfile.
type kit struct {
	Version string            `json:"manifestVersion"`
	Package map[string]string `json:"package"`
	Model   *kitEntry         `json:"model,omitempty"`
	Code    []kitEntry        `json:"code,omitempty"`
	Data    []kitEntry        `json:"datasets,omitempty"`
	Docs    []kitEntry        `json:"docs,omitempty"`
}

func kitOps(name string, files []File, packing string, codec filetable.Codec) *Built {
	b := newBuilder(name, mediatype.FormatKitOps, mediatype.OCIManifest)
	k := kit{Version: "1.0.0", Package: map[string]string{"name": "a-model", "version": "1.2", "license": "MIT", "description": "It <answers>."}}
	layer := func(kind, at string, files ...File) kitEntry {
		p := Tar(files...)
		l := b.layer(mediatype.KitOpsLayer(kind, packing), Compress(p, codec), map[string]string{mediatype.AnnotationFilepath: at})
		return kitEntry{Path: at, Digest: l.Digest, DiffID: digest.FromBytes(p)}
	}
	for _, f := range files {
		b.expect(f)
		switch kind := convert.KindByPath(f.Path); {
		case path.Dir(f.Path) == "tokenizer":
			k.Data = append(k.Data, layer("dataset", "tokenizer", f))
		case kind == mediatype.KindWeight && k.Model == nil:
			e := layer("model", f.Path, f)
			e.Name, e.Format = "a-model", "gguf"
			k.Model = &e
		case kind == mediatype.KindCode:
			k.Code = append(k.Code, layer("code", path.Dir(f.Path), f))
		case kind == mediatype.KindDoc:
			k.Docs = append(k.Docs, layer("docs", f.Path, f))
		}
	}
	for _, f := range files {
		if convert.KindByPath(f.Path) == mediatype.KindWeightConfig && path.Dir(f.Path) != "tokenizer" {
			k.Model.Parts = append(k.Model.Parts, layer("modelpart", f.Path, f))
		}
	}
	b.manifest.ArtifactType = mediatype.KitOpsManifest
	b.config(mediatype.KitOpsConfig, mustJSON(k))
	b.expect(File{"Kitfile", k.file(), 0o644})
	return b.done()
}

// file is the Kitfile as it was before it was packed.
func (k kit) file() []byte {
	var v any
	must(json.Unmarshal(mustJSON(k), &v))
	var strip func(any)
	strip = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				strip(e)
			}
		case map[string]any:
			delete(v, "digest")
			delete(v, "diffId")
			for _, e := range v {
				strip(e)
			}
		}
	}
	strip(v)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	must(enc.Encode(v))
	return buf.Bytes()
}
