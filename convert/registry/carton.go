package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/carton"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ConvertURL converts the carton at a URL, or returns the image it was converted to before, and
// records it as "carton+" and the URL, but for its query (remote.Ref.Name). Its origin is the model hash.
func (h *Handler) ConvertURL(ctx context.Context, address string) (store.Image, error) {
	ref, err := remote.ParseRef("carton+" + address)
	if err != nil {
		return store.Image{}, err
	}
	h.cartons.remember(ref)
	if address, err = h.cartons.url(ref); err != nil {
		return store.Image{}, err
	}
	return h.convertCarton(ctx, address, source{ref: ref.Name()})
}

// convertNamed converts the carton that a reference stands for. There is nothing to find by
// digest: that of a carton is refused with the digest to pin, any other is not there.
func (h *Handler) convertNamed(ctx context.Context, ref remote.Ref, address string) (store.Image, error) {
	if ref.Digest == "" {
		return h.convertCarton(ctx, address, source{ref: recordedRef(ref), name: nameOf(ref).String()})
	}
	images, err := h.Store.ImagesByOrigin(ctx, ref.Digest)
	if err != nil {
		return store.Image{}, err
	}
	for _, im := range images {
		if resolvedFrom(im, nameOf(ref)) {
			return store.Image{}, &PinError{Name: ref.Name(), Origin: ref.Digest, Converted: im.Manifest, Reason: "it is the carton at a URL"}
		}
	}
	return store.Image{}, fmt.Errorf("%s: cartons at URLs have tags, and digests only once they were converted: %w", ref, errdefs.ErrNotFound)
}

// convertCarton converts the carton at a URL.
func (h *Handler) convertCarton(ctx context.Context, address string, src source) (store.Image, error) {
	im, err := h.alone(ctx, "carton "+address, func() {}, func(ctx context.Context) (store.Image, error) {
		c, err := h.cartons.get(ctx, cartonKey{place: address}, h.urlOpener(address, ""), anyHash, true)
		if err != nil {
			return store.Image{}, err
		}
		defer h.cartons.release(c)
		if im, err := h.image(ctx, c.converted); err == nil {
			return im, nil
		}
		// Not by origin: the sizes are those of this archive, which need not be right.
		model, err := c.carton.Model(ctx)
		if err != nil {
			return store.Image{}, err
		}
		im, err := h.make(ctx, model, src)
		c.converted = im.Manifest
		return im, err
	})
	if err != nil {
		name, _, _ := strings.Cut(src.ref, "?")
		return store.Image{}, fmt.Errorf("%s: %w", name, err)
	}
	return h.used(ctx, im, src)
}

// urlOpener returns a function that opens the carton at a URL, which must have the hash if it is not
// empty.
func (h *Handler) urlOpener(address string, hash digest.Digest) opener {
	return func(ctx context.Context) (*carton.Carton, error) {
		o := h.Carton
		o.Hash = hash
		src, err := carton.OpenURL(ctx, address, o)
		if err != nil {
			return nil, err
		}
		c, err := carton.Open(ctx, src, o)
		if _, ok := errors.AsType[*verify.Error](err); ok {
			return nil, fmt.Errorf("the carton at the URL is not the one it was: %w: %w", err, errdefs.ErrNotFound)
		}
		return c, err
	}
}

// layerOpener returns a function that opens the carton that is a layer of an artifact.
func (h *Handler) layerOpener(s site, artifact remote.Ref) opener {
	return func(ctx context.Context) (*carton.Carton, error) {
		served, err := s.repo.Resolve(ctx, artifact)
		if err != nil {
			return nil, err
		}
		m, err := convert.ParseManifest(served.Bytes)
		if err != nil {
			return nil, err
		}
		i, ok := m.CartonLayer()
		if !ok {
			return nil, fmt.Errorf("manifest %s has no carton: %w", m.Digest, errdefs.ErrNotFound)
		}
		o := h.Carton
		o.Hash = ""
		return carton.Open(ctx, carton.Blob(s.repo, m.Layers[i].Digest, m.Layers[i].Size), o)
	}
}

// cartonSources returns the cartons that have the files of im.
func (h *Handler) cartonSources(im store.Image, refs []remote.Ref, who func(name) []viewer) []transfer.Source {
	var l []transfer.Source
	var inRegistries []remote.Ref
	for _, ref := range refs {
		address, ok := h.CartonURL(ref)
		if !ok {
			inRegistries = append(inRegistries, ref)
			continue
		}
		if ref.Hidden() {
			var err error
			if address, err = h.cartons.url(ref); err != nil {
				h.log().Warn("carton left out", "ref", ref.Name(), "err", err)
				continue
			}
		}
		l = append(l, transfer.Source{Name: ref.Name(), Fetcher: &cartonFetcher{
			h: h, key: cartonKey{place: address}, open: h.urlOpener(address, im.Origin.Digest),
			fits: func(c *carton.Carton) bool { return c.Hash() == im.Origin.Digest },
		}})
	}
	for _, s := range h.sites(inRegistries, who) {
		artifact := remote.Ref{Host: s.ref.Host, Repository: s.ref.Repository, Tag: tagOf(im, nameOf(s.ref)), Digest: im.Origin.Digest}
		l = append(l, s.source(&cartonFetcher{
			h: h, key: cartonKey{place: s.ref.Name() + "@" + im.Origin.Digest.String(), who: s.who.key()},
			open: h.layerOpener(s, artifact), fits: anyHash,
		}))
	}
	return l
}

// A cartonFetcher is the Fetcher of a carton that is opened when it is needed.
type cartonFetcher struct {
	h    *Handler
	key  cartonKey
	open opener
	fits func(*carton.Carton) bool
}

// Fetch returns a range of a file of the carton.
func (f *cartonFetcher) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	c, err := f.h.cartons.get(ctx, f.key, f.open, f.fits, false)
	if err != nil {
		return nil, 0, transfer.Foreign(ctx, err)
	}
	body, start, err := c.fetcher.Fetch(ctx, d, size, off, n)
	if err != nil {
		f.h.cartons.release(c)
		return nil, 0, err
	}
	return &cartonBody{ReadCloser: body, release: func() { f.h.cartons.release(c) }}, start, nil
}

// A cartonBody keeps its carton open.
type cartonBody struct {
	io.ReadCloser
	release func() // nil: done
}

// Private implements transfer.Body.
func (b *cartonBody) Private() bool { return transfer.IsPrivate(b.ReadCloser) }

// Close closes the body.
func (b *cartonBody) Close() error {
	err := b.ReadCloser.Close()
	if b.release != nil {
		b.release()
		b.release = nil
	}
	return err
}

// member returns the blob of im with digest d if it is a file of a carton: no registry has it.
func (h *Handler) member(ctx context.Context, im store.Image, d digest.Digest) (filetable.Blob, bool) {
	if im.Origin.Format != string(mediatype.FormatCarton) || im.Table == "" || madeAhead(im) {
		return filetable.Blob{}, false
	}
	t, err := h.Store.Table(ctx, im.Table)
	if err != nil {
		return filetable.Blob{}, false // found out when the table itself is asked for
	}
	for _, b := range t.Blobs {
		if b.Digest == d {
			return b, true
		}
	}
	return filetable.Blob{}, false
}

// serveMember answers with a file of a carton: the object, or what the carton has by the name that
// is asked for, which is not verified; who asks for a digest does that.
func (h *Handler) serveMember(w http.ResponseWriter, r *http.Request, im store.Image, ref remote.Ref, b filetable.Blob) error {
	if f, err := h.Store.OpenObject(b.Digest); err == nil {
		defer f.Close()
		serveContent(w, r, octets, b.Digest, f)
		return nil
	}
	var body io.ReadCloser
	var off int64
	err := fmt.Errorf("blob %s: %w", b.Digest, errdefs.ErrNotFound)
	fetchers := h.Sources(im, ref.Name())
	if r.Method == http.MethodHead {
		fetchers, err = nil, nil
	}
	var from transfer.Source
	for _, from = range fetchers {
		if body, off, err = from.Fetch(r.Context(), b.Digest, b.Size, 0, b.Size); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", octets)
	w.Header().Set("Content-Length", strconv.FormatInt(b.Size, 10))
	w.Header().Set("Docker-Content-Digest", b.Digest.String())
	w.WriteHeader(http.StatusOK)
	if body == nil {
		return nil
	}
	for done := off; ; {
		n, err := io.Copy(w, body)
		body.Close()
		if done += n; err == nil && done == b.Size {
			return nil
		}
		if err == nil && n > 0 { // a body may end early
			if body, off, err = from.Fetch(r.Context(), b.Digest, b.Size, done, b.Size-done); err == nil && off == done {
				continue
			}
		}
		h.log().Debug("blob ended early", "digest", b.Digest, "bytes", done, "err", err)
		panic(http.ErrAbortHandler) // the status is sent; only the connection can tell
	}
}

// anyHash takes any carton.
func anyHash(*carton.Carton) bool { return true }
