package daemon

import (
	"context"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A countingApplier counts the models that containerd waits for: a table layer is applied when
// its model is complete, or can be read before it is.
type countingApplier struct {
	diff.Applier
	store   *store.Store
	metrics *metrics
	jobs    *pulls
	applied func(context.Context) // called after a table layer was applied
}

// Apply implements diff.Applier.
func (a *countingApplier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if desc.MediaType != filetable.MediaTypeTableLayer {
		return a.Applier.Apply(ctx, desc, mounts, opts...)
	}
	active := a.metrics.active.WithLabelValues(byContainerd)
	active.Inc()
	defer active.Dec()
	end := a.jobs.containerd(ctx, desc.Digest)
	start := time.Now()
	res, err := a.Applier.Apply(ctx, desc, mounts, opts...)
	end(err)
	a.applied(context.WithoutCancel(ctx))
	a.metrics.pulled(byContainerd, a.format(ctx, desc.Digest), time.Since(start), err)
	return res, err
}

// format returns what a table says that it was made from; empty if it is not here.
func (a *countingApplier) format(ctx context.Context, table digest.Digest) string {
	t, err := a.store.Table(ctx, table)
	if err != nil {
		return ""
	}
	return t.Origin.Format
}
