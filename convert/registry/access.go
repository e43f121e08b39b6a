package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxCredentials is for how many repositories credentials of callers are kept.
const maxCredentials = 1024

// Credentials returns the credentials that a caller gave for a repository last, of those that
// worked; nil if there are none.
func (h *Handler) Credentials(host, repository string) *remote.Credentials {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, ok := h.creds[name{host, repository}]
	if !ok {
		return nil
	}
	return &c
}

func (h *Handler) keepCredentials(n name, c remote.Credentials) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.creds == nil {
		h.creds = map[name]remote.Credentials{}
	}
	if len(h.creds) >= maxCredentials {
		for other := range h.creds {
			delete(h.creds, other)
			break
		}
	}
	h.creds[n] = c
}

// forgetCredentials forgets the credentials of callers for a repository that can be read without.
func (h *Handler) forgetCredentials(n name) {
	h.mu.Lock()
	delete(h.creds, n)
	h.mu.Unlock()
	h.closed.drop(n)
}

// upstream calls f with the repository of ref: first without the credentials of the caller,
// and if that fails with them. Where they were needed a moment ago it is the other way round. It
// reports whether they were needed.
func (h *Handler) upstream(ctx context.Context, ref remote.Ref, who caller, f func(*remote.Repository) error) (private bool, err error) {
	n := nameOf(ref)
	closed, _ := h.closed.get(n)
	tries := []*remote.Credentials{nil}
	switch {
	case who.creds != nil && closed:
		tries = []*remote.Credentials{who.creds, nil}
	case who.creds != nil:
		tries = []*remote.Credentials{nil, who.creds}
	}
	for _, creds := range tries {
		var r *remote.Repository
		if r, err = h.Upstream.Repository(ref, creds); err != nil {
			return false, err
		}
		err = f(r)
		switch {
		case err == nil && creds == nil:
			h.forgetCredentials(n)
			return false, nil
		case err == nil:
			h.closed.put(n, true)
			h.keepCredentials(n, *creds)
			return true, nil
		case ctx.Err() != nil, creds != nil && !errdefs.IsUnauthorized(err) && !errdefs.IsPermissionDenied(err):
			return false, err
		}
	}
	return false, err
}

// authorize returns nil if who can read the origin of im by the name of ref, else the error
// of upstream. Everybody can by a name that it was resolved from without credentials of a caller.
func (h *Handler) authorize(ctx context.Context, im store.Image, ref remote.Ref, who caller) error {
	n := nameOf(ref)
	known := resolvedFrom(im, n)
	if known && !slices.Contains(im.PrivateNames, n.String()) {
		return nil
	}
	if _, ok := h.cartonURL(ref); ok {
		return fmt.Errorf("%s: no such image was resolved by this name: %w", n, errdefs.ErrNotFound)
	}
	key := verdictKey{n, im.Origin.Digest, who.key()}
	if ok, _ := h.readable.get(key); ok {
		return nil
	}
	ask := remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: tagOf(im, n), Digest: im.Origin.Digest}
	_, err := h.upstream(ctx, ref, who, func(r *remote.Repository) error {
		_, _, err := manifest(ctx, r, ask)
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
	var out []transfer.Source
	for _, n := range names {
		refs, err := refsOf(im, n)
		switch {
		case err != nil:
			h.log().Warn("source left out", "ref", n, "digest", im.Manifest, "err", err)
		case im.Origin.Format == string(mediatype.FormatCarton) && !madeAhead(im):
			out = append(out, h.cartonSources(im, refs)...)
		default:
			out = append(out, h.repositories(refs)...)
		}
	}
	return out
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

// repositories returns the repositories of refs as sources. The tags and digests of refs do not
// matter and can be empty.
func (h *Handler) repositories(refs []remote.Ref) []transfer.Source {
	var l []transfer.Source
	for _, s := range h.sites(refs) {
		l = append(l, s.source(s.repo))
	}
	return l
}

// A site is a repository as someone sees it.
type site struct {
	ref  remote.Ref
	who  caller
	repo *remote.Repository
}

// source returns what f brings from the site as a source.
func (s site) source(f transfer.Fetcher) transfer.Source {
	out := transfer.Source{Name: s.ref.Name(), Fetcher: f}
	if s.who.creds != nil {
		out.Who = "pull secret"
	}
	return out
}

// sites returns what repositories returns.
func (h *Handler) sites(refs []remote.Ref) []site {
	var l []site
	seen := map[name]bool{}
	for _, ref := range refs {
		if seen[nameOf(ref)] {
			continue
		}
		seen[nameOf(ref)] = true
		callers := []caller{{}}
		if c := h.Credentials(ref.Host, ref.Repository); c != nil {
			callers = []caller{{c}, {}}
		}
		for _, who := range callers {
			r, err := h.Upstream.Repository(ref, who.creds)
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
