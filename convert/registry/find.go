package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"
)

// Limits of the search for the origin of a converted digest. Each tag costs a manifest request, and
// a conversion if it is an unknown model.
const (
	maxTags   = 1000        // listed tags of a repository
	maxWalked = 64          // tags checked, the last ones first
	maxImages = 4           // images without a model, after which the search of a repository ends
	walkTime  = time.Minute // for all tags together

	maxRepositorySearches = 4  // of one repository in a minute, for all callers
	maxHostSearches       = 32 // of the repositories of one host in a minute

	maxSearched = 4096 // repositories and hosts whose searches are counted: strangers choose names
)

// find returns the image with the digest of ref, which neither upstream nor this node has. A tag of
// the repository may still name its origin. Conversion is a pure function, so an origin that converts
// to the digest is the right one. The origin is read with the credentials of as. It returns
// errdefs.ErrNotFound if no origin is found.
//
// After a search in vain, a repository is searched again in a minute, for everybody, and for a caller only if not
// everybody can read it, so that requests for unknown digests are cheap. A caller can have any number of names and
// passwords.
func (h *Handler) find(ctx context.Context, ref remote.Ref, as caller) (store.Image, error) {
	none := fmt.Errorf("%s: not found in the registry, and no checked tag converts to it; "+
		"\"ballast convert REF --referrer\" pushes it: %w", ref, errdefs.ErrNotFound)
	key := accessKey{nameOf(ref), ref.Digest, as}
	if missing, _ := h.missing.get(key); missing {
		return store.Image{}, none
	}
	if err := h.search(ctx, ref, as); err != nil {
		return store.Image{}, err
	}
	im, err := h.imageOf(ref)
	if errdefs.IsNotFound(err) {
		h.missing.put(key, true)
		return store.Image{}, none
	}
	if err == nil {
		err = h.authorize(ctx, im, ref, as)
	}
	return im, err
}

// search searches the tags of a repository as everybody, and then as a caller, as far as that was not done in the last
// minute and is necessary.
func (h *Handler) search(ctx context.Context, ref remote.Ref, as caller) error {
	callers := slices.Compact([]caller{{}, as})
	if as.node { // the searches of strangers do not stop those of the operator
		callers = []caller{as}
	}
	for _, who := range callers {
		repository := accessKey{nameOf(ref), "", who}
		closed, walked := h.walked.get(repository)
		for mine := false; !walked && !mine; closed, walked = h.walked.get(repository) {
			if _, err := h.imageOf(ref); err == nil { // by a search for another digest
				return nil
			}
			key := flightKey{filetable.Origin{Format: "tags"}, nameOf(ref).String(), who}
			if _, err := h.alone(ctx, key, func() {}, func(ctx context.Context) (store.Image, error) {
				mine = true
				if !who.node && !h.maySearch(ref) {
					return store.Image{}, fmt.Errorf("%s is not there, and tags of its repository or host were searched often; try again in a minute: %w", ref, errdefs.ErrUnavailable)
				}
				found, closed, err := h.walk(ctx, ref, who)
				if err != nil {
					h.log().DebugContext(ctx, "tags cannot be searched", "ref", ref.String(), "err", err)
				}
				if !found { // the rest of the tags may have other digests
					h.walked.put(repository, closed)
				}
				return store.Image{}, nil
			}); err != nil {
				return err
			}
		}
		if !closed {
			return nil
		}
	}
	return nil
}

// maySearch counts a search, and reports whether there were few in the last minute.
func (h *Handler) maySearch(ref remote.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.searched) >= maxSearched {
		maps.DeleteFunc(h.searched, func(_ name, l *rate.Limiter) bool { return l.Tokens() >= float64(l.Burst()) })
	}
	allow := func(n name, limit int) bool {
		l := h.searched[n]
		switch {
		case l != nil:
		case len(h.searched) >= maxSearched:
			return false
		case h.searched == nil:
			h.searched = map[name]*rate.Limiter{}
			fallthrough
		default:
			l = rate.NewLimiter(rate.Every(cacheTime), limit)
			h.searched[n] = l
		}
		return l.Allow()
	}
	return allow(nameOf(ref), maxRepositorySearches) && allow(name{host: ref.Host}, maxHostSearches)
}

// walk converts the models that the tags of a repository name, until one is found. It reports whether some of it could
// not be read.
func (h *Handler) walk(ctx context.Context, ref remote.Ref, as caller) (found, closed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, walkTime)
	defer cancel()
	var tags []string
	_, err = h.upstream(ctx, ref, as, func(ctx context.Context, r *remote.Repository) (err error) {
		tags, err = r.Tags(ctx, maxTags)
		return err
	})
	if err != nil {
		return false, true, err
	}
	tags = slices.DeleteFunc(tags, func(t string) bool { return strings.HasPrefix(t, digest.SHA256.String()+"-") }) // of referrers
	slices.Reverse(tags)
	images := 0
	for _, t := range tags[:min(len(tags), maxWalked)] {
		if ctx.Err() != nil || images == maxImages {
			return false, closed, ctx.Err()
		}
		im, err := h.tagged(ctx, remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: t}, as)
		switch {
		case err == nil && im.Manifest == ref.Digest:
			return true, closed, nil
		case err == nil:
			images = -maxWalked // it has models
		case errors.Is(err, convert.ErrNotModel):
			images++
		default:
			closed = closed || errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) || errdefs.IsNotFound(err)
		}
	}
	return false, closed, nil
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
