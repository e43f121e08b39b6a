package registry

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// maxRecent is the largest cached manifest, in bytes.
const maxRecent = 256 << 10

// octets is the media type of blobs.
const octets = "application/octet-stream"

// An answer is a manifest to send.
type answer struct {
	bytes     []byte
	digest    digest.Digest
	mediaType string
}

func (h *Handler) serveManifest(w http.ResponseWriter, r *http.Request, ref remote.Ref, as caller) error {
	ctx, done, err := h.room(r.Context(), &h.requests, ref.Host)
	if err != nil {
		return err
	}
	defer done()
	if r.Header.Get("Authorization") != "" { // the caller has given what it has, or said that it has nothing
		ctx = remote.WithPatience(ctx, func(host string, until time.Time) {
			if host != "" {
				h.log().Info("waits for the limit of a registry", "ref", ref.String(), "host", host, "until", until)
			}
		})
	}
	var a answer
	if ref.Digest != "" {
		a, err = h.byDigest(ctx, ref, as)
	} else {
		a, err = h.byTag(ctx, ref, as)
	}
	if err != nil {
		return err
	}
	serveContent(w, r, a.mediaType, a.digest, bytes.NewReader(a.bytes))
	return nil
}

// byTag answers a tag: a model converted, everything else unchanged.
func (h *Handler) byTag(ctx context.Context, ref remote.Ref, as caller) (answer, error) {
	if f, address := h.Archive(ref); f != nil {
		im, err := h.convertNamed(ctx, ref, f, address)
		if err != nil {
			return answer{}, err
		}
		return h.ours(ctx, ref, im)
	}
	tag := ref
	ref, held := h.held(ref)
	o, err := h.resolve(ctx, ref, as)
	o.held = held
	if im, ok := h.imported(ctx, ref, as, err); ok {
		return h.ours(ctx, tag, im)
	}
	if err != nil {
		return answer{}, err
	}
	ahead := o.Ahead() // a conversion can drop the documents of o
	im, err := h.convertAny(ctx, o, as)
	switch {
	case errors.Is(err, convert.ErrNotModel):
		if err := h.admitBytes(ctx, o); err != nil {
			return answer{}, err
		}
		h.remember(o.Origin, as)
		return pass(o.Origin), nil
	case err != nil:
		return answer{}, err
	case ahead && (im.Manifest == o.Served.Digest || h.signedBytes(ctx, o)):
		return h.asItCame(ctx, o, im, as)
	}
	return h.ours(ctx, tag, im)
}

// byDigest answers a digest: a manifest converted here, or an upstream manifest that is not a model
// or can be mounted in its original form.
func (h *Handler) byDigest(ctx context.Context, ref remote.Ref, as caller) (answer, error) {
	im, err := h.imageOf(ref)
	if err == nil {
		if err := h.authorize(ctx, im, ref, as); err != nil {
			return answer{}, err
		}
		return h.ours(ctx, ref, im)
	}
	if !errdefs.IsNotFound(err) {
		return answer{}, err
	}
	if f, address := h.Archive(ref); f != nil {
		_, err := h.convertNamed(ctx, ref, f, address)
		return answer{}, err
	}
	if m, ok := h.recent.get(accessKey{nameOf(ref), ref.Digest, as}); ok {
		if o, err := resolve.Of(ref, m); err == nil {
			return pass(o), nil
		}
	}
	o, err := h.resolve(ctx, ref, as)
	if errdefs.IsNotFound(err) {
		if im, err = h.find(ctx, ref, as); err == nil {
			return h.ours(ctx, ref, im)
		}
	}
	if im, ok := h.imported(ctx, ref, as, err); ok {
		return answer{}, &PinError{Name: ref.Name(), Origin: ref.Digest, Converted: im.Manifest, Reason: "its registry does not answer"}
	}
	if err != nil {
		return answer{}, err
	}
	ahead := o.Ahead()
	im, err = h.convertAny(ctx, o, as)
	switch {
	case errors.Is(err, convert.ErrNotModel), err == nil && im.Ahead && im.Table == "":
		// containerd reads manifests without a model by digest from upstream itself
		h.remember(o.Origin, as)
		return pass(o.Origin), nil
	case err != nil:
		return answer{}, err
	case ahead:
		return h.asItCame(ctx, o, im, as)
	}
	return h.unconverted(ctx, o, im, as)
}

// asItCame answers with the bytes of an image that was converted before it was pushed, if the signature rules allow
// it. im is the image that ballast builds from its documents: if that is another one, or has more than a model, the
// rules must allow the bytes as well.
func (h *Handler) asItCame(ctx context.Context, o *origin, im store.Image, as caller) (answer, error) {
	if im.Manifest != o.Served.Digest {
		if err := h.admitBytes(ctx, o); err != nil {
			return answer{}, err
		}
	}
	pending, err := h.admit(ctx, o.Ref, im, h.givers, o.Served.Digest)
	if err == nil {
		err = h.notShown(ctx, pending)
	}
	if err != nil {
		return answer{}, err
	}
	h.remember(o.Origin, as)
	return pass(o.Origin), nil
}

// ours answers with a manifest converted here, if the signature rules allow it.
func (h *Handler) ours(ctx context.Context, ref remote.Ref, im store.Image) (answer, error) {
	pending, err := h.admit(ctx, ref, im, h.givers)
	if err != nil {
		return answer{}, err
	}
	if h.Pulled != nil {
		if model, err := h.ForHere(im); err == nil { // an index may have no model for this machine
			h.Pulled(ctx, model)
		}
	}
	if err := h.notShown(ctx, pending); err != nil {
		return answer{}, err
	}
	p, err := h.manifest(im)
	if err != nil {
		return answer{}, err
	}
	switch {
	case im.Ahead: // the bytes name their type
		o, err := resolve.Of(ref, remote.Manifest{Bytes: p, Digest: im.Manifest})
		if err != nil {
			return answer{}, err
		}
		return pass(o), nil
	case im.Table == "":
		return answer{p, im.Manifest, mediatype.OCIIndex}, nil
	}
	return answer{p, im.Manifest, mediatype.OCIManifest}, nil
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

// remember caches a manifest that passed: containerd requests it again by digest.
func (h *Handler) remember(o *resolve.Origin, as caller) {
	if len(o.Served.Bytes) <= maxRecent {
		h.recent.put(accessKey{nameOf(o.Ref), o.Served.Digest, as}, o.Served)
	}
}

func (h *Handler) serveBlob(w http.ResponseWriter, r *http.Request, ref remote.Ref, as caller) error {
	ctx := r.Context()
	var denied error
	tries := maxOwners
	for _, im := range h.nearest(h.Store.Catalog.ImagesWith(ref.Digest), ref, as) {
		ours := im.Config == ref.Digest || im.Table == ref.Digest
		if !ours && !hasMembers(im) || !mayKnow(im, nameOf(ref)) {
			continue
		}
		if tries--; tries < 0 {
			break
		}
		member, isMember := h.member(im, ref.Digest)
		if !ours && !isMember {
			continue
		}
		if err := h.authorize(ctx, im, ref, as); err != nil {
			denied = cmp.Or(denied, err)
			continue
		}
		if !ours {
			return h.serveMember(w, r, im, ref, member)
		}
		f, err := h.Store.OpenDocument(im, ref.Digest)
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
	if f, _ := h.Archive(ref); f != nil {
		return &refusal{status: http.StatusNotFound, code: codeBlobUnknown, text: fmt.Sprintf("no %s that was resolved by this name has the blob", f.Name)}
	}
	if r.Header.Get(HeaderNext) != "" && h.Upstream.Direct(ref.Host) {
		return &refusal{status: http.StatusNotFound, code: codeBlobUnknown, text: "the blob is not made here; " + ref.Host + " has it"}
	}
	return h.proxyBlob(w, r, ref, as)
}

// proxyBlob streams a blob of upstream. It is not verified here: clients that ask for a digest
// verify it.
func (h *Handler) proxyBlob(w http.ResponseWriter, r *http.Request, ref remote.Ref, as caller) error {
	ranges := r.Header.Get("Range")
	if strings.Contains(ranges, ",") {
		ranges = "" // several ranges need a multipart response; the whole blob is also a valid one
	}
	var resp *http.Response
	_, err := h.upstream(r.Context(), ref, as, func(ctx context.Context, repo *remote.Repository) (err error) {
		resp, err = repo.Blob(ctx, ref.Digest, ranges)
		return err
	})
	if err != nil {
		if errdefs.IsNotFound(err) {
			return &refusal{http.StatusNotFound, codeBlobUnknown, err.Error(), err}
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
		panic(http.ErrAbortHandler) // the status has been sent; only closing the connection reports the error
	}
	return nil
}

// serveContent answers GET, HEAD and range requests for content with digest d.
func serveContent(w http.ResponseWriter, r *http.Request, mediaType string, d digest.Digest, content io.ReadSeeker) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Etag", `"`+d.String()+`"`)
	http.ServeContent(w, r, "", time.Time{}, content)
}
