package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits of the search for the origin of a converted digest. Each tag costs a manifest request, and
// a conversion if it is an unknown model.
const (
	maxTags   = 1000        // listed tags of a repository
	maxWalked = 64          // tags checked, the last ones first
	maxImages = 4           // images without a model, after which the search of a repository ends
	walkTime  = time.Minute // for all tags together
)

// find returns the image with the digest of ref, which neither upstream nor this node has. A tag of
// the repository may still name its origin. Conversion is a pure function, so an origin that converts
// to the digest is the right one. The origin is read with the credentials of as. It returns
// errdefs.ErrNotFound if no origin is found.
//
// A repository is searched at most once a minute for each caller, so that requests for unknown
// digests are cheap.
func (h *Handler) find(ctx context.Context, ref remote.Ref, as caller) (store.Image, error) {
	none := fmt.Errorf("%s: not found in the registry, and no checked tag converts to it; "+
		"\"ballast convert REF --referrer\" pushes it: %w", ref, errdefs.ErrNotFound)
	key := accessKey{nameOf(ref), ref.Digest, as}
	if missing, _ := h.missing.get(key); missing {
		return store.Image{}, none
	}
	repository := accessKey{nameOf(ref), "", as}
	if walked, _ := h.walked.get(repository); !walked {
		key := flightKey{filetable.Origin{Format: "tags"}, nameOf(ref).String(), as}
		if _, err := h.alone(ctx, key, func() {}, func(ctx context.Context) (store.Image, error) {
			if err := h.walk(ctx, ref, as); err != nil {
				h.log().DebugContext(ctx, "tags cannot be searched", "ref", ref.String(), "err", err)
			}
			h.walked.put(repository, true)
			return store.Image{}, nil
		}); err != nil {
			return store.Image{}, err
		}
	}
	im, err := h.image(ctx, ref.Digest)
	if errdefs.IsNotFound(err) {
		h.missing.put(key, true)
		return store.Image{}, none
	}
	if err == nil {
		err = h.authorize(ctx, im, ref, as)
	}
	return im, err
}

// walk converts the models that the tags of a repository name.
func (h *Handler) walk(ctx context.Context, ref remote.Ref, as caller) error {
	ctx, cancel := context.WithTimeout(ctx, walkTime)
	defer cancel()
	var tags []string
	_, err := h.upstream(ctx, ref, as, func(r *remote.Repository) (err error) {
		tags, err = r.Tags(ctx, maxTags)
		return err
	})
	if err != nil {
		return err
	}
	tags = slices.DeleteFunc(tags, func(t string) bool { return strings.HasPrefix(t, digest.SHA256.String()+"-") }) // of referrers
	slices.Reverse(tags)
	images := 0
	for _, t := range tags[:min(len(tags), maxWalked)] {
		if ctx.Err() != nil || images == maxImages {
			return ctx.Err()
		}
		im, err := h.tagged(ctx, remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: t}, as)
		switch {
		case err == nil && im.Manifest == ref.Digest:
			return nil
		case err == nil:
			images = -maxWalked // it has models
		case errors.Is(err, convert.ErrNotModel):
			images++
		}
	}
	return nil
}

// tagged converts a reference if it is a model.
func (h *Handler) tagged(ctx context.Context, ref remote.Ref, as caller) (store.Image, error) {
	ctx, done, err := h.room(ctx, &h.requests, ref.Host)
	if err != nil {
		return store.Image{}, err
	}
	defer done()
	o, err := h.resolve(ctx, ref, as)
	if err != nil {
		return store.Image{}, err
	}
	return h.convertAny(ctx, o, as)
}
