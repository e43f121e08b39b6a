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
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Limits of the search for what was converted to a digest. Each tag is a request for its manifest, and a
// conversion if it is a model that is not known yet.
const (
	maxHints  = 4
	maxTags   = 1000        // of a repository that are listed
	maxWalked = 64          // of these that are looked at, the last ones first
	maxImages = 4           // that are no models, after which the repository is none of models
	walkTime  = time.Minute // for all of them
)

// A Hint says what somebody made the image with a digest of. It is not believed: the origin is read and
// converted here.
type Hint struct {
	Origin digest.Digest `json:"origin"`
	Runner string        `json:"runner,omitempty"` // of an Ollama list
}

// find returns the image with the digest of ref, which upstream does not have and nobody has asked for here by a
// tag: another node may have made it (Handler.Hints), or a tag of the repository may still stand for its origin.
// Conversion is a pure function, so what gives the digest is the image. The origin is read with the credentials of
// who asks. It returns errdefs.ErrNotFound if nothing is found.
//
// A repository is searched once a minute for each who asks, so that asking for digests that nobody has costs little.
func (h *Handler) find(ctx context.Context, ref remote.Ref, who caller) (store.Image, error) {
	none := fmt.Errorf("%s: the registry does not have it, and it is not what this node makes of any tag that was looked at; "+
		"\"ballast convert REF --referrer\" puts it there: %w", ref, errdefs.ErrNotFound)
	key := recentKey{nameOf(ref), ref.Digest, who.key()}
	if missing, _ := h.missing.get(key); missing {
		return store.Image{}, none
	}
	if h.Hints != nil {
		hints := h.Hints(ctx, ref.Digest)
		for _, hint := range hints[:min(len(hints), maxHints)] {
			at := remote.Ref{Host: ref.Host, Repository: ref.Repository, Digest: hint.Origin}
			if im, err := h.candidate(ctx, at, hint.Runner, who); err == nil && im.Manifest == ref.Digest {
				return im, nil
			}
		}
	}
	repository := recentKey{nameOf(ref), "", who.key()}
	if walked, _ := h.walked.get(repository); !walked {
		key := flightKey(filetable.Origin{Format: "tags"}, &origin{Origin: &resolve.Origin{Ref: ref}}, who)
		if _, err := h.alone(ctx, key, func() {}, func(ctx context.Context) (store.Image, error) {
			if err := h.walk(ctx, ref, who); err != nil {
				h.log().DebugContext(ctx, "tags are not looked through", "ref", ref.String(), "err", err)
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
		err = h.authorize(ctx, im, ref, who)
	}
	return im, err
}

// walk converts what the tags of a repository stand for.
func (h *Handler) walk(ctx context.Context, ref remote.Ref, who caller) error {
	ctx, cancel := context.WithTimeout(ctx, walkTime)
	defer cancel()
	var tags []string
	_, err := h.upstream(ctx, ref, who, func(r *remote.Repository) (err error) {
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
		im, err := h.tagged(ctx, remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: t}, who)
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

// tagged is candidate with memory of its own.
func (h *Handler) tagged(ctx context.Context, ref remote.Ref, who caller) (store.Image, error) {
	ctx, done, err := h.room(ctx, &h.requests, ref.Host)
	if err != nil {
		return store.Image{}, err
	}
	defer done()
	return h.candidate(ctx, ref, "", who)
}

// candidate converts what a reference stands for, if it is a model.
func (h *Handler) candidate(ctx context.Context, ref remote.Ref, runner string, who caller) (store.Image, error) {
	o, err := h.resolve(ctx, ref, who)
	if err != nil {
		return store.Image{}, err
	}
	o.Choose(runner)
	return h.convertAny(ctx, o, who)
}
