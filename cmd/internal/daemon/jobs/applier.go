package jobs

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An Applier lists and counts the models that containerd waits for: applying a table layer ends
// when its model is complete, or readable before it is.
type Applier struct {
	diff.Applier
	Jobs *Jobs
}

// Apply implements diff.Applier.
func (a *Applier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if desc.MediaType != filetable.MediaTypeTableLayer {
		return a.Applier.Apply(ctx, desc, mounts, opts...)
	}
	end := a.Jobs.containerd(ctx, desc.Digest)
	res, err := a.Applier.Apply(ctx, desc, mounts, opts...)
	end(err)
	a.Jobs.Sources.PruneSecrets()
	return res, err
}
