package resolve

import (
	"context"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Entries returns the entries of an index that containerd can take on this machine, in its order: it pulls the first.
// An entry without a platform is one of them. containerd's own code decides, because it compares platforms in a
// normal form ("Linux", "x86_64").
func Entries(index *convert.Manifest) ([]ocispec.Descriptor, error) {
	here := platforms.Default()
	all := images.HandlerFunc(func(context.Context, ocispec.Descriptor) (out []ocispec.Descriptor, err error) {
		for _, d := range index.Manifests {
			out = append(out, d.Descriptor)
		}
		return out, nil
	})
	const noLimit = 0
	return images.LimitManifests(images.FilterPlatforms(all, here), here, noLimit)(context.Background(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex})
}

// OtherSystem reports whether no entry with the platform of d is for Linux, for any processor and whatever its
// spelling.
func OtherSystem(d convert.Descriptor) bool {
	return d.Platform != nil && platforms.Normalize(*d.Platform).OS != "linux"
}
