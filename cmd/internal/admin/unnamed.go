package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/cmd/internal/api"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// unnamed returns the models that snapshots show and that have no image: they were converted before
// they were pushed, so containerd did not need the facade to pull them. Their manifests and
// references are not known here; their name is the digest of their table.
func (h *Handler) unnamed(ctx context.Context, images []store.Image, refs []store.Ref) ([]api.Image, error) {
	known := map[digest.Digest]bool{}
	for _, im := range images {
		known[im.Table] = true
	}
	var out []api.Image
	for _, r := range refs {
		if known[r.Table] || !strings.HasPrefix(r.Name, api.SnapshotPrefix) {
			continue
		}
		known[r.Table] = true
		t, err := h.Store.Table(ctx, r.Table)
		if errdefs.IsNotFound(err) {
			continue // its snapshot is about to be removed
		} else if err != nil {
			return nil, err
		}
		im := store.Image{Table: r.Table, Origin: t.Origin, Created: r.Created, Used: r.Created}
		for _, f := range t.Files {
			im.Size += f.Size
		}
		v, _ := h.state(ctx, im, refs)
		v.Sources = r.Sources
		out = append(out, v)
	}
	return out, nil
}

// findShown is findOne, but name can also be the digest of the table of an unnamed model.
func (h *Handler) findShown(ctx context.Context, name api.Name) (store.Image, error) {
	im, err := h.findOne(ctx, name)
	if name.IsRef() || !errdefs.IsNotFound(err) {
		return im, err
	}
	refs, rerr := h.Store.Refs(ctx, api.SnapshotPrefix)
	if rerr != nil {
		return im, rerr
	}
	refs = slices.DeleteFunc(refs, func(r store.Ref) bool { return !name.Matches(r.Table) })
	shown, rerr := h.unnamed(ctx, nil, refs)
	switch {
	case rerr != nil:
		return im, rerr
	case len(shown) == 0:
		return im, err
	case len(shown) == 1:
		return shown[0].Image, nil
	}
	return im, fmt.Errorf("%s stands for %d models, give more of the digest: %w", name, len(shown), errdefs.ErrFailedPrecondition)
}
