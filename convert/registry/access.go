package registry

import (
	"context"
	"maps"
	"slices"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
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

// upstream calls f with the repository of ref: first without the credentials of the caller,
// and if that fails with them. It reports whether they were needed.
func (h *Handler) upstream(ctx context.Context, ref remote.Ref, who caller, f func(*remote.Repository) error) (private bool, err error) {
	n := nameOf(ref)
	closed, _ := h.closed.get(n)
	if who.creds == nil || !closed {
		r, err := h.Upstream.Repository(ref, nil)
		if err != nil {
			return false, err
		}
		if err = f(r); err == nil || who.creds == nil || ctx.Err() != nil {
			return false, err
		}
	}
	r, err := h.Upstream.Repository(ref, who.creds)
	if err != nil {
		return false, err
	}
	if err := f(r); err != nil {
		return false, err
	}
	h.closed.put(n, true)
	h.keepCredentials(n, *who.creds)
	return true, nil
}

// authorize returns nil if who can read the origin of im by the name of ref, else the error
// of upstream.
func (h *Handler) authorize(ctx context.Context, im store.Image, ref remote.Ref, who caller) error {
	if !im.Private {
		return nil
	}
	key := verdictKey{nameOf(ref), im.Origin.Digest, who.key()}
	if ok, _ := h.readable.get(key); ok {
		return nil
	}
	ask := remote.Ref{Host: ref.Host, Repository: ref.Repository, Tag: tagOf(im, nameOf(ref)), Digest: im.Origin.Digest}
	_, err := h.upstream(ctx, ref, who, func(r *remote.Repository) error {
		_, err := r.Resolve(ctx, ask)
		return err
	})
	if err != nil {
		return err
	}
	h.readable.put(key, true)
	return nil
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

// Fetchers returns where the blobs of an image can be fetched: the repositories that it was
// resolved from, with the credentials that callers gave for them.
func (h *Handler) Fetchers(im store.Image) []store.Fetcher {
	var refs []remote.Ref
	for _, s := range im.Refs {
		ref, err := remote.ParseRef(s)
		if err != nil {
			h.log().Warn("reference of an image is not understood", "ref", s, "digest", im.Manifest, "err", err)
			continue
		}
		refs = append(refs, ref)
	}
	return h.Repositories(refs)
}

// Repositories returns the repositories of refs, each once, with the credentials that callers
// gave for them. The tags and digests of refs do not matter and can be empty. A repository
// that can not be reached by its hosts.toml is left out and logged.
func (h *Handler) Repositories(refs []remote.Ref) []store.Fetcher {
	names := map[name]int{}
	for i, ref := range refs {
		if _, ok := names[nameOf(ref)]; !ok {
			names[nameOf(ref)] = i
		}
	}
	var l []store.Fetcher
	for _, i := range slices.Sorted(maps.Values(names)) {
		ref := refs[i]
		r, err := h.Upstream.Repository(ref, h.Credentials(ref.Host, ref.Repository))
		if err != nil {
			h.log().Warn("repository left out", "ref", ref.Name(), "err", err)
			continue
		}
		l = append(l, r)
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
