package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxRecent is the largest manifest that is remembered, in bytes.
const maxRecent = 256 << 10

// octets is the type of a blob.
const octets = "application/octet-stream"

// An answer is a manifest to send.
type answer struct {
	bytes     []byte
	digest    digest.Digest
	mediaType string
}

func (h *Handler) serveManifest(w http.ResponseWriter, r *http.Request, ref remote.Ref, who caller) error {
	ctx, done, err := h.room(r.Context(), &h.requests, ref.Host)
	if err != nil {
		return err
	}
	defer done()
	var a answer
	if ref.Digest != "" {
		if a, err = h.byDigest(ctx, ref, who); err != nil && isFinal(err) {
			err = &finalError{err}
		}
	} else {
		a, err = h.byTag(ctx, ref, who)
	}
	if err != nil {
		return err
	}
	serveContent(w, r, a.mediaType, a.digest, bytes.NewReader(a.bytes))
	return nil
}

// byTag answers a tag: a model converted, everything else as it is.
func (h *Handler) byTag(ctx context.Context, ref remote.Ref, who caller) (answer, error) {
	if address, ok := h.CartonURL(ref); ok {
		im, err := h.convertNamed(ctx, ref, address)
		if err != nil {
			return answer{}, err
		}
		return h.ours(ctx, ref, im)
	}
	o, err := h.resolve(ctx, ref, who)
	if err != nil {
		return answer{}, err
	}
	im, err := h.convertAny(ctx, o, who)
	if errors.Is(err, convert.ErrNotModel) {
		if err := h.admitOther(ctx, o); err != nil {
			return answer{}, err
		}
		h.remember(o.Origin, who)
		return pass(o.Origin), nil
	}
	if err != nil {
		return answer{}, err
	}
	return h.ours(ctx, ref, im)
}

// byDigest answers a digest: a manifest made here, or one upstream that is no model, or a model that can be
// mounted as it is.
func (h *Handler) byDigest(ctx context.Context, ref remote.Ref, who caller) (answer, error) {
	im, err := h.image(ctx, ref.Digest)
	if err == nil {
		if err := h.authorize(ctx, im, ref, who); err != nil {
			return answer{}, err
		}
		return h.ours(ctx, ref, im)
	}
	if !errdefs.IsNotFound(err) {
		return answer{}, err
	}
	if address, ok := h.CartonURL(ref); ok {
		_, err := h.convertNamed(ctx, ref, address)
		return answer{}, err
	}
	if m, ok := h.recent.get(recentKey{nameOf(ref), ref.Digest, who.key()}); ok {
		if o, err := resolve.Of(ref, m); err == nil {
			return pass(o), nil
		}
	}
	o, err := h.resolve(ctx, ref, who)
	if errdefs.IsNotFound(err) {
		if im, err = h.find(ctx, ref, who); err == nil {
			return h.ours(ctx, ref, im)
		}
	}
	if err != nil {
		return answer{}, err
	}
	im, err = h.convertAny(ctx, o, who)
	switch {
	case errors.Is(err, convert.ErrNotModel):
		if o.Ahead() { // by digest containerd gets what is no model without us
			if err := h.admitOther(ctx, o); err != nil {
				return answer{}, err
			}
		}
		h.remember(o.Origin, who)
		return pass(o.Origin), nil
	case err != nil:
		return answer{}, err
	}
	return h.asItIs(ctx, o, im, who)
}

// convertAny converts a model or an index of models.
func (h *Handler) convertAny(ctx context.Context, o *origin, who caller) (store.Image, error) {
	switch o.Format {
	case mediatype.FormatImage:
		if o.Ahead() { // containerd gets it as it is; it is known here from then on
			if _, err := h.adopt(ctx, o, who); err != nil {
				h.log().WarnContext(ctx, "image that was converted ahead of time is not listed", "ref", o.Ref.String(), "err", err)
			}
		}
		return store.Image{}, convert.ErrNotModel
	case mediatype.FormatIndex:
		im, err := h.convertIndex(ctx, o, who)
		if err == nil && madeAhead(im) {
			err = convert.ErrNotModel
		}
		return im, err
	}
	return h.convert(ctx, o, who)
}

// ours answers with a manifest made here, if its signatures are as they should be.
func (h *Handler) ours(ctx context.Context, ref remote.Ref, im store.Image) (answer, error) {
	pending, err := h.admit(ctx, ref, im, h.givers)
	if err != nil {
		return answer{}, err
	}
	if h.Pulled != nil {
		if model, err := h.forHere(ctx, im); err == nil { // an index can have none
			h.Pulled(ctx, model)
		}
	}
	if err := h.notShown(ctx, pending); err != nil {
		return answer{}, err
	}
	p, err := h.manifest(ctx, im)
	if err != nil {
		return answer{}, err
	}
	a := answer{bytes: p, digest: im.Manifest, mediaType: image.MediaType}
	if im.Table == "" {
		a.mediaType = image.IndexMediaType
	}
	return a, nil
}

// pass answers with a manifest of upstream, byte for byte.
func pass(o *resolve.Origin) answer {
	a := answer{bytes: o.Served.Bytes, digest: o.Served.Digest, mediaType: o.Manifest.MediaType}
	switch {
	case a.mediaType != "":
	case mediatype.IsIndex(o.Served.ContentType) == o.Manifest.IsIndex && (mediatype.IsIndex(o.Served.ContentType) || mediatype.IsManifest(o.Served.ContentType)):
		a.mediaType = o.Served.ContentType
	case o.Manifest.IsIndex:
		a.mediaType = mediatype.OCIIndex
	case mediatype.Base(o.Manifest.Config.MediaType) == mediatype.DockerConfig:
		a.mediaType = mediatype.DockerManifest
	default:
		a.mediaType = mediatype.OCIManifest
	}
	return a
}

// remember keeps a manifest that passed: containerd asks for it again, by digest.
func (h *Handler) remember(o *resolve.Origin, who caller) {
	if len(o.Served.Bytes) <= maxRecent {
		h.recent.put(recentKey{nameOf(o.Ref), o.Served.Digest, who.key()}, o.Served)
	}
}

func (h *Handler) serveBlob(w http.ResponseWriter, r *http.Request, ref remote.Ref, who caller) error {
	ctx := r.Context()
	images, err := h.Store.ImagesWith(ctx, ref.Digest)
	if err != nil {
		return err
	}
	var denied error
	for _, im := range images {
		ours := im.Config == ref.Digest || im.Table == ref.Digest
		member, isMember := h.member(ctx, im, ref.Digest)
		if !ours && !isMember {
			continue
		}
		if denied = h.authorize(ctx, im, ref, who); denied != nil {
			continue
		}
		if !ours {
			return h.serveMember(w, r, im, ref, member)
		}
		f, err := h.Store.OpenObject(ref.Digest)
		if err != nil {
			return err
		}
		defer f.Close()
		serveContent(w, r, octets, ref.Digest, f)
		return nil
	}
	if denied != nil {
		return denied
	}
	if _, ok := h.CartonURL(ref); ok {
		return &refusal{http.StatusNotFound, codeBlobUnknown, "no carton that was resolved by this name has the blob"}
	}
	if r.Header.Get(HeaderNext) != "" && h.Upstream.Direct(ref.Host) {
		return &refusal{http.StatusNotFound, codeBlobUnknown, "the blob is not made here; " + ref.Host + " has it"}
	}
	return h.proxyBlob(w, r, ref, who)
}

// proxyBlob streams a blob of upstream. It is not verified here: who asks for a digest does
// that.
func (h *Handler) proxyBlob(w http.ResponseWriter, r *http.Request, ref remote.Ref, who caller) error {
	ranges := r.Header.Get("Range")
	if strings.Contains(ranges, ",") {
		ranges = "" // several ranges come in a type of their own; all is a valid answer too
	}
	var resp *http.Response
	_, err := h.upstream(r.Context(), ref, who, func(repo *remote.Repository) (err error) {
		resp, err = repo.Blob(r.Context(), ref.Digest, ranges)
		return err
	})
	if err != nil {
		if errdefs.IsNotFound(err) {
			return &refusal{http.StatusNotFound, codeBlobUnknown, err.Error()}
		}
		return err
	}
	defer resp.Body.Close()
	for _, k := range []string{"Content-Length", "Content-Range", "Accept-Ranges"} {
		if v := resp.Header.Get(k); v != "" {
			w.Header().Set(k, v)
		}
	}
	w.Header().Set("Content-Type", octets)
	w.Header().Set("Docker-Content-Digest", ref.Digest.String())
	w.WriteHeader(resp.StatusCode)
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		h.log().Debug("blob ended early", "ref", ref.String(), "err", err)
		panic(http.ErrAbortHandler) // the status is sent; only the connection can tell
	}
	return nil
}

// serveContent answers GET, HEAD and ranges of content with digest d.
func serveContent(w http.ResponseWriter, r *http.Request, mediaType string, d digest.Digest, content io.ReadSeeker) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Etag", `"`+d.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, content)
}
