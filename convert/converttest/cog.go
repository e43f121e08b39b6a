package converttest

import (
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// A CogFile is a file in the index of managed weights of Cog.
type CogFile struct {
	Path   string        `json:"path"`
	Layer  digest.Digest `json:"layer"`
	Size   int           `json:"size"`
	Digest digest.Digest `json:"digest"`
}

// Cog makes managed weights of Cog: an uncompressed layer for each file of weights, and a compressed one for the rest.
func Cog(files []File) *Built {
	b := newBuilder("cog-gzip", mediatype.FormatCog, mediatype.OCIManifest)
	var index []CogFile
	layer := func(mediaType string, codec filetable.Codec, files ...File) {
		l := b.layer(mediaType, Compress(Tar(files...), codec), map[string]string{"run.cog.weight.size.uncompressed": "1"})
		for _, f := range files {
			b.expect(f)
			index = append(index, CogFile{f.Path, l.Digest, len(f.Data), digest.FromBytes(f.Data)})
		}
	}
	var small []File
	for _, f := range files {
		if convert.KindByPath(f.Path) == mediatype.KindWeight {
			layer(mediatype.OCILayer, filetable.CodecNone, f)
		} else {
			small = append(small, f)
		}
	}
	layer(mediatype.OCILayerGzip, filetable.CodecGzip, small...)
	b.manifest.ArtifactType = mediatype.CogWeight
	b.manifest.Annotations = map[string]string{"run.cog.weight.name": "a-model", "run.cog.weight.target": "/src/weights"}
	b.config(mediatype.CogConfig, mustJSON(map[string]any{"name": "a-model", "target": "/src/weights", "setDigest": digest.FromString("set"), "files": index}))
	return b.done()
}
