package registry

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
)

// Limits of the entries of an index that must be read to know what they are, or converted.
const (
	maxUnclear = 64
	maxAtOnce  = 4

	// maxIndexDocuments is for the manifests of all models of an index, in bytes. What is kept of a
	// manifest is up to three times as large, for a week: 48 MiB for one request.
	maxIndexDocuments = 16 << 20 // 16 MiB
)

// LimitIndex is the name of the limit of the manifests of an index.
const LimitIndex = "index_documents"

// A child is an entry of an index.
type child struct {
	entry convert.Descriptor
	model bool
}

// clarity says what a descriptor tells of an entry.
type clarity int

const (
	unclear clarity = iota
	ordinary
	model
	nested
)

// tell returns what the descriptor of an entry says of it.
func tell(d convert.Descriptor) clarity {
	switch {
	case mediatype.IsIndex(d.MediaType), mediatype.FormatOf(d.MediaType) == mediatype.FormatOllamaList:
		return nested
	case mediatype.FormatOf(d.ArtifactType) != "", mediatype.FormatOf(d.MediaType) != "", mediatype.IsCarton(d.ArtifactType):
		return model
	case d.ArtifactType != "":
		return ordinary
	case d.Platform != nil && d.Platform.OS != "" && d.Platform.Architecture != "":
		return ordinary
	case !mediatype.IsManifest(d.MediaType):
		return ordinary
	}
	return unclear
}

// models returns the entries of an index, with those that are models marked. Entries whose
// descriptors do not say what they are, are read. It returns errdefs.ErrNotImplemented for an
// index in an index.
func (h *Handler) models(ctx context.Context, o *origin, who caller) ([]child, bool, error) {
	children := make([]child, len(o.parsed.Manifests))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxAtOnce)
	reads := 0
	for i, d := range o.parsed.Manifests {
		children[i].entry = d
		switch tell(d) {
		case nested:
			return nil, false, fmt.Errorf("%s: entry %d of the index (%s) is an index: %w", o.ref, i, d.Digest, errdefs.ErrNotImplemented)
		case model:
			children[i].model = true
		case unclear:
			if reads++; reads > maxUnclear {
				return nil, false, fmt.Errorf("%s: index with more than %d entries that say neither what they are nor for which platform: %w", o.ref, maxUnclear, errdefs.ErrInvalidArgument)
			}
			g.Go(func() error {
				ctx, done, err := h.room(gctx, &h.children, o.ref.Host)
				if err != nil {
					return err
				}
				defer done()
				sub, err := h.resolve(ctx, o.child(d), who)
				if err != nil {
					return err
				}
				children[i].model = sub.format != mediatype.FormatImage
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, false, err
	}
	for _, c := range children {
		if c.model {
			return children, true, nil
		}
	}
	return children, false, nil
}

// child returns the reference of an entry.
func (o *origin) child(d convert.Descriptor) remote.Ref {
	return remote.Ref{Host: o.ref.Host, Repository: o.ref.Repository, Digest: d.Digest}
}

// convertIndex converts the models of an index, and returns the index of what became of them.
// It returns ErrNotModel if there are none.
//
// The index is recorded as an image without config and table, so that it can be served by
// digest.
func (h *Handler) convertIndex(ctx context.Context, o *origin, who caller) (store.Image, error) {
	children, any, err := h.models(ctx, o, who)
	if err != nil {
		return store.Image{}, err
	}
	if !any {
		return store.Image{}, fmt.Errorf("%s: an index without models: %w", o.ref, ErrNotModel)
	}
	built := make([]image.Child, len(children))
	var documents atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxAtOnce)
	for i, c := range children {
		built[i].Desc = c.entry.Descriptor
		if !c.model {
			continue
		}
		g.Go(func() (err error) {
			built[i].Image, err = h.convertChild(gctx, o, c.entry, who, &documents)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return store.Image{}, err
	}
	index, err := image.BuildIndex(o.served.Digest, built)
	if err != nil {
		return store.Image{}, err
	}
	im, err := h.image(ctx, index.Digest)
	if err == nil {
		return h.used(ctx, im, o.source())
	}
	if _, err := h.Store.PutBytes(ctx, index.Manifest); err != nil {
		return store.Image{}, err
	}
	return h.record(ctx, store.Image{
		Manifest: index.Digest,
		Origin:   filetable.Origin{Format: string(mediatype.FormatIndex), Digest: o.served.Digest, Mapping: convert.MappingVersion},
	}, o.source())
}

// convertChild converts an entry of an index that is a model. documents are the bytes of all such
// manifests of the index.
func (h *Handler) convertChild(ctx context.Context, o *origin, d convert.Descriptor, who caller, documents *atomic.Int64) (*image.Image, error) {
	ctx, done, err := h.room(ctx, &h.children, o.ref.Host)
	if err != nil {
		return nil, err
	}
	defer done()
	sub, err := h.resolve(ctx, o.child(d), who)
	if err != nil {
		return nil, err
	}
	if documents.Add(int64(len(sub.served.Bytes))) > maxIndexDocuments {
		return nil, &filetable.LimitError{Limit: LimitIndex, Err: fmt.Errorf("%s: the manifests of the models of the index have more than %d bytes: %w",
			o.ref, maxIndexDocuments, errdefs.ErrInvalidArgument)}
	}
	if sub.format == mediatype.FormatIndex || sub.format == mediatype.FormatImage {
		return nil, fmt.Errorf("%s: the index says that it is a model, but it is an %s: %w", sub.ref, sub.format, errdefs.ErrInvalidArgument)
	}
	im, err := h.convert(ctx, sub, who)
	if err != nil {
		return nil, err
	}
	p, err := h.Store.ReadBytes(ctx, im.Manifest, convert.MaxManifestSize)
	if err != nil {
		return nil, err
	}
	return &image.Image{Manifest: p, Digest: im.Manifest}, nil
}
