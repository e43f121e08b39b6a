package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// unnamed returns the models that snapshots show and of which no image is known: they were converted
// before they were pushed, so that containerd had no need of the facade to convert them. They have no
// manifest and no references, as far as is known here, and go by the digest of their table.
func (h *Handler) unnamed(ctx context.Context, images []store.Image, refs []store.Ref) ([]Image, error) {
	known := map[digest.Digest]bool{}
	for _, im := range images {
		known[im.Table] = true
	}
	var out []Image
	for _, r := range refs {
		if known[r.Table] || !strings.HasPrefix(r.Name, snapshotPrefix) {
			continue
		}
		known[r.Table] = true
		t, err := h.Store.Table(ctx, r.Table)
		if errdefs.IsNotFound(err) {
			continue // its snapshot is about to go
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

// findShown is findOne, but name can also be the digest of the table of an unnamed model, or the
// beginning of it.
func (h *Handler) findShown(ctx context.Context, name string) (store.Image, error) {
	im, err := findOne(ctx, h.Store, name)
	hex, ok := digestPrefix(name)
	if !ok || !errdefs.IsNotFound(err) {
		return im, err
	}
	all, oops := h.Store.Images(ctx)
	if oops != nil {
		return im, oops
	}
	refs, oops := h.Store.Refs(ctx, snapshotPrefix)
	if oops != nil {
		return im, oops
	}
	shown, oops := h.unnamed(ctx, all, refs)
	if oops != nil {
		return im, oops
	}
	shown = slices.DeleteFunc(shown, func(v Image) bool { return !strings.HasPrefix(v.Table.Encoded(), hex) })
	switch len(shown) {
	case 0:
		return im, err
	case 1:
		return shown[0].Image, nil
	}
	return im, fmt.Errorf("%s stands for %d models, give more of the digest: %w", name, len(shown), errdefs.ErrFailedPrecondition)
}

// ID is the digest by which an image is known here: that of its manifest, or of its table if the
// manifest is not known.
func (v *Image) ID() digest.Digest {
	if v.Manifest == "" {
		return v.Table
	}
	return v.Manifest
}
