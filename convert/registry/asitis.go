package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/convert"
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

// A Mountable says what containerd makes of a model as its registry has it, when it mounts it.
type Mountable string

// The kinds of models. Those that are bare can be shown by the digest that their registry gives them.
const (
	Bare     Mountable = "bare"     // it unpacks nothing, and mounts an empty snapshot
	Layered  Mountable = "layered"  // it unpacks all of its layers itself
	Rejected Mountable = "rejected" // it can not read it, or refuses to mount it: it sees more or fewer layers than diffIDs
)

// MountableOf returns what containerd makes of an image with a manifest and a config.
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
	return Rejected, nil // some of it would be missing
}

// asItIs answers with a model as its registry has it, if it can be mounted nevertheless, and otherwise with the
// digest to pin.
//
// A bare model is one of those: the snapshotter shows it when a pod has it as an image volume (Origin). Nobody
// says with which credentials then, so it has to be there for everybody.
func (h *Handler) asItIs(ctx context.Context, o *origin, im store.Image, who caller) (answer, error) {
	refuse := func(why string) (answer, error) {
		return answer{}, &PinError{Name: o.Ref.Name(), Origin: o.Ref.Digest, Converted: im.Manifest, Reason: why}
	}
	if im.Table == "" || im.Origin.Digest != o.Ref.Digest || im.Origin.Format == string(mediatype.FormatOllamaList) {
		return refuse("it is an index")
	}
	docs, err := h.documents(ctx, im)
	if err != nil {
		return refuse(err.Error())
	}
	kind, err := MountableOf(docs.Manifest, docs.Config)
	switch {
	case err != nil:
		return refuse(err.Error())
	case kind == Rejected:
		return refuse("containerd reads its layers in another way")
	case kind == Bare && !h.Origins:
		return refuse("facade.origin_digests is off")
	case kind == Bare && slices.Contains(im.PrivateNames, o.Ref.Name()):
		return refuse("it is private, and an image volume does not say who may read it")
	}
	if _, err := h.admit(ctx, o.Ref, im, h.givers); err != nil {
		return answer{}, err
	}
	same, err := resolve.Of(o.Ref, remote.Manifest{Bytes: docs.Manifest, Digest: o.Ref.Digest, ContentType: o.Served.ContentType})
	if err != nil {
		return answer{}, err
	}
	h.remember(same, who)
	return pass(same), nil
}

// documents returns the documents of the origin of an image that was made here.
func (h *Handler) documents(ctx context.Context, im store.Image) (convert.Documents, error) {
	config, err := h.Store.ReadBytes(ctx, im.Config, resolve.MaxImageConfig)
	if err != nil {
		return convert.Documents{}, err
	}
	t, err := h.Store.Table(ctx, im.Table)
	if err != nil {
		return convert.Documents{}, err
	}
	return image.Documents(config, t)
}

// nameTime is how long the registry of one name may take to say whether it gives an origin to everybody.
const nameTime = 15 * time.Second

// Origin returns what the origin with digest d was converted to, and which of names (remote.Ref.Name) give it to
// everybody, in their order: by those it may be shown to who has no credentials to show. If that is recorded of no
// name, or with all not of every one, the registries of the others are asked, as anybody. The image is
// the zero value if it was never made here. It returns the errors of upstream if no name gives it to everybody.
func (h *Handler) Origin(ctx context.Context, d digest.Digest, names []string, all bool) (im store.Image, public []string, err error) {
	if im, err = h.made(ctx, d); err != nil {
		return store.Image{}, nil, err
	}
	open := make([]bool, len(names))
	known := false
	for i, n := range names {
		refs, err := refsOf(im, n)
		open[i] = im.Manifest != "" && err == nil && resolvedFrom(im, nameOf(refs[0])) && !slices.Contains(im.PrivateNames, n)
		known = known || open[i]
	}
	err = fmt.Errorf("no repository is known that has %s: %w", d, errdefs.ErrNotFound)
	for i, n := range names {
		if open[i] || known && !all {
			continue
		}
		got, aerr := h.asAnybody(ctx, n, d)
		if aerr != nil {
			err = aerr
			continue
		}
		im, open[i] = got, true
	}
	for i, n := range names {
		if open[i] {
			public = append(public, n)
		}
	}
	if len(public) > 0 {
		err = nil
	}
	return im, public, err
}

// asAnybody returns what an origin is converted to that everybody can read by a name.
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
	if err == nil && (im.Table == "" || madeAhead(im)) {
		err = fmt.Errorf("%s is none that is made into an image: %w", d, convert.ErrNotModel)
	}
	return im, err
}

// made returns the image that the rules of today make of an origin, the zero value if it is not here.
func (h *Handler) made(ctx context.Context, d digest.Digest) (store.Image, error) {
	all, err := h.Store.ImagesByOrigin(ctx, d)
	if err != nil {
		return store.Image{}, err
	}
	for _, im := range all {
		is := filetable.Origin{Format: im.Origin.Format, Digest: d, Mapping: convert.MappingVersion}
		if im.Origin == is && im.Table != "" && !madeAhead(im) && h.whole(im) {
			return im, nil
		}
	}
	return store.Image{}, nil
}

// PublicSources is Sources for a model that is shown to who has no credentials to show.
func (h *Handler) PublicSources(im store.Image, names ...string) []transfer.Source {
	return h.sources(im, names, func(name) []viewer { return []viewer{{}} })
}
