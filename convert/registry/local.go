package registry

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ConvertLocal is Convert for an artifact that is on this machine. The image is the same as that of
// a pull of ref, if the registry has the same artifact, and is recorded as resolved from ref. No
// registry is contacted, except for signatures if a rule requires them. It returns
// convert.ErrNotModel if the artifact is not a model.
//
// With private, only callers that can read the origin at ref get the image by that name, until the
// registry has been seen to be public. An earlier record of the name stays.
func (h *Handler) ConvertLocal(ctx context.Context, ref remote.Ref, a convert.Artifact, private bool) (store.Image, error) {
	o, err := local(ref, a)
	if err != nil {
		return store.Image{}, err
	}
	key, err := h.Key(o.Origin)
	if err != nil {
		return store.Image{}, err
	}
	o.private = private
	if im, err := h.Store.ImageByOrigin(key); err == nil && resolvedFrom(im, nameOf(ref)) {
		o.private = slices.Contains(im.PrivateNames, nameOf(ref).String())
	}
	im, _, err := h.known(ctx, o)
	if errdefs.IsNotFound(err) {
		var model *convert.Model
		if model, err = h.Model(ctx, o.Origin); err == nil {
			im, err = h.makeImage(ctx, model, o.source())
		}
	}
	if err != nil {
		return store.Image{}, err
	}
	_, err = h.admit(ctx, ref, im, h.asNode(im))
	return im, err
}

// BuildLocal is ConvertLocal without writing to the store. It returns the model and the digest of
// the image.
func (h *Handler) BuildLocal(ctx context.Context, ref remote.Ref, a convert.Artifact) (*convert.Model, digest.Digest, error) {
	o, err := local(ref, a)
	if err != nil {
		return nil, "", err
	}
	model, err := h.Model(ctx, o.Origin)
	if err != nil {
		return nil, "", err
	}
	built, err := image.Build(model)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", ref, err)
	}
	return model, built.Digest, nil
}

// local classifies an artifact, which must be a model.
func local(ref remote.Ref, a convert.Artifact) (*origin, error) {
	o, err := resolve.Local(ref, a)
	if err != nil {
		return nil, err
	}
	if !o.IsModel() {
		return nil, fmt.Errorf("%s: %w", ref, convert.ErrNotModel)
	}
	return &origin{Origin: o}, nil
}
