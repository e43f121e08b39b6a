package registry

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/span"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// conversionTime limits a conversion. It reads small blobs and headers of archives, and from a
// server without ranges whole archives.
const conversionTime = 30 * time.Minute

// usedTime is the precision of the recorded last use of an image. Each record is a write.
const usedTime = time.Minute

// An origin is a manifest upstream with how it was read.
type origin struct {
	*resolve.Origin
	private bool // read with credentials of the caller
	given   bool // these came with the request
	held    bool // read by the digest that Hold gave for the tag
}

// A source is a reference that an image was resolved from.
type source struct {
	ref     string // as in store.Image.Refs
	name    string // "host/repository", or empty
	private bool   // read with credentials of the caller
	given   bool   // these came with the request
}

func (o *origin) source() source {
	ref := o.Ref
	if o.held {
		ref.Digest = ""
	}
	return source{ref: ref.Recorded(), name: nameOf(ref).String(), private: o.private, given: o.given}
}

// Restore recreates the missing documents of a known image by one of its references, as the node
// itself or, if that fails, with the credentials that callers gave for it. It does not check
// signatures. It returns errdefs.ErrNotFound if the reference now names another image.
func (h *Handler) Restore(ctx context.Context, ref remote.Ref, im store.Image) error {
	_, err := h.convertRef(ctx, ref)
	for _, s := range h.secrets().Of(ref.Name()) {
		if !errdefs.IsUnauthorized(err) && !errdefs.IsPermissionDenied(err) {
			break
		}
		_, err = h.convertAs(ctx, ref, with(s.Credentials))
	}
	if err == nil && !h.complete(im) {
		err = fmt.Errorf("%s now names another image than %s; pull the model again, or remove this image with \"ballast rm\": %w", ref.Name(), im.Manifest, errdefs.ErrNotFound)
	}
	return err
}

// Convert resolves ref and converts it, or returns the image it was converted to before. It uses
// the credentials of the node. The digest of an image made here returns that image. For an index of
// models it returns the image for this machine.
//
// It returns convert.ErrNotModel if ref is not a model, a *signature.Refusal if a signature rule
// refuses it, and otherwise the errors of remote.Repository and of the parsers.
func (h *Handler) Convert(ctx context.Context, ref remote.Ref) (store.Image, error) {
	im, err := h.convertRef(ctx, ref)
	return h.converted(ctx, ref, im, err, h.asNode(im))
}

// ConvertAs is Convert with the credentials of a caller, as for a pull. Sources has them afterwards.
func (h *Handler) ConvertAs(ctx context.Context, ref remote.Ref, creds remote.Credentials) (store.Image, error) {
	im, err := h.convertAs(ctx, ref, with(creds))
	return h.converted(ctx, ref, im, err, h.givers)
}

// converted ends a conversion with its image or error: it checks the signatures, counts, and returns the image for
// this machine.
func (h *Handler) converted(ctx context.Context, ref remote.Ref, im store.Image, err error, viewers func(name) []viewer) (store.Image, error) {
	if err == nil {
		_, err = h.admit(ctx, ref, im, viewers)
	}
	if err == nil {
		im, err = h.ForHere(im)
	}
	if h.count(err); err != nil {
		return store.Image{}, err
	}
	return im, nil
}

// ServedToAll returns nil if a pull of im by ref is served without credentials, otherwise the error of the registry.
func (h *Handler) ServedToAll(ctx context.Context, ref remote.Ref, im store.Image) error {
	return h.authorize(ctx, im, ref, caller{})
}

// convertRef is Convert without the signature check. It returns an index as such.
func (h *Handler) convertRef(ctx context.Context, ref remote.Ref) (store.Image, error) {
	if ref.URL != "" {
		return h.convertURL(ctx, ref)
	}
	return h.convertAs(ctx, ref, caller{node: true})
}

func (h *Handler) convertAs(ctx context.Context, ref remote.Ref, as caller) (store.Image, error) {
	ctx, done, err := h.room(ctx, &h.requests, ref.Host)
	if err != nil {
		return store.Image{}, err
	}
	defer done()
	ref, held := h.held(ref)
	if im, err := h.imageOf(ref); err == nil && !held {
		return im, h.authorize(ctx, im, ref, as)
	}
	if f, address := h.Archive(ref); f != nil {
		return h.convertNamed(ctx, ref, f, address)
	}
	o, err := h.resolve(ctx, ref, as)
	if o.held = held; ref.Digest != "" && !held && errdefs.IsNotFound(err) {
		return h.find(ctx, ref, as)
	}
	if im, ok := h.imported(ctx, ref, as, err); ok {
		return im, nil
	}
	if err != nil {
		return store.Image{}, err
	}
	return h.convertAny(ctx, o, as)
}

// convertAny returns the image of a manifest: of a model or an index of models, which it converts if
// needed, or of one that was converted before it was pushed. It returns convert.ErrNotModel for any
// other manifest.
func (h *Handler) convertAny(ctx context.Context, o *origin, as caller) (store.Image, error) {
	switch {
	case o.Ahead():
		return h.adopt(ctx, o, as)
	case o.Format == mediatype.FormatIndex:
		return h.convertIndex(ctx, o, as)
	case o.Format == mediatype.FormatImage:
		return store.Image{}, fmt.Errorf("%s: %w", o.Ref, convert.ErrNotModel)
	}
	return h.convert(ctx, o, as)
}

// ForHere returns im or, if im is an index, the image that containerd takes on this machine. It returns
// errdefs.ErrNotFound if that is not a model.
func (h *Handler) ForHere(im store.Image) (store.Image, error) {
	if im.Table != "" {
		return im, nil
	}
	p, err := h.manifest(im)
	if err != nil {
		return store.Image{}, err
	}
	index, err := convert.ParseManifest(p)
	if err != nil {
		return store.Image{}, err
	}
	here, err := resolve.Entries(index)
	if err != nil {
		return store.Image{}, err
	}
	err = errdefs.ErrNotFound
	if len(here) > 0 {
		im, err = h.image(here[0].Digest)
	}
	if errdefs.IsNotFound(err) { // the entry is not a model
		err = fmt.Errorf("index %s has no model for linux/%s: %w", index.Digest, runtime.GOARCH, errdefs.ErrNotFound)
	}
	return im, err
}

// resolve reads the manifest of ref from upstream and classifies it.
func (h *Handler) resolve(ctx context.Context, ref remote.Ref, as caller) (_ *origin, err error) {
	ctx, end := span.Start(ctx, span.Resolve, span.Ref(ref.Recorded()))
	defer func() { end(err) }()
	var o origin
	o.private, err = h.upstream(ctx, ref, as, func(ctx context.Context, r *remote.Repository) (err error) {
		o.Origin, err = resolve.Read(ctx, r, ref)
		switch {
		case err != nil:
			return err
		case o.Served.Unconfirmed && o.Format != mediatype.FormatImage && !h.knownPublic(&o):
			return errUnconfirmed(ref)
		}
		return nil
	})
	if err != nil {
		return &o, err
	}
	if o.private && h.Upstream.IsRegistry(ref.Host) && h.isOpen(ctx, ref, o.Served.Digest) {
		o.private = false
	}
	o.given = o.private && as.given
	switch {
	case o.given:
		h.secrets().Keep(nameOf(ref).String(), as.creds)
	case !o.private && !o.Served.Unconfirmed:
		h.secrets().Forget(nameOf(ref).String()) // credentials that are not needed can expire unnoticed
	}
	if h.wantsTitled(&o, as) {
		o.AsFiles()
	}
	return &o, nil
}

// knownPublic reports whether o is a model that everybody may have by its name.
func (h *Handler) knownPublic(o *origin) bool {
	im, err := h.Store.Catalog.Image(o.Served.Digest) // converted before it was pushed
	if err != nil {
		key, kerr := h.Key(o.Origin)
		if kerr != nil {
			return false
		}
		return slices.ContainsFunc(h.madeFrom(key), func(im store.Image) bool { return isPublic(im, nameOf(o.Ref)) })
	}
	return isPublic(im, nameOf(o.Ref))
}

func errUnconfirmed(ref remote.Ref) error {
	return fmt.Errorf("%s: a mirror has it, but %s does not answer whether the caller may have it; if the registry is never to be asked, list it in upstream.mirror_only: %w", ref, ref.Host, errdefs.ErrUnavailable)
}

// wantsTitled reports whether to convert an artifact as the model that it may be: if the node
// itself requests it, as for a prefetch, if it was converted before for that reason, or if there is
// a rule for its repository.
func (h *Handler) wantsTitled(o *origin, as caller) bool {
	f := o.Wanted()
	switch {
	case f == "":
		return false
	case as.node, h.WantsTitled(o.Origin):
		return true
	}
	_, err := h.Store.Catalog.ImageByOrigin(h.KeyAs(o.Origin, f))
	return err == nil
}

// A flightKey identifies a shared conversion: requests for the same origin at the same place with the
// same credentials share one. Requests to other places do not wait for a stalling registry.
type flightKey struct {
	origin filetable.Origin
	place  string // "host/repository", or a URL
	caller caller
}

func (o *origin) flight(key filetable.Origin, as caller) flightKey {
	return flightKey{key, nameOf(o.Ref).String(), as}
}

// convert returns the image of a model, converting it if needed. A conversion continues if the
// caller goes away.
func (h *Handler) convert(ctx context.Context, o *origin, as caller) (store.Image, error) {
	im, key, err := h.known(o)
	if err == nil || !errdefs.IsNotFound(err) {
		return im, err
	}
	im, err = h.shared(ctx, o, key, as, func(ctx context.Context) (im store.Image, err error) {
		ctx, end := span.Start(ctx, span.Convert, span.Ref(o.Ref.Recorded()))
		defer func() { end(err) }()
		model, err := h.model(ctx, o, as)
		if err != nil {
			return store.Image{}, err
		}
		return h.makeImage(model, o.source())
	})
	if err != nil {
		return store.Image{}, err
	}
	return h.used(im, o.source())
}

// madeFrom returns the images that were converted from an origin: several if a registry lied about what nothing
// verifies, such as the headers of a tar.
func (h *Handler) madeFrom(key filetable.Origin) []store.Image {
	return slices.DeleteFunc(h.Store.Catalog.ImagesByOrigin(key.Digest), func(im store.Image) bool { return im.Origin != key })
}

// known returns the image to which a model was converted before, or errdefs.ErrNotFound. Headers of tars and
// tensors that are not verified, and archives, which are never compared with the digest of their layer, count only for
// the name that they were read by: another registry can have lied. So do private images: another repository must have
// the documents, and not only the manifest.
func (h *Handler) known(o *origin) (store.Image, filetable.Origin, error) {
	key, err := h.Key(o.Origin)
	if err != nil {
		return store.Image{}, key, err
	}
	for _, im := range h.madeFrom(key) {
		if !h.complete(im) {
			continue
		}
		verified, err := h.Store.HeadersVerified(im.Table)
		verified = verified && !o.IsArchive()
		if err == nil && (verified && mayKnow(im, nameOf(o.Ref)) || resolvedFrom(im, nameOf(o.Ref))) {
			im, err = h.used(im, o.source())
			return im, key, err
		}
	}
	return store.Image{}, key, errdefs.ErrNotFound
}

// shared is alone for an origin. If the manifest passes unchanged, it reads the forgotten documents
// again.
func (h *Handler) shared(ctx context.Context, o *origin, key filetable.Origin, as caller, f func(context.Context) (store.Image, error)) (store.Image, error) {
	im, err := h.alone(ctx, o.flight(key, as), o.Forget, f)
	if o.Manifest == nil && (errors.Is(err, convert.ErrNotModel) || err == nil && im.Ahead) {
		again, rerr := h.resolve(ctx, o.Ref, as)
		if rerr != nil {
			return store.Image{}, rerr
		}
		again.held = o.held
		*o = *again
	}
	return im, err
}

// A flight is a conversion that several requests wait for.
type flight struct {
	done chan struct{} // closed when the following fields are set
	im   store.Image
	err  error
}

// alone calls f once for all concurrent callers with the same key. f continues if they go away. A
// caller that waits for the f of another calls forget to drop its documents and gives back their
// memory; with a nil forget it keeps both.
func (h *Handler) alone(ctx context.Context, key flightKey, forget func(), f func(context.Context) (store.Image, error)) (store.Image, error) {
	h.mu.Lock()
	fl, joined := h.flights[key]
	if !joined {
		if h.flights == nil {
			h.flights = map[flightKey]*flight{}
		}
		fl = &flight{done: make(chan struct{})}
		h.flights[key] = fl
		free := keep(ctx)
		go func() {
			defer free()
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), conversionTime)
			defer cancel()
			fl.im, fl.err = f(ctx)
			h.mu.Lock()
			delete(h.flights, key)
			h.mu.Unlock()
			close(fl.done)
		}()
	}
	h.mu.Unlock()
	if joined && forget != nil {
		forget()
		rest(ctx)
	}
	select {
	case <-ctx.Done():
		return store.Image{}, ctx.Err()
	case <-fl.done:
		return fl.im, fl.err
	}
}

// makeImage converts a model to an image and records it.
func (h *Handler) makeImage(model *convert.Model, src source) (store.Image, error) {
	start := time.Now()
	host, _, _ := strings.Cut(src.ref, "/")
	if err := h.Store.TrimImages(host); err != nil {
		return store.Image{}, err
	}
	built, err := image.Build(model)
	if err != nil {
		return store.Image{}, err
	}
	im, err := h.record(store.Image{
		Manifest: built.Digest,
		Config:   built.ConfigDigest,
		Table:    built.TableDigest,
		Origin:   model.Table.Origin,
		Size:     tableSize(&model.Table),
	}, src, built.Manifest, built.Config, built.Table)
	if err != nil {
		return store.Image{}, err
	}
	name, _, _ := strings.Cut(src.ref, "?") // the query may be a signature
	h.log().Info("model converted", "ref", name, "format", im.Origin.Format, "origin", im.Origin.Digest,
		"digest", im.Manifest, "bytes", im.Size, "dur", time.Since(start))
	return im, nil
}

// manifest returns the manifest of an image.
func (h *Handler) manifest(im store.Image) ([]byte, error) {
	if p, ok := h.built.get(im.Manifest); ok {
		return p, nil
	}
	p, err := h.Store.ReadDocument(im, im.Manifest, convert.MaxManifestSize)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", im.Manifest, err)
	}
	return p, nil
}

// used records that im was resolved from src.
func (h *Handler) used(im store.Image, src source) (store.Image, error) {
	private := slices.Contains(im.PrivateNames, src.name)
	read := !src.given || time.Since(im.Read[src.name]) < usedTime
	if slices.Contains(im.Refs, src.ref) && private == src.private && read && time.Since(im.Used) < usedTime {
		return im, nil
	}
	return h.record(im, src)
}

// record stores that im was resolved from src, and whether and with whose credentials. Other names do
// not change. documents are those of im that may be missing, with the manifest first, which is cached: containerd
// requests it next.
func (h *Handler) record(im store.Image, src source, documents ...[]byte) (store.Image, error) {
	im.Refs, im.PrivateNames, im.Read = []string{src.ref}, nil, nil
	if src.private {
		im.PrivateNames = []string{src.name}
	}
	if src.given {
		im.Read = map[string]time.Time{src.name: time.Now()}
	}
	if err := h.Store.PutImage(im, documents...); err != nil {
		return store.Image{}, err
	}
	if len(documents) > 0 && len(documents[0]) <= maxRecent {
		h.built.put(im.Manifest, documents[0])
	}
	now, err := h.Store.Catalog.Image(im.Manifest)
	if err != nil || src.private || !slices.Contains(now.PrivateNames, src.name) {
		return now, err
	}
	if err := h.Store.Catalog.SetPublic(im.Manifest, src.name); err != nil {
		return store.Image{}, err
	}
	return h.Store.Catalog.Image(im.Manifest)
}

// tableSize returns the total size of the files of t, in bytes. Archives whose files are unknown
// count with their own size.
func tableSize(t *filetable.Table) int64 {
	var n int64
	opaque := map[digest.Digest]bool{}
	for _, u := range t.Unpacks {
		opaque[u.Blob] = true
	}
	for _, f := range t.Files {
		n += f.Size
	}
	for _, b := range t.Blobs {
		if opaque[b.Digest] {
			n += b.Size
		}
	}
	return n
}
