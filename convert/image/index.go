package image

import (
	"encoding/json"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Child is an entry of an index.
type Child struct {
	// Desc is the entry in the origin.
	Desc ocispec.Descriptor

	// Image is the converted entry; nil if the entry is not a model and stays unchanged.
	Image *Image
}

// platforms are the platforms of a model without a platform.
var platforms = []ocispec.Platform{
	{OS: os, Architecture: "amd64"},
	{OS: os, Architecture: "arm64"},
}

// BuildIndex builds the index for an origin index with the given digest, as an Image that has only a manifest. The
// children are in the order of the origin. A model without a platform is listed for linux/amd64 and linux/arm64,
// since containerd would select it for neither.
func BuildIndex(originDigest digest.Digest, children []Child) (*Image, error) {
	if len(children) == 0 {
		return nil, fmt.Errorf("index %s has no entries: %w", originDigest, errdefs.ErrInvalidArgument)
	}
	idx := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: mediatype.OCIIndex,
		Annotations: Origin(filetable.Origin{
			Format: string(mediatype.FormatIndex), Digest: originDigest, Mapping: convert.MappingVersion,
		}),
	}
	for _, c := range children {
		if c.Image == nil {
			d := c.Desc
			d.URLs = nil
			idx.Manifests = append(idx.Manifests, d)
			continue
		}
		d := ocispec.Descriptor{
			MediaType:    mediatype.OCIManifest,
			ArtifactType: mediatype.ModelPackManifest,
			Digest:       c.Image.Digest,
			Size:         int64(len(c.Image.Manifest)),
			Annotations:  map[string]string{mediatype.AnnotationOriginDigest: c.Desc.Digest.String()},
		}
		if c.Desc.Platform != nil && c.Desc.Platform.OS != "" {
			d.Platform = c.Desc.Platform
			idx.Manifests = append(idx.Manifests, d)
			continue
		}
		for _, p := range platforms {
			d.Platform = &p
			idx.Manifests = append(idx.Manifests, d)
		}
	}
	p, err := json.Marshal(idx)
	if err != nil {
		return nil, fmt.Errorf("encode index: %w", err)
	}
	return &Image{Manifest: p, Digest: digest.FromBytes(p)}, nil
}
