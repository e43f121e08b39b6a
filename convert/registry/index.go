package registry

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxIndexDocuments limits the manifests of all models of an index, in bytes. The documents kept
// for a manifest are up to three times as large, and kept for a week: 48 MiB for one request.
const maxIndexDocuments = 16 << 20 // 16 MiB

// LimitIndex is the name of the limit of an index's manifests.
const LimitIndex = "index_documents"

// convertIndex returns the index of the converted models of an index, converting them if needed. It
// returns convert.ErrNotModel if there are none, and the index itself if all were converted before
// they were pushed (store.Image.Ahead).
//
// The index is recorded as an image without config and table, so that it can be served by digest.
func (h *Handler) convertIndex(ctx context.Context, o *origin, as caller) (store.Image, error) {
	im, key, err := h.knownIndex(o)
	if err == nil || !errdefs.IsNotFound(err) {
		return im, err
	}
	im, err = h.shared(ctx, o, key, as, func(ctx context.Context) (store.Image, error) {
		var documents atomic.Int64
		index, err := resolve.Index(ctx, o.Origin, func(ctx context.Context, d convert.Descriptor) (*image.Image, error) {
			return h.convertChild(ctx, o, d, as, &documents)
		})
		if err != nil {
			return store.Image{}, err
		}
		im := store.Image{Manifest: index.Digest, Origin: key, Ahead: index.Digest == key.Digest}
		return h.record(im, o.source(), index.Manifest)
	})
	if err != nil {
		return store.Image{}, err
	}
	return h.used(im, o.source())
}

// knownIndex returns the index to which an index was converted before. It returns
// errdefs.ErrNotFound unless all its models are here and were read by the same name: an index that
// names a model does not prove that the model can be read there.
func (h *Handler) knownIndex(o *origin) (store.Image, filetable.Origin, error) {
	key, err := h.Key(o.Origin)
	if err != nil {
		return store.Image{}, key, err
	}
	im, err := h.Store.Catalog.ImageByOrigin(key)
	if err != nil {
		return store.Image{}, key, err
	}
	p, err := h.manifest(im)
	if err != nil {
		return store.Image{}, key, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound) // damaged; it is made again
	}
	index, err := convert.ParseManifest(p)
	if err != nil {
		return store.Image{}, key, err
	}
	checked := map[digest.Digest]bool{}
	for _, d := range index.Manifests {
		ours := d.Annotations[mediatype.AnnotationOriginDigest] != "" || im.Ahead && mediatype.FormatOf(d.ArtifactType) != ""
		if !ours || checked[d.Digest] {
			continue
		}
		checked[d.Digest] = true
		if err := h.knownChild(o, d.Digest); err != nil {
			return store.Image{}, key, err
		}
	}
	if len(checked) == 0 {
		return store.Image{}, key, errdefs.ErrNotFound
	}
	im, err = h.used(im, o.source())
	return im, key, err
}

// knownChild records the use of an image in an index. It returns errdefs.ErrNotFound if the image
// is missing or was not read by the name of the index.
func (h *Handler) knownChild(o *origin, d digest.Digest) error {
	child, err := h.image(d)
	n := nameOf(o.Ref)
	if err == nil && !resolvedFrom(child, n) {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return err
	}
	_, err = h.used(child, source{
		ref: o.Child(child.Origin.Digest).Recorded(), name: n.String(), private: slices.Contains(child.PrivateNames, n.String()),
	})
	return err
}

// convertChild converts an entry of an index. documents counts the bytes of the manifests of all
// its models.
func (h *Handler) convertChild(ctx context.Context, o *origin, d convert.Descriptor, as caller, documents *atomic.Int64) (*image.Image, error) {
	ctx, done, err := h.room(ctx, &h.children, o.Ref.Host)
	if err != nil {
		return nil, err
	}
	defer done()
	sub, err := h.resolve(ctx, o.Child(d.Digest), as)
	if err != nil {
		return nil, err
	}
	if documents.Add(int64(len(sub.Served.Bytes))) > maxIndexDocuments {
		return nil, &filetable.LimitError{Limit: LimitIndex, Err: fmt.Errorf("%s: the manifests of the models of the index have more than %d bytes: %w",
			o.Ref, maxIndexDocuments, errdefs.ErrInvalidArgument)}
	}
	if sub.Format == mediatype.FormatIndex {
		return nil, fmt.Errorf("%s: an index in an index: %w", sub.Ref, errdefs.ErrNotImplemented)
	}
	im, err := h.convertAny(ctx, sub, as)
	if err != nil {
		return nil, err
	}
	p, err := h.manifest(im)
	return &image.Image{Manifest: p, Digest: im.Manifest}, err
}
