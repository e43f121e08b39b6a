package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// states returns the blobs of a model that a table of hash states makes readable before they are complete, or the
// states of one of them.
func (h *Handler) states(r *http.Request) (any, error) {
	name, err := modelname.Parse(r.FormValue("name"))
	if err != nil {
		return nil, err
	}
	im, err := h.findOne(name)
	if err != nil {
		return nil, err
	}
	all, err := h.stated(im)
	if err != nil {
		return nil, err
	}
	blob := digest.Digest(r.FormValue("blob"))
	if blob == "" {
		return all, nil
	}
	for _, b := range all {
		if b.Digest == blob {
			b.States, err = h.statesOf(r.Context(), im, b)
			return b, err
		}
	}
	return nil, fmt.Errorf("%s has no blob %.100q that a table of hash states is for: %w", name, blob, errdefs.ErrNotFound)
}

// stated returns these blobs without states.
func (h *Handler) stated(im store.Image) ([]wire.HashStates, error) {
	t, err := h.Store.Table(im.Table)
	if err != nil {
		return nil, err
	}
	paths := map[digest.Digest]string{}
	for _, f := range t.Files {
		if f.Source != nil {
			paths[f.Source.Blob] = f.Path
		}
	}
	all := []wire.HashStates{}
	for _, b := range t.Windowless() {
		all = append(all, wire.HashStates{Path: paths[b.Digest], Digest: b.Digest, Size: b.Size})
	}
	return all, nil
}

// statesOf returns the states of a blob of an image. Its object is hashed if they were not kept.
func (h *Handler) statesOf(ctx context.Context, im store.Image, b wire.HashStates) ([]byte, error) {
	names := registry.Names(im)
	c, err := h.Store.Chain(b.Digest, names)
	if errdefs.IsNotFound(err) {
		c, err = h.Store.HashChain(ctx, filetable.Blob{Digest: b.Digest, Size: b.Size}, names)
	}
	if errdefs.IsNotFound(err) {
		err = fmt.Errorf("%s is not complete: download it first, with \"ballast prefetch\": %w", b.Path, err)
	}
	return c, err
}
