package registry

import (
	"context"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
)

// adopt records an image that was converted before it was pushed, by the name that it was resolved from, so that it
// can be prefetched, pinned and listed like images made here. The image is what ballast builds from its documents
// (resolve.Preconverted).
//
// Its Origin is the manifest that was pushed, not the origin in its table: a request for that origin gets what
// this node makes of it, whatever others claim to have made.
func (h *Handler) adopt(ctx context.Context, o *origin, as caller) (store.Image, error) {
	known := h.Store.Catalog.ImagesByOrigin(o.Served.Digest)
	if im, err := h.Store.Catalog.Image(o.Served.Digest); err == nil { // also one that was made here, with the same bytes
		known = append(known, im)
	}
	for _, im := range known {
		if im.Table != "" && h.complete(im) && mayKnow(im, nameOf(o.Ref)) {
			return h.used(im, o.source())
		}
	}
	key := filetable.Origin{Format: "ahead", Digest: o.Served.Digest}
	im, err := h.alone(ctx, o.flight(key, as), nil, func(ctx context.Context) (store.Image, error) { return h.readPreconverted(ctx, o) })
	if err != nil {
		return store.Image{}, err
	}
	return h.used(im, o.source())
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
	if im, err := h.image(p.Digest); err == nil { // others can have other bytes for it, and do not change what it is
		return h.record(im, o.source())
	}
	t := &p.Model.Table
	im := store.Image{
		Manifest: p.Digest, Config: p.ConfigDigest, Table: p.TableDigest, Size: tableSize(t), Ahead: true, Origin: t.Origin,
	}
	im.Origin.Digest = o.Served.Digest
	return h.record(im, o.source(), p.Manifest, p.Config, p.Table)
}
