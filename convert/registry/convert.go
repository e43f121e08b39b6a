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
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// conversionTime is how long a conversion can take. It reads small blobs and the headers of
// archives; from a server without ranges it reads archives whole.
const conversionTime = 30 * time.Minute

// usedTime is how exactly the last use of an image is recorded. Each record is a write.
const usedTime = time.Minute

// An origin is a manifest upstream, and how it was found.
type origin struct {
	*resolve.Origin
	private bool // it needed credentials of the caller
}

// A source is what an image was resolved from.
type source struct {
	ref     string // as in store.Image.Refs
	name    string // "host/repository", or empty
	private bool   // it needed credentials of the caller
}

func (o *origin) source() source {
	return source{ref: recordedRef(o.Ref), name: nameOf(o.Ref).String(), private: o.private}
}

// Restore makes the documents of an image that is known and has lost them again, by one of its references: if
// the node itself can not read that, with the credentials that callers gave for it. No signature is looked
// at. It returns errdefs.ErrNotFound if the reference stands for another image now.
func (h *Handler) Restore(ctx context.Context, ref remote.Ref, im store.Image) error {
	_, err := h.convertRef(ctx, ref)
	for _, s := range h.secrets().Of(ref.Name()) {
		if !errdefs.IsUnauthorized(err) && !errdefs.IsPermissionDenied(err) {
			break
		}
		_, err = h.convertAs(ctx, ref, caller{creds: &s.Credentials})
	}
	if err == nil && !h.whole(im) {
		err = fmt.Errorf("%s stands for another image than %s now; pull the model by it, or remove this one with \"ballast rm\": %w", ref.Name(), im.Manifest, errdefs.ErrNotFound)
	}
	return err
}

// Convert resolves ref and converts it, or returns the image it was converted to before. It asks as
// the node itself, with the credentials of the node. It returns
// convert.ErrNotModel for what is not a model, a *signature.Refusal for one that is not signed as it should be,
// and otherwise the errors of remote.Repository and of the parsers. Of an index of models it returns the
// image for this machine. The digest of an image made here gives that image.
func (h *Handler) Convert(ctx context.Context, ref remote.Ref) (im store.Image, err error) {
	defer func() { h.count(err) }()
	if im, err = h.convertRef(ctx, ref); err != nil {
		return store.Image{}, err
	}
	if _, err := h.admit(ctx, ref, im, h.asNode(im)); err != nil {
		return store.Image{}, err
	}
	return h.forHere(ctx, im)
}

// convertRef is Convert without a look at signatures, and returns an index as it is.
func (h *Handler) convertRef(ctx context.Context, ref remote.Ref) (store.Image, error) {
	if ref.URL != "" {
		return h.ConvertURL(ctx, ref.URL)
	}
	return h.convertAs(ctx, ref, caller{node: true})
}

func (h *Handler) convertAs(ctx context.Context, ref remote.Ref, who caller) (store.Image, error) {
	ctx, done, err := h.room(ctx, &h.requests, ref.Host)
	if err != nil {
		return store.Image{}, err
	}
	defer done()
	if im, err := h.image(ctx, ref.Digest); err == nil {
		return im, h.authorize(ctx, im, ref, who)
	}
	if address, ok := h.CartonURL(ref); ok {
		return h.convertNamed(ctx, ref, address)
	}
	o, err := h.resolve(ctx, ref, who)
	if ref.Digest != "" && errdefs.IsNotFound(err) {
		return h.find(ctx, ref, who)
	}
	if err != nil {
		return store.Image{}, err
	}
	switch o.Format {
	case mediatype.FormatImage:
		if o.Ahead() {
			return h.adopt(ctx, o, who)
		}
		return store.Image{}, fmt.Errorf("%s: %w", ref, convert.ErrNotModel)
	case mediatype.FormatIndex:
		return h.convertIndex(ctx, o, who)
	}
	return h.convert(ctx, o, who)
}

// forHere returns im, or the image for this machine if im is an index.
func (h *Handler) forHere(ctx context.Context, im store.Image) (store.Image, error) {
	if im.Table != "" {
		return im, nil
	}
	p, err := h.manifest(ctx, im)
	if err != nil {
		return store.Image{}, err
	}
	index, err := convert.ParseManifest(p)
	if err != nil {
		return store.Image{}, err
	}
	for _, d := range index.Manifests {
		if p := d.Platform; p == nil || p.OS != "linux" || p.Architecture != runtime.GOARCH {
			continue
		}
		child, err := h.image(ctx, d.Digest)
		if errdefs.IsNotFound(err) {
			continue // no model
		}
		return child, err
	}
	return store.Image{}, fmt.Errorf("index %s has no model for linux/%s: %w", im.Manifest, runtime.GOARCH, errdefs.ErrNotFound)
}

// resolve gets what ref names from upstream and says what it is.
func (h *Handler) resolve(ctx context.Context, ref remote.Ref, who caller) (*origin, error) {
	var o origin
	var err error
	o.private, err = h.upstream(ctx, ref, who, func(r *remote.Repository) error {
		o.Origin, err = resolve.Read(ctx, r, ref)
		return err
	})
	return &o, err
}

// flightKey is the key of a conversion that several wait for: they ask for the same with the same
// credentials at the same place. Who asks elsewhere does not wait for a registry that stalls.
func flightKey(key filetable.Origin, o *origin, who caller) string {
	s := fmt.Sprintf("%s %s %s", key.Format, key.Digest, nameOf(o.Ref))
	switch {
	case who.node:
		s += " node"
	case who.creds != nil:
		s += fmt.Sprintf(" %q %q", who.creds.Username, who.creds.Secret)
	}
	return s
}

// convert returns the image that a model was converted to, converting it if it was not yet. A
// conversion does not end with the caller.
func (h *Handler) convert(ctx context.Context, o *origin, who caller) (store.Image, error) {
	im, key, err := h.known(ctx, o)
	if err == nil || !errdefs.IsNotFound(err) {
		return im, err
	}
	im, err = h.shared(ctx, o, key, who, func(ctx context.Context) (store.Image, error) {
		model, err := h.Model(ctx, o.Origin)
		if err != nil {
			return store.Image{}, err
		}
		return h.make(ctx, model, o.source())
	})
	if err != nil {
		return store.Image{}, err
	}
	return h.used(ctx, im, o.source())
}

// known returns the image that a model was converted to before. It returns errdefs.ErrNotFound if it was not.
func (h *Handler) known(ctx context.Context, o *origin) (store.Image, filetable.Origin, error) {
	key, err := h.Key(o.Origin)
	if err != nil {
		return store.Image{}, key, err
	}
	im, err := h.Store.ImageByOrigin(ctx, key)
	if err == nil && !h.whole(im) {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return store.Image{}, key, err
	}
	im, err = h.used(ctx, im, o.source())
	return im, key, err
}

// shared is alone for an origin. What passes unchanged needs its documents after all, and gets them again.
func (h *Handler) shared(ctx context.Context, o *origin, key filetable.Origin, who caller, f func(context.Context) (store.Image, error)) (store.Image, error) {
	im, err := h.alone(ctx, flightKey(key, o, who), o.Forget, f)
	if o.Manifest == nil && (errors.Is(err, convert.ErrNotModel) || err == nil && madeAhead(im)) {
		again, rerr := h.resolve(ctx, o.Ref, who)
		if rerr != nil {
			return store.Image{}, rerr
		}
		*o = *again
	}
	return im, err
}

// A flight is a conversion that several wait for.
type flight struct {
	done chan struct{} // closed when it has ended, and what follows is set
	im   store.Image
	err  error
}

// alone calls f, but once for all who wait with one key. It goes on when they go. Who waits for the f of
// another forgets his documents, and gives back their memory; with a nil forget he keeps both.
func (h *Handler) alone(ctx context.Context, key string, forget func(), f func(context.Context) (store.Image, error)) (store.Image, error) {
	h.mu.Lock()
	fl, joined := h.flights[key]
	if !joined {
		if h.flights == nil {
			h.flights = map[string]*flight{}
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

// make makes the image of a model.
func (h *Handler) make(ctx context.Context, model *convert.Model, src source) (store.Image, error) {
	start := time.Now()
	host, _, _ := strings.Cut(src.ref, "/")
	if err := h.Store.TrimImages(ctx, host); err != nil {
		return store.Image{}, err
	}
	built, err := image.Build(model)
	if err != nil {
		return store.Image{}, err
	}
	if _, err := h.Store.PutBytes(ctx, built.Config); err != nil {
		return store.Image{}, err
	}
	if _, err := h.Store.PutTable(ctx, built.Table); err != nil {
		return store.Image{}, err
	}
	if err := h.putManifest(ctx, built.Manifest, built.Digest); err != nil {
		return store.Image{}, err
	}
	im, err := h.record(ctx, store.Image{
		Manifest: built.Digest,
		Config:   built.ConfigDigest,
		Table:    built.TableDigest,
		Origin:   model.Table.Origin,
		Size:     tableSize(&model.Table),
	}, src)
	if err != nil {
		return store.Image{}, err
	}
	name, _, _ := strings.Cut(src.ref, "?") // a URL can be signed
	h.log().Info("model converted", "ref", name, "format", im.Origin.Format, "origin", im.Origin.Digest,
		"digest", im.Manifest, "bytes", im.Size, "dur", time.Since(start))
	return im, nil
}

// putManifest stores a manifest, and keeps it at hand: it is asked for next.
func (h *Handler) putManifest(ctx context.Context, p []byte, d digest.Digest) error {
	if _, err := h.Store.PutBytes(ctx, p); err != nil {
		return err
	}
	if len(p) <= maxRecent {
		h.built.put(d, p)
	}
	return nil
}

// manifest returns the manifest of an image.
func (h *Handler) manifest(ctx context.Context, im store.Image) ([]byte, error) {
	if p, ok := h.built.get(im.Manifest); ok {
		return p, nil
	}
	p, err := h.Store.ReadBytes(ctx, im.Manifest, convert.MaxManifestSize)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", im.Manifest, err)
	}
	return p, nil
}

// used records that im was resolved from src.
func (h *Handler) used(ctx context.Context, im store.Image, src source) (store.Image, error) {
	private := slices.Contains(im.PrivateNames, src.name)
	if slices.Contains(im.Refs, src.ref) && private == src.private && time.Since(im.Used) < usedTime {
		return im, nil
	}
	return h.record(ctx, im, src)
}

// record stores that im was resolved from src. By that name it is private or not as it was
// there; by the others nothing changes.
func (h *Handler) record(ctx context.Context, im store.Image, src source) (store.Image, error) {
	im.Refs, im.PrivateNames = []string{src.ref}, nil
	if src.private {
		im.PrivateNames = []string{src.name}
	}
	if err := h.Store.PutImage(ctx, im); err != nil {
		return store.Image{}, err
	}
	now, err := h.Store.Image(ctx, im.Manifest)
	if err != nil || src.private || !slices.Contains(now.PrivateNames, src.name) {
		return now, err
	}
	if err := h.Store.SetPublic(ctx, im.Manifest, src.name); err != nil {
		return store.Image{}, err
	}
	return h.Store.Image(ctx, im.Manifest)
}

// recordedRef returns a reference in the form of store.Image.Refs.
func recordedRef(ref remote.Ref) string {
	if ref.URL != "" {
		return ref.Name()
	}
	if ref.Digest != "" {
		ref.Tag = ""
	}
	return ref.String()
}

// tableSize returns the sizes of the files of t as far as they are known, and of the archives
// where they are not, in bytes.
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
