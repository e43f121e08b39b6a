package registry

import (
	"context"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
)

// preconverted reports whether an image, or every model of an index, was converted before it was
// pushed; see adopt.
func preconverted(im store.Image) bool { return im.Origin.Digest == im.Manifest }

// adopt records an image that was converted before it was pushed, by the name that it was resolved
// from, so that it can be prefetched, pinned and listed like images made here.
//
// Its Origin is the image itself, not the origin in its table: a request for that origin gets what
// this node makes of it, whatever others claim to have made.
func (h *Handler) adopt(ctx context.Context, o *origin, as caller) (store.Image, error) {
	im, err := h.Store.Image(o.Served.Digest)
	if err == nil && h.complete(im) {
		return h.used(ctx, im, o.source())
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return store.Image{}, err
	}
	key := filetable.Origin{Format: "ahead", Digest: o.Served.Digest}
	im, err = h.alone(ctx, o.flight(key, as), nil, func(ctx context.Context) (store.Image, error) { return h.readPreconverted(ctx, o) })
	if err != nil {
		return store.Image{}, err
	}
	return h.used(ctx, im, o.source())
}

// readPreconverted reads the documents of an image that was converted before it was pushed.
func (h *Handler) readPreconverted(ctx context.Context, o *origin) (store.Image, error) {
	if err := h.Store.TrimImages(o.Ref.Host); err != nil {
		return store.Image{}, err
	}
	p, err := o.Preconverted(ctx)
	if err != nil {
		return store.Image{}, err
	}
	im := store.Image{
		Manifest: p.Digest, Size: tableSize(p.Table),
		Origin: filetable.Origin{Format: p.Table.Origin.Format, Digest: p.Digest, Mapping: p.Table.Origin.Mapping},
	}
	if im.Table, err = h.Store.PutTable(ctx, p.Image.Table); err != nil {
		return store.Image{}, err
	}
	if im.Config, err = h.Store.PutBytes(ctx, p.Config); err != nil {
		return store.Image{}, err
	}
	if err := h.putManifest(ctx, p.Manifest, p.Digest); err != nil {
		return store.Image{}, err
	}
	return h.record(ctx, im, o.source())
}
