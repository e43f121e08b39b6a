package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// convertURL converts the archive at a URL, or returns the image it was converted to before, and
// records the image under the URL without its query (remote.Ref.Name). The origin is the identity
// that the archive declares.
func (h *Handler) convertURL(ctx context.Context, ref remote.Ref) (store.Image, error) {
	h.archives.remember(ref)
	f, address, err := h.archives.whole(&h.Resolver, ref)
	if err != nil {
		return store.Image{}, err
	}
	return h.convertArchive(ctx, f, address, source{ref: ref.Name()})
}

// convertNamed converts the archive that a reference names. No archive is found by digest: the digest
// of an archive is refused with an error that names the digest to pin, and any other digest is not
// found.
func (h *Handler) convertNamed(ctx context.Context, ref remote.Ref, f *format.Format, address string) (store.Image, error) {
	if ref.Digest == "" {
		return h.convertArchive(ctx, f, address, source{ref: ref.Recorded(), name: nameOf(ref).String()})
	}
	images := h.Store.Catalog.ImagesByOrigin(ref.Digest)
	for _, im := range images {
		if resolvedFrom(im, nameOf(ref)) {
			return store.Image{}, &PinError{Name: ref.Name(), Origin: ref.Digest, Converted: im.Manifest, Reason: fmt.Sprintf("it is the %s at a URL", f.Name)}
		}
	}
	return store.Image{}, fmt.Errorf("%s: a %s at a URL has a tag, and a digest only once it was converted: %w", ref, f.Name, errdefs.ErrNotFound)
}

// convertArchive converts the archive at a URL.
func (h *Handler) convertArchive(ctx context.Context, f *format.Format, address string, src source) (store.Image, error) {
	prefix := h.PrefixOf(cmp.Or(src.name, src.ref))
	im, err := h.alone(ctx, flightKey{origin: filetable.Origin{Format: string(f.Name), Prefix: prefix}, place: address}, func() {}, func(ctx context.Context) (store.Image, error) {
		c, err := h.archives.get(ctx, archiveKey{place: address}, h.urlOpener(f, address, ""), "", true)
		if err != nil {
			return store.Image{}, err
		}
		defer h.archives.release(c)
		if was := c.converted.Load(); was != nil && was.Origin.Prefix == prefix {
			if im, err := h.image(was.Manifest); err == nil {
				return im, nil
			}
		}
		// The image is not looked up by its origin: the sizes are those of this archive, which may
		// be wrong.
		model, err := c.archive.Model(ctx)
		if err != nil {
			return store.Image{}, err
		}
		model.Table.Origin.Prefix = prefix
		im, err := h.makeImage(model, src)
		if err == nil {
			c.converted.Store(&im)
		}
		return im, err
	})
	if err != nil {
		name, _, _ := strings.Cut(src.ref, "?")
		return store.Image{}, fmt.Errorf("%s: %w", name, err)
	}
	return h.used(im, src)
}

// urlOpener returns a function that opens the archive at a URL. The archive must have the hash,
// unless that is empty.
func (h *Handler) urlOpener(f *format.Format, address string, hash digest.Digest) opener {
	return func(ctx context.Context) (format.Archive, error) {
		a, err := f.Archives.URL(ctx, h.Settings, address, hash)
		if _, ok := errors.AsType[*verify.Error](err); ok {
			return nil, fmt.Errorf("the %s at the URL has changed: %w: %w", f.Name, err, errdefs.ErrNotFound)
		}
		return a, err
	}
}

// model parses a model. An archive stays open, because its files are usually fetched next.
func (h *Handler) model(ctx context.Context, o *origin, as caller) (*convert.Model, error) {
	if !o.IsArchive() {
		return h.Model(ctx, o.Origin)
	}
	if !o.private {
		as = caller{}
	}
	open := func(ctx context.Context) (format.Archive, error) { return h.Layer(ctx, o.Origin, o.Repo) }
	c, err := h.archives.get(ctx, layerKey(o.Ref, o.Served.Digest, as), open, "", false)
	if err != nil {
		return nil, err
	}
	defer h.archives.release(c)
	return h.LayerModel(ctx, o.Origin, c.archive)
}

// layerKey returns the key of an archive that is a layer of an artifact.
func layerKey(ref remote.Ref, d digest.Digest, as caller) archiveKey {
	return archiveKey{place: ref.Name() + "@" + d.String(), caller: as}
}

// layerOpener returns a function that opens an archive that is a layer of an artifact.
func (h *Handler) layerOpener(s site, artifact remote.Ref) opener {
	return func(ctx context.Context) (format.Archive, error) {
		o, err := resolve.Read(ctx, s.repo, artifact)
		if err != nil {
			return nil, err
		}
		return h.Layer(ctx, o, s.repo)
	}
}

// archiveSources returns the archives with the files of im as sources.
func (h *Handler) archiveSources(im store.Image, refs []remote.Ref, viewers func(name) []viewer) []transfer.Source {
	var l []transfer.Source
	var inRegistries []remote.Ref
	for _, ref := range refs {
		f, address := h.Archive(ref)
		if f == nil {
			inRegistries = append(inRegistries, ref)
			continue
		}
		if ref.URL != "" {
			var err error
			if f, address, err = h.archives.whole(&h.Resolver, ref); err != nil {
				h.log().Warn("archive left out", "ref", ref.Name(), "err", err)
				continue
			}
		}
		l = append(l, transfer.Source{Name: ref.Name(), Fetcher: &archiveFetcher{
			h: h, key: archiveKey{place: address}, open: h.urlOpener(f, address, im.Origin.Digest),
			want: im.Origin.Digest,
		}})
	}
	for _, s := range h.sites(inRegistries, viewers) {
		artifact := remote.Ref{Host: s.ref.Host, Repository: s.ref.Repository, Tag: tagOf(im, nameOf(s.ref)), Digest: im.Origin.Digest}
		l = append(l, s.source(&archiveFetcher{
			h: h, key: layerKey(s.ref, im.Origin.Digest, s.viewer.caller),
			open: h.layerOpener(s, artifact),
		}))
	}
	return l
}

// An archiveFetcher fetches the files of an archive, which it opens when needed.
type archiveFetcher struct {
	h    *Handler
	key  archiveKey
	open opener
	want digest.Digest // the hash of the archive; empty means any
}

// Fetch returns a range of a file of the archive.
func (f *archiveFetcher) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	c, err := f.h.archives.get(ctx, f.key, f.open, f.want, false)
	if err != nil {
		return nil, 0, transfer.Foreign(ctx, err)
	}
	body, start, err := c.fetcher.Fetch(ctx, d, size, off, n)
	if err != nil {
		f.h.archives.release(c)
		return nil, 0, err
	}
	return &archiveBody{ReadCloser: body, release: func() { f.h.archives.release(c) }}, start, nil
}

// An archiveBody keeps its archive open until Close.
type archiveBody struct {
	io.ReadCloser
	release func() // nil after Close
}

// Private implements transfer.Body.
func (b *archiveBody) Private() bool { return transfer.IsPrivate(b.ReadCloser) }

// Close closes the body.
func (b *archiveBody) Close() error {
	err := b.ReadCloser.Close()
	if b.release != nil {
		b.release()
		b.release = nil
	}
	return err
}

// hasMembers reports whether files of an image may be served from its archives.
func hasMembers(im store.Image) bool {
	return formats.All().Get(im.Origin.Format).Archives != nil && im.Table != "" && !im.Ahead
}

// member returns the blob of im with digest d if it is a file of an archive, which no registry has.
func (h *Handler) member(im store.Image, d digest.Digest) (filetable.Blob, bool) {
	if !hasMembers(im) {
		return filetable.Blob{}, false
	}
	t, err := h.Store.Table(im.Table)
	if err != nil {
		return filetable.Blob{}, false // reported when the table itself is requested
	}
	for _, b := range t.Blobs {
		if b.Digest == d {
			return b, true
		}
	}
	return filetable.Blob{}, false
}

// serveMember answers with a file of an archive: from its object, if the requested name may have it, since anybody
// can write an archive that names the files of others, or from the archives of that name. The latter is not verified
// here: clients that ask for a digest verify it.
func (h *Handler) serveMember(w http.ResponseWriter, r *http.Request, im store.Image, ref remote.Ref, b filetable.Blob) error {
	if f, err := h.Store.OpenObject(b.Digest, []string{ref.Name()}); err == nil {
		defer f.Close()
		serveContent(w, r, octets, b.Digest, f)
		return nil
	}
	var body io.ReadCloser
	var off int64
	var err error
	from := transfer.Ask(h.Sources(im, ref.Name()), transfer.Once)
	for r.Method != http.MethodHead && from.Next(r.Context()) {
		body, off, err = from.Fetch(r.Context(), b.Digest, b.Size, 0, b.Size)
		from.Done(r.Context(), err)
	}
	if err := from.Err(); err != nil {
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
			if body, off, err = from.Fetch(r.Context(), b.Digest, b.Size, done, b.Size-done); err == nil {
				if off == done {
					continue
				}
				body.Close() // a stream, which starts at 0
			}
		}
		h.log().Debug("blob ended early", "digest", b.Digest, "bytes", done, "err", err)
		panic(http.ErrAbortHandler) // the status has been sent; only closing the connection reports the error
	}
}
