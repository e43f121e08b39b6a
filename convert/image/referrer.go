package image

import (
	"encoding/json"
	"fmt"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Referrer returns the index by which a converted image, with the given manifest, refers to its
// origin: the subject is the manifest of the origin, and the only image of the index is the
// converted one. The image itself names no subject, so that its digest is the same in a registry
// and on nodes. A registry that removes untagged manifests keeps those in an index that it keeps.
//
// desc describes the index. The bytes depend only on origin and image.
func Referrer(o filetable.Origin, originManifest, manifest []byte) (desc ocispec.Descriptor, p []byte, err error) {
	m, err := convert.ParseManifest(originManifest)
	if err != nil {
		return desc, nil, fmt.Errorf("origin: %w", err)
	}
	subject := ocispec.Descriptor{MediaType: m.MediaType, Digest: o.Digest, Size: int64(len(originManifest))}
	if subject.MediaType == "" {
		subject.MediaType = mediatype.OCIManifest
	}
	idx := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIIndex, ArtifactType: mediatype.Converted,
		Subject: &subject, Annotations: Origin(o),
	}
	for _, pl := range platforms {
		idx.Manifests = append(idx.Manifests, ocispec.Descriptor{
			MediaType: mediatype.OCIManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest)), Platform: &pl,
		})
	}
	if p, err = json.Marshal(idx); err != nil {
		return desc, nil, err
	}
	return ocispec.Descriptor{
		MediaType: idx.MediaType, ArtifactType: idx.ArtifactType, Digest: digest.FromBytes(p), Size: int64(len(p)), Annotations: idx.Annotations,
	}, p, nil
}
