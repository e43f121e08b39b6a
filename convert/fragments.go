package convert

import (
	"fmt"
	"math"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// AddFragments adds layer i of the manifest as a blob that is not a file: ranges of it are parts of
// files added by Assemble. The same blob can be added more than once.
func (b *Builder) AddFragments(i int, k mediatype.Kind) error {
	desc := b.manifest.Layers[i]
	if at, ok := b.at[desc.Digest]; ok {
		if have := b.blobs[at]; have.Archive != filetable.ArchiveFragments {
			return b.layerError(i, fmt.Errorf("the same blob is also layer %d, with another type: %w", have.Layer, errdefs.ErrInvalidArgument))
		}
		return nil
	}
	b.at[desc.Digest] = len(b.blobs)
	b.blobs = append(b.blobs, filetable.Blob{Digest: desc.Digest, Size: desc.Size, Archive: filetable.ArchiveFragments, Layer: i})
	b.layers = append(b.layers, Layer{
		Desc:      desc.Descriptor,
		Kind:      k,
		MediaType: mediatype.Layer(mediatype.FormatModelPack, k, filetable.ArchiveNone, filetable.CodecNone),
	})
	return nil
}

// Assemble adds a file that is the concatenation of parts: bytes, and ranges of blobs added by
// AddFragments. layer is the first layer with a part of the file; d is the digest of the file, or
// empty. Each path can be assembled once.
func (b *Builder) Assemble(layer int, path string, parts []filetable.Source, d digest.Digest) error {
	clean, err := filetable.CleanPath(path)
	if err != nil {
		return b.layerError(layer, err)
	}
	for _, f := range b.files {
		if f.Path == clean && f.Source != nil && len(f.Source.Parts) > 0 {
			return b.layerError(layer, fmt.Errorf("path %q is assembled twice: %w", clean, errdefs.ErrInvalidArgument))
		}
	}
	var size int64
	for _, p := range parts {
		n := p.Size
		if p.Blob == "" {
			n = int64(len(p.Inline))
		}
		if n > math.MaxInt64-size {
			return b.layerError(layer, fmt.Errorf("path %q: sizes add up to more than 2^63 bytes: %w", clean, errdefs.ErrInvalidArgument))
		}
		size += n
	}
	b.files = append(b.files, placed{layer: layer, File: filetable.File{
		Path:   clean,
		Type:   filetable.TypeReg,
		Mode:   defaultMode,
		Size:   size,
		Digest: d,
		Source: &filetable.Source{Parts: parts},
	}})
	return nil
}
