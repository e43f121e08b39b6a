package registry

import (
	"context"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// ReadOrder returns the latest order that a repository has of the first reads of an image. It returns
// errdefs.ErrNotFound if there is none.
func ReadOrder(ctx context.Context, r *remote.Repository, manifest digest.Digest) (filetable.Order, error) {
	p, err := r.Attached(ctx, manifest, mediatype.Order, filetable.MaxOrderSize)
	if err != nil {
		return filetable.Order{}, err
	}
	return filetable.ParseOrder(p)
}
