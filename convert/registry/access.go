package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// upstream calls f with the repository of ref, with the credentials of as if it has some, and without them if
// these are refused: limits are those of an account. A host that is not a registry is asked without them first,
// because each of its manifests is a lot of work, unless it refused that within the last minute. Only the request
// with those of as waits for a limit (remote.WithPatience). It reports whether credentials were used.
func (h *Handler) upstream(ctx context.Context, ref remote.Ref, as caller, f func(context.Context, *remote.Repository) error) (private bool, err error) {
	n, isRegistry := nameOf(ref), h.Upstream.IsRegistry(ref.Host)
	closed, _ := h.closed.get(n)
	tries := []caller{as, {}}
	switch {
	case as.anonymous():
		tries = tries[:1]
	case !isRegistry && !closed:
		tries = []caller{{}, as}
	}
	var refused error // with the credentials of the caller; preferred to the anonymous error
	for _, try := range tries {
		ctx := ctx
		if try != as {
			ctx = remote.WithPatience(ctx, nil)
		}
		var r *remote.Repository
		if r, err = try.repository(h.Upstream, ref); err != nil {
			return false, err
		}
		private := !try.anonymous() && r.HasCredentials()
		err = f(ctx, r)
		_, limit := errors.AsType[*remote.AnonymousLimit](err)
		if !isRegistry && (err == nil || limit) {
			h.closed.put(n, private || limit)
		}
		switch {
		case err == nil:
			return private, nil
		case ctx.Err() != nil, !try.anonymous() && (!private || !isRefusal(err)):
			return false, err
		case !try.anonymous():
			refused = err
		}
	}
	return false, cmp.Or(refused, err)
}

// openTime limits the question whether everybody may have what a caller with credentials got.
const openTime = 2 * time.Second

// isOpen reports whether everybody gets the manifest with digest d from the repository of ref.
func (h *Handler) isOpen(ctx context.Context, ref remote.Ref, d digest.Digest) bool {
	n := nameOf(ref)
	if closed, ok := h.closed.get(n); ok && closed {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	r, err := h.Upstream.Repository(ref, nil)
	if err != nil {
		return false
	}
	open := r.Gives(ctx, d)
	if ctx.Err() == nil {
		h.closed.put(n, !open)
	}
	return open
}

// authorize returns nil if as can read the origin of im by the name of ref, otherwise the error of
// upstream. A name from which the image was resolved without credentials of a caller is open to
// everybody.
func (h *Handler) authorize(ctx context.Context, im store.Image, ref remote.Ref, as caller) error {
	n := nameOf(ref)
	if h.isReadable(im, n, as) {
		return nil
	}
	if f, _ := h.Archive(ref); f != nil {
		return fmt.Errorf("%s: no such image was resolved by this name: %w", n, errdefs.ErrNotFound)
	}
	ask := remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: tagOf(im, n), Digest: im.Origin.Digest}
	private, err := h.upstream(ctx, ref, as, func(ctx context.Context, r *remote.Repository) error {
		m, _, err := resolve.Tag(ctx, r, ask)
		if err == nil && m.Unconfirmed {
			err = errUnconfirmed(ask)
		}
		return err
	})
	if err != nil {
		return err
	}
	if private && as.given {
		h.secrets().Keep(n.String(), as.creds)
	}
	h.readable.put(accessKey{n, im.Origin.Digest, as}, true)
	return nil
}

// isReadable reports whether authorize has nothing to ask.
func (h *Handler) isReadable(im store.Image, n name, as caller) bool {
	if isPublic(im, n) {
		return true
	}
	ok, _ := h.readable.get(accessKey{n, im.Origin.Digest, as})
	return ok
}

// maxOwners limits the images with a blob for which the registry of a caller is asked whether it may read them:
// strangers can make images with the documents of others.
const maxOwners = 4

// nearest sorts images by what the caller has to do with them: those that it may read, as far as that is known, those
// that were resolved by its reference, and others, the last used first.
func (h *Handler) nearest(images []store.Image, ref remote.Ref, as caller) []store.Image {
	n, far := nameOf(ref), map[digest.Digest]int{}
	for _, im := range images {
		switch {
		case h.isReadable(im, n, as):
		case resolvedFrom(im, n):
			far[im.Manifest] = 1
		default:
			far[im.Manifest] = 2
		}
	}
	slices.SortStableFunc(images, func(a, b store.Image) int {
		return cmp.Or(cmp.Compare(far[a.Manifest], far[b.Manifest]), b.Used.Compare(a.Used))
	})
	return images
}

// resolvedRefs returns the references that im was resolved from.
func resolvedRefs(im store.Image) (refs []remote.Ref) {
	for _, s := range im.Refs {
		if ref, err := remote.ParseRef(s); err == nil {
			refs = append(refs, ref)
		}
	}
	return refs
}

// resolvedFrom reports whether im was resolved from the name n.
func resolvedFrom(im store.Image, n name) bool {
	return slices.ContainsFunc(resolvedRefs(im), func(ref remote.Ref) bool { return ref.URL == "" && nameOf(ref) == n })
}

// isPublic reports whether im was resolved from the name n without credentials of a caller.
func isPublic(im store.Image, n name) bool {
	return resolvedFrom(im, n) && !slices.Contains(im.PrivateNames, n.String())
}

// tagOf returns a tag from which im was resolved in a repository, or "".
func tagOf(im store.Image, n name) string {
	for _, ref := range resolvedRefs(im) {
		if nameOf(ref) == n && ref.Digest == "" {
			return ref.Tag
		}
	}
	return ""
}

// Names returns the names (remote.Ref.Name) that an image was resolved from, by any caller.
func Names(im store.Image) []string {
	var names []string
	for _, ref := range resolvedRefs(im) {
		if !slices.Contains(names, ref.Name()) {
			names = append(names, ref.Name())
		}
	}
	return names
}

// Sources returns the sources of the blobs of an image that is pulled by names (remote.Ref.Name):
// the repositories or archives of these names, in order. It does not use other names that the image
// was resolved from, since any caller can add those. A repository comes with the credentials that
// callers gave for it, if any, and then without, because credentials can expire. The image can be
// the zero value if it is unknown. A name that cannot be used is left out and logged.
func (h *Handler) Sources(im store.Image, names ...string) []transfer.Source {
	return h.sources(im, names, h.givers)
}

// NodeSources is Sources for the node itself: it uses the node's credentials instead of those of
// callers, unless the image was resolved without credentials.
func (h *Handler) NodeSources(im store.Image, names ...string) []transfer.Source {
	return h.sources(im, names, h.asNode(im))
}

// asNode returns the viewers for the node itself: anonymous if im was resolved from the repository
// without credentials.
func (h *Handler) asNode(im store.Image) func(name) []viewer {
	return func(n name) []viewer {
		if isPublic(im, n) {
			return []viewer{{}}
		}
		return []viewer{{caller{node: true}, "node"}, {}}
	}
}

// A viewer is a caller with a label for its sources.
type viewer struct {
	caller
	label string // of transfer.Source.CredentialsID
}

// givers returns the callers that gave credentials for a repository, most recent first, followed by
// the anonymous one.
func (h *Handler) givers(n name) []viewer {
	var l []viewer
	for _, s := range h.secrets().Of(n.String()) {
		l = append(l, viewer{with(s.Credentials), fmt.Sprintf("pull secret %d", s.ID)})
	}
	return append(l, viewer{})
}

// sources returns the sources of names, for each viewer that viewers returns for the repository.
func (h *Handler) sources(im store.Image, names []string, viewers func(name) []viewer) []transfer.Source {
	var out []transfer.Source
	for _, n := range names {
		refs, err := refsOf(im, n)
		switch {
		case err != nil:
			h.log().Warn("source left out", "ref", n, "digest", im.Manifest, "err", err)
		case formats.All().Get(im.Origin.Format).Archives != nil && !im.Ahead:
			out = append(out, h.archiveSources(im, refs, viewers)...)
		default:
			if err := h.tellHost(im, refs[0]); err != nil {
				h.log().Warn("files of the model are unknown to its host", "ref", n, "digest", im.Manifest, "err", err)
			}
			for _, s := range h.sites(refs, viewers) {
				out = append(out, s.source(s.repo))
			}
		}
	}
	return out
}

// tellHost tells a host that is not a registry, and is stateless, which files an image has.
func (h *Handler) tellHost(im store.Image, ref remote.Ref) error {
	if im.Table == "" || im.Ahead {
		return nil
	}
	_, err := h.Upstream.Remind(ref, func() ([]byte, error) {
		docs, err := h.documents(im)
		return docs.Manifest, err
	})
	return err
}

// refsOf returns the references with a name from which im was resolved, or a reference with only
// the name.
func refsOf(im store.Image, name string) (refs []remote.Ref, err error) {
	refs = slices.DeleteFunc(resolvedRefs(im), func(ref remote.Ref) bool { return ref.Name() != name })
	if len(refs) > 0 {
		return refs, nil
	}
	if ref, err := remote.ParseRef(name); err == nil && ref.URL != "" {
		return []remote.Ref{ref}, nil
	}
	host, repository, _ := strings.Cut(name, "/")
	ref, err := remote.NewRef(host, repository, "latest")
	ref.Tag = ""
	return []remote.Ref{ref}, err
}

// A site is a repository as seen by a viewer.
type site struct {
	ref    remote.Ref
	viewer viewer
	repo   *remote.Repository
}

// source returns f as a source with the name of the site.
func (s site) source(f transfer.Fetcher) transfer.Source {
	return transfer.Source{Name: s.ref.Name(), CredentialsID: s.viewer.label, Fetcher: f}
}

// sites returns the repositories of refs. Tags and digests of refs are ignored and can be empty.
func (h *Handler) sites(refs []remote.Ref, viewers func(name) []viewer) []site {
	var l []site
	seen := map[name]bool{}
	for _, ref := range refs {
		if seen[nameOf(ref)] {
			continue
		}
		seen[nameOf(ref)] = true
		for _, v := range viewers(nameOf(ref)) {
			r, err := v.repository(h.Upstream, ref)
			if err != nil {
				h.log().Warn("repository skipped", "ref", ref.Name(), "err", err)
				break
			}
			l = append(l, site{ref, v, r})
		}
	}
	return l
}

// image returns the image whose manifest has digest d, or errdefs.ErrNotFound.
func (h *Handler) image(d digest.Digest) (store.Image, error) {
	im, err := h.Store.Catalog.Image(d)
	if err != nil {
		return store.Image{}, err
	}
	if !h.complete(im) {
		return store.Image{}, errdefs.ErrNotFound
	}
	return im, nil
}

// mayKnow reports whether the documents of im were read by the name n, or are public by another one. Those of any
// other image are not given by n, not even to who can read the manifest of the origin there: the repository must have
// them, too.
func mayKnow(im store.Image, n name) bool {
	return resolvedFrom(im, n) || slices.ContainsFunc(Names(im), func(n string) bool { return !slices.Contains(im.PrivateNames, n) })
}

// imageOf is image for the digest of ref, if the name of ref may know it.
func (h *Handler) imageOf(ref remote.Ref) (store.Image, error) {
	im, err := h.image(ref.Digest)
	if err == nil && !mayKnow(im, nameOf(ref)) {
		return store.Image{}, errdefs.ErrNotFound
	}
	return im, err
}

// complete reports whether the documents of im are here. They are kept with the image, but damaged ones may have been
// moved away.
func (h *Handler) complete(im store.Image) bool { return h.Store.Has(im.Documents()...) }
