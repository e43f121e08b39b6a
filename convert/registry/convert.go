package registry

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// ErrNotModel is convert.ErrNotModel.
var ErrNotModel = convert.ErrNotModel

// conversionTime is how long a conversion can take. It reads small blobs and the headers of
// archives; from a server without ranges it reads archives whole.
const conversionTime = 30 * time.Minute

// usedTime is how exactly the last use of an image is recorded. Each record is a write.
const usedTime = time.Minute

// An origin is a manifest upstream, and how it was found.
type origin struct {
	ref     remote.Ref
	repo    *remote.Repository
	served  remote.Manifest
	parsed  *convert.Manifest
	format  mediatype.Format
	private bool
}

// Convert resolves ref and converts it, or returns the image it was converted to before. With
// creds nil the credentials that a caller gave for the repository are used. It returns
// ErrNotModel for what is not a model, and otherwise the errors of remote.Repository and of
// the parsers. Of an index of models it returns the image for this machine. The digest of an
// image made here gives that image.
func (h *Handler) Convert(ctx context.Context, ref remote.Ref, creds *remote.Credentials) (store.Image, error) {
	if creds == nil {
		creds = h.Credentials(ref.Host, ref.Repository)
	}
	who := caller{creds}
	if im, err := h.image(ctx, ref.Digest); err == nil {
		if err := h.authorize(ctx, im, ref, who); err != nil {
			return store.Image{}, err
		}
		return h.forHere(ctx, im)
	}
	o, err := h.resolve(ctx, ref, who)
	if err != nil {
		return store.Image{}, err
	}
	switch o.format {
	case mediatype.FormatImage:
		return store.Image{}, fmt.Errorf("%s: %w", ref, ErrNotModel)
	case mediatype.FormatIndex:
		im, err := h.convertIndex(ctx, o, who)
		if err != nil {
			return store.Image{}, err
		}
		return h.forHere(ctx, im)
	}
	return h.convert(ctx, o)
}

// forHere returns im, or the image for this machine if im is an index.
func (h *Handler) forHere(ctx context.Context, im store.Image) (store.Image, error) {
	if im.Table != "" {
		return im, nil
	}
	p, err := h.Store.ReadBytes(ctx, im.Manifest, convert.MaxManifestSize)
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
	o := &origin{ref: ref}
	var err error
	o.private, err = h.upstream(ctx, ref, who, func(r *remote.Repository) error {
		o.repo = r
		o.served, err = r.Resolve(ctx, ref)
		return err
	})
	if err != nil {
		return nil, err
	}
	return o, o.detect()
}

// detect sets what o is.
func (o *origin) detect() error {
	var err error
	if o.parsed, err = convert.ParseManifest(o.served.Bytes); err != nil {
		return fmt.Errorf("%s: %w", o.ref, err)
	}
	if slices.ContainsFunc(o.parsed.Layers, func(d convert.Descriptor) bool { return d.MediaType == mediatype.TableLayer }) {
		o.format = mediatype.FormatImage // converted ahead of time
		return nil
	}
	if o.format, err = convert.Detect(o.parsed); err != nil {
		return fmt.Errorf("%s: %w", o.ref, err)
	}
	return nil
}

// convert returns the image that a model was converted to, converting it if it was not yet.
// One conversion of an origin runs at a time, whoever asks, and does not end with the caller.
func (h *Handler) convert(ctx context.Context, o *origin) (store.Image, error) {
	key := store.Origin{Format: string(o.format), Digest: o.served.Digest, Mapping: convert.MappingVersion}
	im, err := h.Store.ImageByOrigin(ctx, key)
	if err == nil && h.whole(im) {
		return h.used(ctx, im, o)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return store.Image{}, err
	}
	done := h.flight.DoChan(key.Digest.String(), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), conversionTime)
		defer cancel()
		return h.make(ctx, o)
	})
	select {
	case <-ctx.Done():
		return store.Image{}, ctx.Err()
	case r := <-done:
		if r.Err != nil {
			return store.Image{}, fmt.Errorf("%s: %w", o.ref, r.Err)
		}
		return h.used(ctx, r.Val.(store.Image), o)
	}
}

// make converts a model.
func (h *Handler) make(ctx context.Context, o *origin) (store.Image, error) {
	start := time.Now()
	model, err := h.parse(ctx, o)
	if err != nil {
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
	im := store.Image{
		Manifest: built.Digest,
		Config:   built.ConfigDigest,
		Table:    built.TableDigest,
		Origin:   model.Table.Origin,
		Refs:     []string{recordedRef(o.ref)},
		Size:     tableSize(&model.Table),
		Private:  o.private,
	}
	if im, err = h.record(ctx, im, built.Manifest); err != nil {
		return store.Image{}, err
	}
	h.log().Info("model converted", "ref", o.ref.String(), "format", im.Origin.Format, "origin", im.Origin.Digest,
		"digest", im.Manifest, "bytes", im.Size, "dur", time.Since(start))
	return im, nil
}

// parse is h.Parsers.Parse for a manifest that was parsed before, which is a quarter of the
// time of a conversion.
func (h *Handler) parse(ctx context.Context, o *origin) (*convert.Model, error) {
	artifact := o.repo.Artifact(o.served)
	parse, ok := h.Parsers[o.format]
	if !ok {
		return h.Parsers.Parse(ctx, artifact) // has the error
	}
	model, err := parse(ctx, artifact, o.parsed)
	if err != nil {
		return nil, fmt.Errorf("%s model: %w", o.format, err)
	}
	return model, nil
}

// record stores the manifest of an image, then the image.
func (h *Handler) record(ctx context.Context, im store.Image, manifest []byte) (store.Image, error) {
	if _, err := h.Store.PutBytes(ctx, manifest); err != nil {
		return store.Image{}, err
	}
	if err := h.Store.PutImage(ctx, im); err != nil {
		return store.Image{}, err
	}
	return h.Store.Image(ctx, im.Manifest)
}

// used records that im was resolved from o. What someone can read without credentials is
// private no more.
func (h *Handler) used(ctx context.Context, im store.Image, o *origin) (store.Image, error) {
	ref := recordedRef(o.ref)
	private := im.Private && o.private
	if slices.Contains(im.Refs, ref) && private == im.Private && time.Since(im.Used) < usedTime {
		return im, nil
	}
	im.Refs, im.Private = []string{ref}, private
	if err := h.Store.PutImage(ctx, im); err != nil {
		return store.Image{}, err
	}
	return h.Store.Image(ctx, im.Manifest)
}

// recordedRef returns a reference in the form of store.Image.Refs.
func recordedRef(ref remote.Ref) string {
	if ref.Digest != "" {
		ref.Tag = ""
	}
	return ref.String()
}

// tableSize returns the sizes of the files of t as far as they are known, and of the archives
// where they are not, in bytes.
func tableSize(t *store.Table) int64 {
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
