package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/image"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Mountable describes how containerd mounts a model in its original form.
type Mountable string

// The kinds of models. Bare models can be shown by their original digest.
const (
	Bare     Mountable = "bare"     // containerd unpacks nothing and mounts an empty snapshot
	Layered  Mountable = "layered"  // containerd unpacks all layers itself
	Rejected Mountable = "rejected" // containerd cannot read it, or sees more or fewer layers than diffIDs
)

// MountableOf returns how containerd mounts an image with a manifest and a config.
// https://github.com/containerd/containerd/blob/v2.4.2/client/image.go
func MountableOf(manifest, config []byte) (Mountable, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		return "", fmt.Errorf("manifest: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	var cfg ocispec.Image
	if err := json.Unmarshal(config, &cfg); err != nil {
		return "", fmt.Errorf("config: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	layers := 0
	for _, l := range m.Layers {
		if images.IsLayerType(l.MediaType) {
			layers++
		}
	}
	switch {
	case m.MediaType != "" && !images.IsManifestType(m.MediaType), layers != len(cfg.RootFS.DiffIDs):
		return Rejected, nil
	case layers == 0:
		return Bare, nil
	case layers == len(m.Layers):
		return Layered, nil
	}
	return Rejected, nil // some files would be missing
}

// unconverted answers with the original manifest of a model, or of an index of models, if the original
// can be mounted, otherwise with an error that names the digest to pin.
//
// A bare model can: the snapshotter shows it when a pod uses it as an image volume (Origin). That request
// carries no credentials; those of this caller are remembered with the name (store.Image.Read).
func (h *Handler) unconverted(ctx context.Context, o *origin, im store.Image, as caller) (answer, error) {
	refuse := func(why string) (answer, error) {
		return answer{}, &PinError{Name: o.Ref.Name(), Origin: o.Ref.Digest, Converted: im.Manifest, Reason: why}
	}
	if im.Origin.Digest != o.Ref.Digest || o.HasVariants() {
		return refuse("it is a list of variants")
	}
	if f, err := formats.All().Detect(o.Manifest); err == nil && f == mediatype.FormatImage {
		return refuse("it is an artifact that containerd does not know as a model")
	}
	model, err := h.entryForHere(ctx, o, im, as)
	if err != nil {
		return refuse(err.Error())
	}
	docs, err := h.documents(model)
	if err != nil {
		return refuse(err.Error())
	}
	kind, err := MountableOf(docs.Manifest, docs.Config)
	switch {
	case err != nil:
		return refuse(err.Error())
	case kind == Rejected:
		return refuse("containerd handles its layers differently")
	case kind == Bare && !h.Origins:
		return refuse("facade.origin_digests is off")
	case kind == Bare:
		if err := resolve.CheckBare(docs.Config); err != nil {
			return refuse(err.Error())
		}
	}
	if kind == Layered { // containerd unpacks it by its config, which no signature of the files covers
		err = h.admitBytes(ctx, o)
	}
	if err == nil {
		_, err = h.admit(ctx, o.Ref, im, h.givers)
	}
	if err != nil {
		return answer{}, err
	}
	same := o.Origin
	if im.Table != "" { // the bytes were forgotten if another request has converted it
		if same, err = resolve.Of(o.Ref, remote.Manifest{Bytes: docs.Manifest, Digest: o.Ref.Digest, ContentType: o.Served.ContentType}); err != nil {
			return answer{}, err
		}
	}
	h.remember(same, as)
	return pass(same), nil
}

// entryForHere returns im or, if o is an index, the image of the model in it that containerd uses on this
// machine. It must be clear which one that is.
func (h *Handler) entryForHere(ctx context.Context, o *origin, im store.Image, as caller) (store.Image, error) {
	if im.Table != "" {
		return im, nil
	}
	if o.Manifest == nil { // forgotten
		again, err := h.resolve(ctx, o.Ref, as)
		if err != nil {
			return store.Image{}, err
		}
		*o = *again
	}
	here, err := resolve.Entries(o.Manifest)
	switch {
	case err != nil:
		return store.Image{}, err
	case slices.ContainsFunc(here, func(d ocispec.Descriptor) bool { return d.Platform == nil }):
		return store.Image{}, errors.New("it is an index with an entry for no platform")
	case len(here) != 1:
		return store.Image{}, fmt.Errorf("it is an index with %d entries for this machine, not one", len(here))
	}
	model, err := h.made(here[0].Digest, h.PrefixOf(o.Ref.Name()))
	if err == nil && model.Manifest == "" {
		err = errors.New("it is an index whose entry for this machine is not a model")
	}
	return model, err
}

// documents returns the documents of the origin of an image that was converted here.
func (h *Handler) documents(im store.Image) (convert.Documents, error) {
	config, err := h.Store.ReadDocument(im, im.Config, resolve.MaxImageConfig)
	if err != nil {
		return convert.Documents{}, err
	}
	t, err := h.Store.Table(im.Table)
	if err != nil {
		return convert.Documents{}, err
	}
	return image.Documents(config, t)
}

// nameTime limits the time to ask the registry of one name whether an origin is public.
const nameTime = 15 * time.Second

// Made returns the image, or the index of images, that the origin with digest d was converted to on this
// node for a prefix (resolve.Resolver.Prefix); the zero value if it was not.
func (h *Handler) Made(d digest.Digest, prefix string) (store.Image, error) {
	im, err := h.made(d, prefix)
	if err != nil || im.Manifest != "" {
		return im, err
	}
	im, err = h.Store.Catalog.ImageByOrigin(filetable.Origin{Format: string(mediatype.FormatIndex), Digest: d, Mapping: convert.MappingVersion, Prefix: prefix})
	if errdefs.IsNotFound(err) || err == nil && im.Ahead {
		return store.Image{}, nil
	}
	return im, err
}

// Origin returns those of names (remote.Ref.Name), in their order, from which everybody can read the
// origin with digest d, and the image, or the index, that it is converted to. made is the result of
// Made. If no public name is recorded, or with all if any is not recorded, it asks the registries of the
// others anonymously. If no name is public, Origin returns the error of upstream.
func (h *Handler) Origin(ctx context.Context, d digest.Digest, made store.Image, names []string, all bool) (im store.Image, public []string, err error) {
	im = made
	recorded := func(n string) bool {
		refs, err := refsOf(made, n)
		return made.Manifest != "" && err == nil && isPublic(made, nameOf(refs[0]))
	}
	known := slices.ContainsFunc(names, recorded)
	err = fmt.Errorf("no known repository has %s: %w", d, errdefs.ErrNotFound)
	for _, n := range names {
		if !recorded(n) {
			if known && !all {
				continue
			}
			got, aerr := h.asAnybody(ctx, n, d)
			if aerr != nil {
				err = aerr
				continue
			}
			im = got
		}
		public = append(public, n)
	}
	if len(public) > 0 {
		err = nil
	}
	return im, public, err
}

// asAnybody converts an origin read anonymously by a name.
func (h *Handler) asAnybody(ctx context.Context, name string, d digest.Digest) (store.Image, error) {
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	refs, err := refsOf(store.Image{}, name)
	if err != nil {
		return store.Image{}, err
	}
	ref := refs[0]
	ref.Digest = d
	im, err := h.convertAs(ctx, ref, caller{})
	if err == nil && im.Ahead {
		err = fmt.Errorf("%s is not converted to an image: %w", d, convert.ErrNotModel)
	}
	return im, err
}

// made returns the image of an origin made with the current mapping version for a prefix, or the zero value.
func (h *Handler) made(d digest.Digest, prefix string) (store.Image, error) {
	all := h.Store.Catalog.ImagesByOrigin(d)
	for _, im := range all {
		is := filetable.Origin{Format: im.Origin.Format, Digest: d, Mapping: convert.MappingVersion, Prefix: prefix}
		if im.Origin != is || im.Table == "" || im.Ahead || !h.complete(im) {
			continue
		}
		if _, err := h.Store.HeadersVerified(im.Table); err == nil {
			return im, nil
		}
	}
	return store.Image{}, nil
}

// PublicSources is Sources for a model that is shown without credentials.
func (h *Handler) PublicSources(im store.Image, names ...string) []transfer.Source {
	return h.sources(im, names, func(name) []viewer { return []viewer{{}} })
}
