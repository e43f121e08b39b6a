package origins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/modelname"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/verify"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
)

// Limits for reading containerd's images.
const (
	maxEntries = 1000    // of an index and its nested indexes
	maxNames   = 16      // repositories asked for one model without credentials
	maxTargets = 4 << 10 // cached images
)

// Origins shows models by the digests of their registries. Create it with New.
type Origins struct {
	Options
	images     imagesapi.ImagesClient
	namespaces namespacesapi.NamespacesClient
	content    content.Store

	mu      sync.Mutex
	targets map[targetKey]target // guarded by mu
}

// A targetKey identifies what containerd reads for an image: the same bytes can be read as either
// type.
type targetKey struct {
	digest    digest.Digest
	mediaType string
}

// A target is what an image of containerd refers to.
type target struct {
	configs []digest.Digest // of the manifest, or of an index's entries for this machine
	model   bool            // a model in the form of its registry, for which containerd mounts an empty directory
	partly  bool            // some blobs are missing, and may arrive later
}

// An entry is an image of containerd, by one of its names.
type entry struct {
	name    string
	target  ocispec.Descriptor
	created time.Time
}

// Options configure Origins.
type Options struct {
	Containerd *grpc.ClientConn
	Store      *store.Store
	Facade     *registry.Handler
	Off        bool // facade.origin_digests = false
	Log        *slog.Logger

	// Show shows a model in a snapshot. It checks the rules for the names, and downloads from their
	// repositories without credentials or, if the model is private, only from that of the first name,
	// with those that callers gave for it.
	Show func(ctx context.Context, id string, im store.Image, names []string, private bool) error

	// Fetch returns when a name's repository has given all files of a model, with the credentials that
	// callers gave for it.
	Fetch func(ctx context.Context, im store.Image, name string) error
}

// longestPull is the time from the request for a manifest to containerd's record of the image.
const longestPull = 24 * time.Hour

// New returns the origins of a node.
func New(o Options) *Origins {
	return &Origins{
		Options: o, images: imagesapi.NewImagesClient(o.Containerd), namespaces: namespacesapi.NewNamespacesClient(o.Containerd),
		content: proxy.NewContentStore(o.Containerd),
	}
}

// Content returns the content store of containerd.
func (o *Origins) Content() content.Store { return o.content }

// list returns the images of a namespace, oldest first.
func (o *Origins) list(ctx context.Context, namespace string) ([]entry, error) {
	resp, err := o.images.List(namespaces.WithNamespace(ctx, namespace), &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("images of containerd: %w", errgrpc.ToNative(err))
	}
	var l []entry
	for _, im := range resp.GetImages() {
		t := im.GetTarget()
		l = append(l, entry{im.GetName(), ocispec.Descriptor{MediaType: t.GetMediaType(), Digest: digest.Digest(t.GetDigest()), Size: t.GetSize()}, im.GetCreatedAt().AsTime()})
	}
	slices.SortStableFunc(l, func(a, b entry) int { return a.created.Compare(b.created) })
	return l, nil
}

// NamesOf returns the names of the images of a namespace with one of these manifests or configs.
func (o *Origins) NamesOf(ctx context.Context, namespace string, of map[digest.Digest]bool) (names []string, err error) {
	all, err := o.list(ctx, namespace)
	for _, e := range all {
		t, err := o.target(ctx, namespace, e.target)
		if err != nil {
			return nil, err
		}
		if of[e.target.Digest] || slices.ContainsFunc(t.configs, func(d digest.Digest) bool { return of[d] }) {
			names = append(names, e.name)
		}
	}
	return names, err
}

// Volume shows, in snapshot id, the model of the image whose manifest has digest d: see
// snapshotter.Options.Volume.
func (o *Origins) Volume(ctx context.Context, d digest.Digest, id string) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	all, err := o.list(ctx, ns)
	if err != nil {
		return err
	}
	names := namesOf(all, d)
	made, err := o.Facade.Made(ctx, d)
	if err != nil {
		return err
	}
	refuse := func(why string) error { return o.refuse(ctx, d, names, made, why) }
	switch {
	case o.Off:
		return refuse("facade.origin_digests is off")
	case len(names) == 0:
		return refuse("containerd does not say where it is from")
	}
	why, err := o.unfit(ctx, ns, all, d)
	if err != nil {
		return err
	}
	if why != "" {
		return refuse(why)
	}
	if o.readByAll(all, d, made) {
		return o.showPrivate(ctx, id, d, made, names)
	}
	names = names[:min(len(names), maxNames)]
	im, public, err := o.Facade.Origin(ctx, d, made, names, o.Facade.Signatures != nil)
	switch {
	case errdefs.IsUnauthorized(err), errdefs.IsPermissionDenied(err):
		return refuse("it is private, and no pull with credentials was seen by a name that containerd has for it: remove the image, and pull it again")
	case err != nil:
		return refuse(err.Error())
	case o.Facade.Signatures != nil && len(public) != len(names):
		return refuse("there are rules for signatures, and it was pulled from several repositories, not all of which give it to everybody")
	}
	model, err := o.Facade.ForHere(ctx, im)
	if err != nil {
		return refuse(err.Error())
	}
	if err := o.Show(ctx, id, model, public, false); err != nil {
		if len(public) < len(names) {
			return refuse(fmt.Sprintf("containerd has it by several names, of which only %s is public: %v", strings.Join(public, ", "), err))
		}
		return fmt.Errorf("model %s: %w", pinned(names[0], d), err)
	}
	return o.keep(ctx, d, model, public)
}

// readByAll reports whether callers have read the origin with digest d, with credentials of their own,
// by every name of containerd's images with this target, at the pull that made the image or later.
func (o *Origins) readByAll(all []entry, d digest.Digest, made store.Image) bool {
	n := 0
	for _, e := range all {
		if e.target.Digest != d || isID(e.name) {
			continue
		}
		ref, err := resolve.ParseRef(e.name)
		if err != nil {
			return false
		}
		if at, ok := made.Read[ref.Name()]; !ok || at.Before(e.created.Add(-longestPull)) {
			return false
		}
		n++
	}
	return n > 0
}

// isID reports whether the name of an image is its ID, which CRI adds to every image.
func isID(name string) bool { return strings.HasPrefix(name, digest.SHA256.String()+":") }

// showPrivate shows a model that callers have read by all names with their credentials. containerd does
// not say by which of them the pod named it, so each repository must have given all of its files.
func (o *Origins) showPrivate(ctx context.Context, id string, d digest.Digest, made store.Image, names []string) error {
	model, err := o.Facade.ForHere(ctx, made)
	if err != nil {
		return o.refuse(ctx, d, names, made, err.Error())
	}
	for _, n := range names[1:] {
		if err := o.Fetch(ctx, model, n); err != nil {
			return o.refuse(ctx, d, names, made, fmt.Sprintf("containerd has it also by the name %s, which must give it too: %v", n, err))
		}
	}
	err = o.Show(ctx, id, model, names, true)
	switch {
	case err == nil:
		return o.keep(ctx, d, model, names[:1])
	case len(names) > 1:
		return o.refuse(ctx, d, names[1:], made, fmt.Sprintf("containerd has it also by the name %s, which must give it too: %v", names[0], err))
	}
	return fmt.Errorf("model %s: %w", pinned(names[0], d), err)
}

// namesOf returns the repositories by which containerd has images with a target, without
// duplicates, oldest first.
func namesOf(all []entry, d digest.Digest) (names []string) {
	for _, e := range all {
		if e.target.Digest != d {
			continue
		}
		ref, err := resolve.ParseRef(e.name)
		if err == nil && ref.URL == "" && !slices.Contains(names, ref.Name()) {
			names = append(names, ref.Name())
		}
	}
	return names
}

func pinned(name string, d digest.Digest) string { return name + "@" + d.String() }

// refuse returns why the model of an image is not shown, with the digest to use instead, if known.
func (o *Origins) refuse(ctx context.Context, d digest.Digest, names []string, im store.Image, why string) error {
	name := "image"
	if len(names) > 0 {
		name = names[0]
	}
	if im.Manifest == "" {
		made := o.Store.ImagesByOrigin(d)
		if i := slices.IndexFunc(made, func(im store.Image) bool { return im.Manifest != d }); i >= 0 {
			im = made[i]
		}
	}
	if im.Manifest != "" {
		return &registry.PinError{Name: name, Origin: d, Converted: im.Manifest, Reason: why}
	}
	return fmt.Errorf("%s has no files that can be mounted (%s); pull a model by tag through the ballast facade, or by the digest of the converted image, which \"ballast digest REF\" prints: %w",
		pinned(name, d), why, errdefs.ErrFailedPrecondition)
}

// unfit returns why a volume of the image with digest d cannot show its model, or "".
func (o *Origins) unfit(ctx context.Context, ns string, all []entry, d digest.Digest) (string, error) {
	var own target
	for _, e := range all {
		if e.target.Digest == d {
			var err error
			if own, err = o.target(ctx, ns, e.target); err != nil {
				return "", err
			}
		}
	}
	if !own.model || len(own.configs) != 1 {
		return "it is not the manifest of a model that containerd mounts as an empty directory", nil
	}
	for _, e := range all {
		if e.target.Digest == d {
			continue
		}
		other, err := o.target(ctx, ns, e.target)
		if err != nil {
			return "", err
		}
		if slices.Contains(other.configs, own.configs[0]) {
			return fmt.Sprintf("containerd takes it and %s for one image, since they have the same config", e.name), nil
		}
	}
	return "", nil
}

// target returns what containerd has of an image. An image that is not in its content store cannot
// be mounted.
func (o *Origins) target(ctx context.Context, ns string, desc ocispec.Descriptor) (target, error) {
	key := targetKey{desc.Digest, desc.MediaType}
	o.mu.Lock()
	t, ok := o.targets[key]
	o.mu.Unlock()
	if ok {
		return t, nil
	}
	entries := maxEntries
	t, err := o.read(namespaces.WithNamespace(ctx, ns), desc, &entries)
	if errdefs.IsNotFound(err) {
		return target{}, nil
	}
	if err != nil {
		return target{}, fmt.Errorf("image %s: %w", desc.Digest, err)
	}
	if t.partly {
		return t, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.targets == nil || len(o.targets) >= maxTargets {
		o.targets = map[targetKey]target{}
	}
	o.targets[key] = t
	return t, nil
}

// read reads a manifest or an index as leniently as containerd does. left is the number of index
// entries that may still be read.
func (o *Origins) read(ctx context.Context, desc ocispec.Descriptor, left *int) (target, error) {
	p, err := o.blob(ctx, desc, convert.MaxManifestSize)
	if err != nil {
		return target{}, err
	}
	if images.IsIndexType(desc.MediaType) {
		var index ocispec.Index
		if err := json.Unmarshal(p, &index); err != nil {
			return target{}, nil // containerd cannot read it either
		}
		var t target
		for _, d := range index.Manifests {
			if d.Platform != nil && !platforms.Default().Match(*d.Platform) {
				continue
			}
			if *left--; *left < 0 {
				return target{}, fmt.Errorf("more than %d entries: %w", maxEntries, errdefs.ErrResourceExhausted)
			}
			child, err := o.read(ctx, d, left)
			if err != nil && !errdefs.IsNotFound(err) {
				return target{}, err
			}
			t.configs = append(t.configs, child.configs...)
			t.model, t.partly = t.model || child.model, t.partly || child.partly || err != nil
		}
		return t, nil
	}
	var m ocispec.Manifest
	if json.Unmarshal(p, &m) != nil || m.Config.Digest == "" {
		return target{}, nil
	}
	t := target{configs: []digest.Digest{m.Config.Digest}}
	if parsed, err := convert.ParseManifest(p); err == nil {
		format, err := formats.All().Detect(parsed)
		if err == nil && format == mediatype.FormatImage {
			return t, nil
		}
	}
	config, err := o.blob(ctx, m.Config, convert.MaxConfigSize)
	if err != nil {
		return target{}, err
	}
	kind, err := registry.MountableOf(p, config)
	t.model = err == nil && kind == registry.Bare
	return t, nil
}

// blob reads a blob of containerd's content store.
func (o *Origins) blob(ctx context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	info, err := o.content.Info(ctx, desc.Digest)
	if err != nil {
		return nil, err
	}
	desc.Size = info.Size
	ra, err := o.content.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	defer ra.Close()
	return verify.Read(content.NewReader(ra), desc.Digest, desc.Size, limit)
}

// keep adds a reference that protects a model, shown from repositories with these names, for as long as
// containerd has its image.
func (o *Origins) keep(ctx context.Context, d digest.Digest, im store.Image, from []string) error {
	name := modelname.Origin(d)
	if r, err := o.Store.Ref(name); err == nil && r.Table == im.Table {
		return nil
	}
	return o.Store.AddRef(name, im.Table, time.Time{}, from...)
}

// Bare returns errdefs.ErrFailedPrecondition if the namespace has an image whose mount would be an
// empty directory in place of a model: see snapshotter.Options.Bare.
func (o *Origins) Bare(ctx context.Context) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil // no image is mounted
	}
	all, err := o.list(ctx, ns)
	if err != nil {
		return err
	}
	var first *entry
	var models []string // containerd does not say which of them is mounted
	for i, e := range all {
		t, err := o.target(ctx, ns, e.target)
		if err != nil {
			return err
		}
		if !t.model {
			continue
		}
		if first == nil || isID(first.name) {
			first = &all[i]
		}
		if !isID(e.name) {
			models = append(models, e.name)
		}
	}
	if first == nil {
		return nil
	}
	advice := "then remove the image " + first.name + ", or another image with the same content"
	if n := len(models); n > 1 {
		advice = fmt.Sprintf("this is one of %d such images: then remove %s, and other images with the same content", n, strings.Join(models[:min(n, 5)], ", "))
	}
	return fmt.Errorf("a snapshot without layers is refused, because it would be an empty directory in the place of a model: %w (%s)",
		o.refuse(ctx, first.target.Digest, namesOf(all, first.target.Digest), store.Image{}, "only image volumes of pods show it"), advice)
}

// Settle releases the models of images that containerd no longer has.
func (o *Origins) Settle(ctx context.Context) error {
	refs := o.Store.Refs(modelname.Origin(""))
	if len(refs) == 0 {
		return nil
	}
	resp, err := o.namespaces.List(ctx, &namespacesapi.ListNamespacesRequest{})
	if err != nil {
		return fmt.Errorf("namespaces of containerd: %w", errgrpc.ToNative(err))
	}
	there := map[string]bool{}
	for _, ns := range resp.GetNamespaces() {
		all, err := o.list(ctx, ns.GetName())
		if err != nil {
			return err
		}
		for _, e := range all {
			there[modelname.Origin(e.target.Digest)] = true
		}
	}
	var errs []error
	for _, r := range refs {
		if there[r.Name] {
			continue
		}
		o.Log.InfoContext(ctx, "containerd has the image of a model no longer", "origin", strings.TrimPrefix(r.Name, modelname.Origin("")), "table", r.Table)
		errs = append(errs, o.Store.RemoveRef(r.Name))
	}
	return errors.Join(errs...)
}
