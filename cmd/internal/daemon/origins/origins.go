package origins

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/modelname"
	"github.com/ballast-dev/ballast/cmd/internal/host/ctrd"
	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registry"
	"github.com/ballast-dev/ballast/convert/resolve"
	"github.com/ballast-dev/ballast/store"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	maxNames   = 16      // repositories asked for one model without credentials
	maxTargets = 4 << 10 // cached images
)

// Origins shows models by the digests of their registries. Create it with New.
type Origins struct {
	Options

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

// Options configure Origins.
type Options struct {
	Containerd *ctrd.Client
	Store      *store.Store
	Facade     *registry.Handler
	Off        bool // facade.origin_digests = false
	Log        *slog.Logger

	// Show shows a model in a snapshot. It checks the rules for the names, and downloads from their
	// repositories without credentials or, if the model is private, only from that of the first name,
	// with those that callers gave for it.
	Show func(ctx context.Context, id string, im store.Image, names []string, private bool) error

	// Fetch returns when a name's repository has given all files of a model, with the credentials that
	// callers gave for it. If ctx ends first, the download goes on.
	Fetch func(ctx context.Context, im store.Image, name string) error
}

// longestPull is the time from the request for a manifest to containerd's record of the image.
const longestPull = 24 * time.Hour

// brief is how long a volume waits for the other names of a private model. containerd holds a lock of its snapshotter
// meanwhile, behind which all other requests wait once a snapshot is removed.
const brief = 2 * time.Second

// New returns the origins of a node.
func New(o Options) *Origins { return &Origins{Options: o} }

// Pull has containerd pull a model as for a pod, see ctrd.Client.Pull. It returns errdefs.ErrFailedPrecondition if
// containerd has the manifest of the registry, because the pull did not go through the facade, and cannot mount it.
func (o *Origins) Pull(ctx context.Context, ref, handler string, auth *cri.AuthConfig) (id string, err error) {
	parsed, err := resolve.ParseRef(ref)
	if err != nil {
		return "", err
	}
	id, err = o.Containerd.Pull(ctx, ref, handler, auth)
	if err != nil {
		return "", err
	}
	ctx = namespaces.WithNamespace(ctx, ctrd.Kubernetes)
	all, err := o.Containerd.Images(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(e images.Image) bool { return e.Name == id })
	if i < 0 {
		return "", fmt.Errorf("%s: containerd has removed its image again: %w", ref, errdefs.ErrUnavailable)
	}
	manifests, _, err := o.Containerd.Manifests(ctx, all[i].Target, platforms.Default())
	if err != nil {
		return "", err
	}
	for _, m := range manifests {
		kind, err := o.mountable(ctx, m)
		if err != nil {
			return "", err
		}
		unfit := ""
		if kind == registry.Bare && !o.Off {
			if unfit, err = o.unfit(ctx, all, all[i].Target.Digest); err != nil {
				return "", err
			}
			if unfit != "" {
				unfit = " (" + unfit + ")"
			}
		}
		if kind == registry.Rejected || kind == registry.Bare && o.Off || unfit != "" {
			return "", fmt.Errorf("no pod can mount %s%s: containerd has pulled it from the registry itself, since %s is not closed on this node; close it (registries of the chart, or \"ballast setup --registry %[3]s\", with those that are closed already), or publish the model with \"ballast convert\": %w",
				ref, unfit, parsed.Host, errdefs.ErrFailedPrecondition)
		}
	}
	return id, nil
}

// NamesOf returns the names of the images of the namespace of ctx with one of these manifests or configs.
func (o *Origins) NamesOf(ctx context.Context, of map[digest.Digest]bool) (names []string, err error) {
	all, err := o.Containerd.Images(ctx)
	for _, e := range all {
		t, err := o.target(ctx, e.Target)
		if err != nil {
			return nil, err
		}
		if of[e.Target.Digest] || slices.ContainsFunc(t.configs, func(d digest.Digest) bool { return of[d] }) {
			names = append(names, e.Name)
		}
	}
	return names, err
}

// Volume shows, in snapshot id, the model of the image whose manifest has digest d: see
// snapshotter.Options.Volume.
func (o *Origins) Volume(ctx context.Context, d digest.Digest, id string) error {
	if _, err := namespaces.NamespaceRequired(ctx); err != nil {
		return err
	}
	all, err := o.Containerd.Images(ctx)
	if err != nil {
		return err
	}
	names := namesOf(all, d)
	var prefix string
	if len(names) > 0 {
		prefix = o.Facade.PrefixOf(names[0])
	}
	made, err := o.Facade.Made(d, prefix)
	if err != nil {
		return err
	}
	refuse := func(why string) error { return o.refuse(d, names, made, why) }
	another := slices.IndexFunc(names, func(n string) bool { return o.Facade.PrefixOf(n) != prefix })
	switch {
	case o.Off:
		return refuse("facade.origin_digests is off")
	case len(names) == 0:
		return refuse("containerd does not say where it is from")
	case another > 0:
		return refuse(fmt.Sprintf("containerd has it also by the name %s, whose models have another directory by the [[layout]] rules of this node", names[another]))
	}
	why, err := o.unfit(ctx, all, d)
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
	model, err := o.Facade.ForHere(im)
	if err != nil {
		return refuse(err.Error())
	}
	if err := o.Show(ctx, id, model, public, false); err != nil {
		if len(public) < len(names) && !errdefs.IsUnavailable(err) {
			return refuse(fmt.Sprintf("containerd has it by several names, of which only %s is public: %v", strings.Join(public, ", "), err))
		}
		return fmt.Errorf("model %s: %w", pinned(names[0], d), err)
	}
	return o.keep(d, model, public)
}

// readByAll reports whether callers have read the origin with digest d, with credentials of their own,
// by every name of containerd's images with this target, at the pull that made the image or later.
func (o *Origins) readByAll(all []images.Image, d digest.Digest, made store.Image) bool {
	n := 0
	for _, e := range all {
		if e.Target.Digest != d || isID(e.Name) {
			continue
		}
		ref, err := resolve.ParseRef(e.Name)
		if err != nil {
			return false
		}
		if at, ok := made.Read[ref.Name()]; !ok || at.Before(e.CreatedAt.Add(-longestPull)) {
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
	model, err := o.Facade.ForHere(made)
	if err != nil {
		return o.refuse(d, names, made, err.Error())
	}
	waiting, cancel := context.WithTimeout(ctx, brief)
	defer cancel()
	for _, n := range names[1:] {
		err := o.Fetch(waiting, model, n)
		if errors.Is(err, context.DeadlineExceeded) && waiting.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("model %s: %s, which must give it too, is still giving it; try again: %w", pinned(names[0], d), n, errdefs.ErrUnavailable)
		}
		if err != nil {
			return o.refuse(d, names, made, fmt.Sprintf("containerd has it also by the name %s, which must give it too: %v", n, err))
		}
	}
	err = o.Show(ctx, id, model, names, true)
	switch {
	case err == nil:
		return o.keep(d, model, names[:1])
	case len(names) > 1 && !errdefs.IsUnavailable(err):
		return o.refuse(d, names[1:], made, fmt.Sprintf("containerd has it also by the name %s, which must give it too: %v", names[0], err))
	}
	return fmt.Errorf("model %s: %w", pinned(names[0], d), err)
}

// namesOf returns the repositories by which containerd has images with a target, without
// duplicates, oldest first.
func namesOf(all []images.Image, d digest.Digest) (names []string) {
	for _, e := range all {
		if e.Target.Digest != d {
			continue
		}
		ref, err := resolve.ParseRef(e.Name)
		if err == nil && ref.URL == "" && !slices.Contains(names, ref.Name()) {
			names = append(names, ref.Name())
		}
	}
	return names
}

func pinned(name string, d digest.Digest) string { return name + "@" + d.String() }

// refuse returns why the model of an image is not shown, with the digest to use instead, if known.
func (o *Origins) refuse(d digest.Digest, names []string, im store.Image, why string) error {
	name := "image"
	if len(names) > 0 {
		name = names[0]
	}
	if im.Manifest == "" {
		made := o.Store.Catalog.ImagesByOrigin(d)
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
func (o *Origins) unfit(ctx context.Context, all []images.Image, d digest.Digest) (string, error) {
	var own target
	for _, e := range all {
		if e.Target.Digest == d {
			var err error
			if own, err = o.target(ctx, e.Target); err != nil {
				return "", err
			}
		}
	}
	if !own.model || len(own.configs) != 1 {
		return "it is not the manifest of a model that containerd mounts as an empty directory", nil
	}
	for _, e := range all {
		if e.Target.Digest == d {
			continue
		}
		other, err := o.target(ctx, e.Target)
		if err != nil {
			return "", err
		}
		if slices.Contains(other.configs, own.configs[0]) {
			return fmt.Sprintf("containerd takes it and %s for one image, since they have the same config", e.Name), nil
		}
	}
	return "", nil
}

// target returns what containerd has of an image. An image that is not in its content store cannot
// be mounted.
func (o *Origins) target(ctx context.Context, desc ocispec.Descriptor) (target, error) {
	key := targetKey{desc.Digest, desc.MediaType}
	o.mu.Lock()
	t, ok := o.targets[key]
	o.mu.Unlock()
	if ok {
		return t, nil
	}
	manifests, whole, err := o.Containerd.Manifests(ctx, desc, platforms.Default())
	if err != nil {
		return target{}, err
	}
	t.partly = !whole
	for _, m := range manifests {
		t.configs = append(t.configs, m.Config.Digest)
		model, err := o.isBare(ctx, m)
		if err != nil && !errdefs.IsNotFound(err) {
			return target{}, fmt.Errorf("image %s: %w", desc.Digest, err)
		}
		t.model, t.partly = t.model || model, t.partly || err != nil
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

// isBare reports whether containerd mounts an empty directory for the model of a manifest.
func (o *Origins) isBare(ctx context.Context, m ctrd.Manifest) (bool, error) {
	if parsed, err := convert.ParseManifest(m.Bytes); err == nil {
		if format, err := formats.All().Detect(parsed); err == nil && format == mediatype.FormatImage {
			return false, nil
		}
	}
	kind, err := o.mountable(ctx, m)
	return kind == registry.Bare, err
}

// mountable returns how containerd mounts the image of a manifest. What cannot be parsed is rejected.
func (o *Origins) mountable(ctx context.Context, m ctrd.Manifest) (registry.Mountable, error) {
	config, err := o.Containerd.Document(ctx, m.Config, convert.MaxConfigSize)
	if err != nil {
		return "", err
	}
	kind, err := registry.MountableOf(m.Bytes, config)
	if err != nil {
		return registry.Rejected, nil
	}
	return kind, nil
}

// keep adds a reference that protects a model, shown from repositories with these names, for as long as
// containerd has its image.
func (o *Origins) keep(d digest.Digest, im store.Image, from []string) error {
	name := modelname.Origin(d)
	if r, err := o.Store.Catalog.Ref(name); err == nil && r.Table == im.Table {
		return nil
	}
	return o.Store.AddRef(name, im.Table, time.Time{}, from...)
}

// Bare returns errdefs.ErrFailedPrecondition if the namespace has an image whose mount would be an
// empty directory in place of a model: see snapshotter.Options.Bare.
func (o *Origins) Bare(ctx context.Context) error {
	if _, err := namespaces.NamespaceRequired(ctx); err != nil {
		return nil // no image is mounted
	}
	all, err := o.Containerd.Images(ctx)
	if err != nil {
		return err
	}
	var first *images.Image
	var models []string // containerd does not say which of them is mounted
	for i, e := range all {
		t, err := o.target(ctx, e.Target)
		if err != nil {
			return err
		}
		if !t.model {
			continue
		}
		if first == nil || isID(first.Name) {
			first = &all[i]
		}
		if !isID(e.Name) {
			models = append(models, e.Name)
		}
	}
	if first == nil {
		return nil
	}
	advice := "then remove the image " + first.Name + ", or another image with the same content"
	if n := len(models); n > 1 {
		advice = fmt.Sprintf("this is one of %d such images: then remove %s, and other images with the same content", n, strings.Join(models[:min(n, 5)], ", "))
	}
	return fmt.Errorf("a snapshot without layers is refused, because it would be an empty directory in the place of a model: %w (%s)",
		o.refuse(first.Target.Digest, namesOf(all, first.Target.Digest), store.Image{}, "only image volumes of pods show it"), advice)
}

// ReleaseUnneeded releases the models of images that containerd no longer has.
func (o *Origins) ReleaseUnneeded(ctx context.Context) error {
	refs := o.Store.Catalog.Refs(modelname.Origin(""))
	if len(refs) == 0 {
		return nil
	}
	there := map[string]bool{}
	err := o.Containerd.EachNamespace(ctx, func(ctx context.Context, _ string) error {
		all, err := o.Containerd.Images(ctx)
		for _, e := range all {
			there[modelname.Origin(e.Target.Digest)] = true
		}
		return err
	})
	if err != nil {
		return err
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
