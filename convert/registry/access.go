package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// upstream calls f with the repository of ref: first without the credentials of who asks,
// and if that fails with them. Where they were needed a moment ago it is the other way round. It
// reports whether they were needed.
func (h *Handler) upstream(ctx context.Context, ref remote.Ref, who caller, f func(*remote.Repository) error) (private bool, err error) {
	n := nameOf(ref)
	closed, _ := h.closed.get(n)
	tries := []caller{{}}
	switch {
	case who.anonymous():
	case closed:
		tries = []caller{who, {}}
	default:
		tries = []caller{{}, who}
	}
	var refused error // of who asks, whatever is said to others
	for _, as := range tries {
		var r *remote.Repository
		if r, err = as.repository(h.Upstream, ref); err != nil {
			return false, err
		}
		err = f(r)
		switch {
		case err == nil && as.anonymous():
			h.secrets().Forget(n.String()) // those that are not needed can have expired
			h.closed.drop(n)
			return false, nil
		case err == nil:
			h.closed.put(n, true)
			if as.creds != nil {
				h.secrets().Keep(n.String(), *as.creds)
			}
			return true, nil
		case ctx.Err() != nil, !as.anonymous() && !errdefs.IsUnauthorized(err) && !errdefs.IsPermissionDenied(err):
			return false, err
		case !as.anonymous():
			refused = err
		}
	}
	return false, cmp.Or(refused, err)
}

// authorize returns nil if who can read the origin of im by the name of ref, else the error
// of upstream. Everybody can by a name that it was resolved from without credentials of a caller.
func (h *Handler) authorize(ctx context.Context, im store.Image, ref remote.Ref, who caller) error {
	n := nameOf(ref)
	known := resolvedFrom(im, n)
	if known && !slices.Contains(im.PrivateNames, n.String()) {
		return nil
	}
	if _, ok := h.CartonURL(ref); ok {
		return fmt.Errorf("%s: no such image was resolved by this name: %w", n, errdefs.ErrNotFound)
	}
	key := verdictKey{n, im.Origin.Digest, who.key()}
	if ok, _ := h.readable.get(key); ok {
		return nil
	}
	ask := remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: tagOf(im, n), Digest: im.Origin.Digest}
	_, err := h.upstream(ctx, ref, who, func(r *remote.Repository) error {
		_, _, err := resolve.Tag(ctx, r, ask)
		return err
	})
	if err != nil {
		return err
	}
	h.readable.put(key, true)
	return nil
}

// resolvedFrom reports whether im was resolved from a name.
func resolvedFrom(im store.Image, n name) bool {
	return slices.ContainsFunc(im.Refs, func(s string) bool {
		ref, err := remote.ParseRef(s)
		return err == nil && ref.URL == "" && nameOf(ref) == n
	})
}

// tagOf returns a tag that im had in a repository, or "".
func tagOf(im store.Image, n name) string {
	for _, s := range im.Refs {
		if ref, err := remote.ParseRef(s); err == nil && nameOf(ref) == n && ref.Digest == "" {
			return ref.Tag
		}
	}
	return ""
}

// Names returns the names (remote.Ref.Name) that an image was resolved from, by whomever.
func Names(im store.Image) []string {
	var names []string
	for _, s := range im.Refs {
		if ref, err := remote.ParseRef(s); err == nil && !slices.Contains(names, ref.Name()) {
			names = append(names, ref.Name())
		}
	}
	return names
}

// Sources returns where those can fetch the blobs of an image who pull it by names
// (remote.Ref.Name): the repositories, or the cartons, that these stand for, in that order, and
// no others that the image was resolved from: anybody can add to those. A repository comes with
// the credentials that callers gave for it, if there are any, and then without: these may have
// expired. The image can be the zero value, if it is not known. A name that can not be reached is
// left out and logged.
func (h *Handler) Sources(im store.Image, names ...string) []transfer.Source {
	return h.sources(im, names, h.givers)
}

// NodeSources is Sources for the node itself: with its own credentials in the place of those of callers,
// where the image was not got without.
func (h *Handler) NodeSources(im store.Image, names ...string) []transfer.Source {
	return h.sources(im, names, h.asNode(im))
}

// asNode returns as whom the node itself sees a repository: as anybody if im was got there so.
func (h *Handler) asNode(im store.Image) func(name) []viewer {
	return func(n name) []viewer {
		if resolvedFrom(im, n) && !slices.Contains(im.PrivateNames, n.String()) {
			return []viewer{{}}
		}
		return []viewer{{caller{node: true}, "node"}, {}}
	}
}

// A viewer is a caller as the fetching of blobs knows him.
type viewer struct {
	caller
	label string // of transfer.Source.Who
}

// givers returns those who gave credentials for a repository, the last one first, and then nobody.
func (h *Handler) givers(n name) []viewer {
	var l []viewer
	for _, s := range h.secrets().Of(n.String()) {
		l = append(l, viewer{caller{creds: &s.Credentials}, fmt.Sprintf("pull secret %d", s.ID)})
	}
	return append(l, viewer{})
}

// sources returns the sources that names stand for, as those see them that who returns for each repository.
func (h *Handler) sources(im store.Image, names []string, who func(name) []viewer) []transfer.Source {
	var out []transfer.Source
	for _, n := range names {
		refs, err := refsOf(im, n)
		switch {
		case err != nil:
			h.log().Warn("source left out", "ref", n, "digest", im.Manifest, "err", err)
		case im.Origin.Format == string(mediatype.FormatCarton) && !madeAhead(im):
			out = append(out, h.cartonSources(im, refs, who)...)
		default:
			if err := h.remind(im, refs[0]); err != nil {
				h.log().Warn("where the files of a model are is not known", "ref", n, "digest", im.Manifest, "err", err)
			}
			for _, s := range h.sites(refs, who) {
				out = append(out, s.source(s.repo))
			}
		}
	}
	return out
}

// remind tells a host that is no registry, and keeps nothing, which files an image has.
func (h *Handler) remind(im store.Image, ref remote.Ref) error {
	if im.Table == "" || madeAhead(im) {
		return nil
	}
	_, err := h.Upstream.Remind(ref, func() ([]byte, error) {
		docs, err := h.documents(context.Background(), im)
		return docs.Manifest, err
	})
	return err
}

// refsOf returns the references by which im was resolved from a name, or one that has only the name.
func refsOf(im store.Image, name string) (refs []remote.Ref, err error) {
	for _, s := range im.Refs {
		if ref, err := remote.ParseRef(s); err == nil && ref.Name() == name {
			refs = append(refs, ref)
		}
	}
	if len(refs) > 0 {
		return refs, nil
	}
	if strings.HasPrefix(name, "carton+") {
		ref, err := remote.ParseRef(name)
		return []remote.Ref{ref}, err
	}
	host, repository, _ := strings.Cut(name, "/")
	ref, err := remote.NewRef(host, repository, "latest")
	ref.Tag = ""
	return []remote.Ref{ref}, err
}

// A site is a repository as someone sees it.
type site struct {
	ref  remote.Ref
	who  viewer
	repo *remote.Repository
}

// source returns what f brings from the site as a source.
func (s site) source(f transfer.Fetcher) transfer.Source {
	return transfer.Source{Name: s.ref.Name(), Who: s.who.label, Fetcher: f}
}

// sites returns the repositories of refs, of which the tags and digests do not matter and can be empty.
func (h *Handler) sites(refs []remote.Ref, who func(name) []viewer) []site {
	var l []site
	seen := map[name]bool{}
	for _, ref := range refs {
		if seen[nameOf(ref)] {
			continue
		}
		seen[nameOf(ref)] = true
		for _, who := range who(nameOf(ref)) {
			r, err := who.repository(h.Upstream, ref)
			if err != nil {
				h.log().Warn("repository left out", "ref", ref.Name(), "err", err)
				break
			}
			l = append(l, site{ref, who, r})
		}
	}
	return l
}

// image returns the image whose manifest has digest d, or errdefs.ErrNotFound.
func (h *Handler) image(ctx context.Context, d digest.Digest) (store.Image, error) {
	im, err := h.Store.Image(ctx, d)
	if err != nil {
		return store.Image{}, err
	}
	if !h.whole(im) {
		return store.Image{}, errdefs.ErrNotFound
	}
	return im, nil
}

// whole reports whether the objects of im are there. They are kept with the image, but can
// have been moved out of the way by a check that found them damaged.
func (h *Handler) whole(im store.Image) bool {
	for _, d := range []digest.Digest{im.Manifest, im.Config, im.Table} {
		if d == "" {
			continue // an index
		}
		f, err := h.Store.OpenObject(d)
		if err != nil {
			return false
		}
		f.Close()
	}
	return true
}
