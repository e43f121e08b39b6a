package admin

import (
	"context"
	"fmt"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/translate"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// order returns the order in which a model is first read, by those who pulled it from the repository of a reference.
func (h *Handler) order(_ context.Context, name modelname.Name) (r wire.Recorded, err error) {
	im, err := h.findOne(name)
	if err != nil {
		return r, err
	}
	o, err := h.Store.Order(im.Table, name.Ref.Name())
	if err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	r.Order = translate.Order(o)
	p, err := h.Store.ReadDocument(im, im.Manifest, convert.MaxManifestSize)
	r.Image = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: im.Manifest, Size: int64(len(p))}
	return r, err
}
