package registry

import (
	"context"
	"fmt"
	"slices"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ConvertLocal is Convert for an artifact that is on this machine already: the image is that of a
// pull of ref, if the registry has the same artifact there, and is recorded as resolved from it. No
// registry is asked, but for signatures if a rule wants them. It returns ErrNotModel for what is not a model.
//
// With private only those who can read the origin at ref get the image by that name, until the
// registry has been seen to give it to everybody. What is recorded of a name before stays.
func (h *Handler) ConvertLocal(ctx context.Context, ref remote.Ref, a convert.Artifact, private bool) (store.Image, error) {
	o, err := h.local(ref, a)
	if err != nil {
		return store.Image{}, err
	}
	src := o.source()
	src.private = private
	key, err := h.key(o)
	if err != nil {
		return store.Image{}, fmt.Errorf("%s: %w", ref, err)
	}
	im, err := h.Store.ImageByOrigin(ctx, key)
	switch {
	case err == nil && resolvedFrom(im, nameOf(ref)):
		src.private = slices.Contains(im.PrivateNames, src.name)
	case err != nil && !errdefs.IsNotFound(err):
		return store.Image{}, err
	}
	if err == nil && h.whole(im) {
		if im, err = h.used(ctx, im, src); err != nil {
			return store.Image{}, err
		}
		_, err = h.admit(ctx, ref, im, h.asNode(im))
		return im, err
	}
	model, err := h.Parsers.Parse(ctx, a)
	if err != nil {
		return store.Image{}, fmt.Errorf("%s: %w", ref, err)
	}
	if im, err = h.make(ctx, model, src); err != nil {
		return store.Image{}, fmt.Errorf("%s: %w", ref, err)
	}
	_, err = h.admit(ctx, ref, im, h.asNode(im))
	return im, err
}

// BuildLocal is ConvertLocal without a trace in the store. It returns the model and the digest of
// the image.
func (h *Handler) BuildLocal(ctx context.Context, ref remote.Ref, a convert.Artifact) (*convert.Model, digest.Digest, error) {
	if _, err := h.local(ref, a); err != nil {
		return nil, "", err
	}
	model, err := h.Parsers.Parse(ctx, a)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", ref, err)
	}
	built, err := image.Build(model)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", ref, err)
	}
	return model, built.Digest, nil
}

// local says what an artifact is.
func (h *Handler) local(ref remote.Ref, a convert.Artifact) (*origin, error) {
	o := &origin{ref: ref, served: remote.Manifest{Bytes: a.Manifest(), Digest: digest.FromBytes(a.Manifest())}}
	if err := o.detect(); err != nil {
		return nil, err
	}
	if o.format == mediatype.FormatImage || o.format == mediatype.FormatIndex {
		return nil, fmt.Errorf("%s: %w", ref, ErrNotModel)
	}
	return o, nil
}

// ResolveTag gets what ref names from a repository, as the facade does: a tag that is not there and
// ends in the name of an Ollama runner stands for the model of that runner in the list that the tag
// without it names. Runner is empty otherwise.
func ResolveTag(ctx context.Context, r *remote.Repository, ref remote.Ref) (m remote.Manifest, runner string, err error) {
	return manifest(ctx, r, ref)
}
