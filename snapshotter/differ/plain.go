package differ

import (
	"context"
	"fmt"
	"maps"
	"strings"

	diffapi "github.com/containerd/containerd/api/services/diff/v1"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/proxy"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
)

// annotationAgain marks a layer that this differ passed on. Its value is a secret of the process,
// so that annotations of an image cannot keep its layers from being applied.
const annotationAgain = "dev.ballast.again"

// DiffService returns the diff service of the containerd at conn.
func DiffService(conn grpc.ClientConnInterface) diff.Applier {
	return proxy.NewDiffApplier(diffapi.NewDiffClient(conn)).(diff.Applier)
}

// applyPlain lets containerd apply an ordinary layer, with its decompressors and stream processors.
// Its diff service calls the configured differs in order, so this differ gets the layer again; then
// it returns errdefs.ErrNotImplemented and containerd calls the next differ.
func (d *Differ) applyPlain(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts []diff.ApplyOpt) (ocispec.Descriptor, error) {
	if desc.Annotations[annotationAgain] == d.again {
		return ocispec.Descriptor{}, fmt.Errorf("ordinary layer %s: %w", desc.Digest, errdefs.ErrNotImplemented)
	}
	for _, m := range mounts {
		if m.Type != "bind" && m.Type != "overlay" {
			return ocispec.Descriptor{}, fmt.Errorf("apply layer %s on a mount of type %q: %w", desc.Digest, m.Type, errdefs.ErrNotImplemented)
		}
	}
	marked := desc
	marked.Annotations = maps.Clone(desc.Annotations)
	if marked.Annotations == nil {
		marked.Annotations = map[string]string{}
	}
	marked.Annotations[annotationAgain] = d.again
	res, err := d.o.Plain.Apply(ctx, marked, withoutData(mounts), opts...)
	if errdefs.IsNotImplemented(err) {
		return ocispec.Descriptor{}, fmt.Errorf("apply layer %s: the order of containerd's diff-service has no differ for ordinary layers after ballast's, such as \"walking\": %v: %w", desc.Digest, err, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("apply layer %s: %w", desc.Digest, err)
	}
	return res, nil
}

// withoutData returns mounts without data-only layers. containerd writes to the upper directory of
// an overlay without mounting it, and looks up attributes in all listed lower directories.
// https://github.com/containerd/containerd/blob/v2.4.2/core/diff/apply/apply_linux.go
func withoutData(mounts []mount.Mount) []mount.Mount {
	if len(mounts) != 1 || mounts[0].Type != "overlay" {
		return mounts
	}
	// As for the kernel, options are separated by commas and the last list counts.
	lower := ""
	var options []string
	for o := range strings.SplitSeq(strings.Join(mounts[0].Options, ","), ",") {
		if strings.HasPrefix(o, "lowerdir=") {
			lower, _, _ = strings.Cut(o, "::")
			continue
		}
		options = append(options, o)
	}
	if lower != "" {
		options = append(options, lower)
	}
	m := mounts[0]
	m.Options = options
	return []mount.Mount{m}
}
