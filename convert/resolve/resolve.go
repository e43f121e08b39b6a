package resolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/format"
	"github.com/ballast-dev/ballast/convert/formats"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Resolver has the settings for resolving names. Fields that are not needed may be zero.
type Resolver struct {
	// Upstream is the client for registries.
	Upstream *remote.Client

	// Settings are the settings of all formats.
	Settings format.Settings

	// Variant is the chosen variant of a model that has several (format.Variants); empty means the
	// preferred one.
	Variant string

	// Archives maps hosts whose references name archives at URLs to the name of the archive, as
	// "carton+https://…", with {repository} and {tag} in it.
	Archives map[string]string

	// Titled reports whether artifacts of a repository, "host/path", that are not models are
	// treated as models, if their manifests allow it; nil means for none.
	Titled func(repository string) bool

	// Prefix returns the directory that models of a repository, "host/path", or at a URL have in a mount
	// (filetable.Origin.Prefix), as far as they are not converted ahead of time; nil means none.
	Prefix func(name string) string
}

// An Origin is an artifact, with its manifest.
type Origin struct {
	Ref      remote.Ref         // zero if it is not in a registry
	Repo     *remote.Repository // nil if it is not in a registry
	Served   remote.Manifest
	Manifest *convert.Manifest // Served, parsed
	Format   mediatype.Format  // FormatImage if it passes unchanged

	artifact convert.Artifact

	variant string         // the variant in the tag
	choice  *format.Choice // the chosen variant; nil until Key
}

// Read returns the origin of ref in a repository. It returns the errors of
// remote.Repository.Resolve, and an *format.ArtifactError.
func Read(ctx context.Context, repo *remote.Repository, ref remote.Ref) (*Origin, error) {
	served, variant, err := Tag(ctx, repo, ref)
	if err != nil {
		return nil, err
	}
	o, err := Of(ref, served)
	if err != nil {
		return nil, err
	}
	o.Repo, o.artifact, o.variant = repo, repo.Artifact(served), variant
	return o, nil
}

// Local returns the origin of an artifact that is not in a registry, or read as if it had the
// reference ref in one.
func Local(ref remote.Ref, a convert.Artifact) (*Origin, error) {
	o, err := Of(ref, remote.Manifest{Bytes: a.Manifest(), Digest: digest.FromBytes(a.Manifest())})
	if err == nil {
		o.artifact = a
	}
	return o, err
}

// Of returns the origin of a manifest, without access to its blobs.
func Of(ref remote.Ref, served remote.Manifest) (*Origin, error) {
	o := &Origin{Ref: ref, Served: served}
	var err error
	if o.Manifest, err = convert.ParseManifest(served.Bytes); err == nil {
		o.Format, err = formats.All().Detect(o.Manifest)
	}
	if err != nil {
		return nil, o.about(&format.ArtifactError{Err: err})
	}
	return o, nil
}

// Tag returns the manifest of ref. A missing tag that ends in the name of a variant stands for that
// variant of the model with the rest of the tag.
func Tag(ctx context.Context, r *remote.Repository, ref remote.Ref) (m remote.Manifest, variant string, err error) {
	m, err = r.Resolve(ctx, ref)
	tag, variant := formats.All().CutVariant(ref.Tag)
	if variant == "" || !errdefs.IsNotFound(err) {
		return m, "", err
	}
	ref.Tag = tag
	m, listErr := r.Resolve(ctx, ref)
	if listErr != nil {
		return remote.Manifest{}, "", err
	}
	if o, wrong := Of(ref, m); wrong != nil || !o.HasVariants() {
		return remote.Manifest{}, "", err
	}
	return m, variant, nil
}

// about prefixes an error with the reference.
func (o *Origin) about(err error) error {
	if o.Ref == (remote.Ref{}) {
		return err
	}
	return fmt.Errorf("%s: %w", o.Ref, err)
}

// Child returns the reference of an entry of an index.
func (o *Origin) Child(d digest.Digest) remote.Ref {
	return remote.Ref{Host: o.Ref.Host, Repository: o.Ref.Repository, Digest: d}
}

// isTable reports whether a layer is a file table.
func isTable(d convert.Descriptor) bool { return d.MediaType == mediatype.TableLayer }

// Extends reports whether an image with a file table has layers besides those of the model.
func Extends(m *convert.Manifest) bool {
	return slices.ContainsFunc(m.Layers, func(d convert.Descriptor) bool { return !isTable(d) && d.MediaType != mediatype.BlobLayer })
}

// Ahead reports whether o is an image that was converted before it was pushed.
func (o *Origin) Ahead() bool { return slices.ContainsFunc(o.Manifest.Layers, isTable) }

// isModel reports whether o is a model that must be converted.
func (o *Origin) isModel() bool {
	return o.Format != mediatype.FormatImage && o.Format != mediatype.FormatIndex
}

// HasVariants reports whether o is a model in several variants.
func (o *Origin) HasVariants() bool { return formats.All().Get(string(o.Format)).Variants != nil }

// IsArchive reports whether o has an archive, whose files are not blobs of the registry.
func (o *Origin) IsArchive() bool { return formats.All().Get(string(o.Format)).Archives != nil }

// Wanted returns the format of o if it is treated as a model, as an artifact that is mounted by the
// titles of its layers; "" if it cannot be one, or is a model anyway.
func (o *Origin) Wanted() mediatype.Format {
	if o.Format != mediatype.FormatImage || o.Ahead() {
		return ""
	}
	return formats.All().Wanted(o.Manifest)
}

// AsFiles treats o as a model of the format that it can be.
func (o *Origin) AsFiles() { o.Format = cmp.Or(o.Wanted(), o.Format) }

// WantsTitled reports whether Titled has the repository of o.
func (r *Resolver) WantsTitled(o *Origin) bool { return r.Titled != nil && r.Titled(o.Ref.Name()) }

// Forget drops the documents, which can be large. The reference and the repository remain.
func (o *Origin) Forget() {
	o.Served.Bytes, o.Manifest, o.choice, o.artifact = nil, nil, nil, nil
}

// PrefixOf returns Prefix of a name.
func (r *Resolver) PrefixOf(name string) string {
	if r.Prefix == nil || name == "" {
		return ""
	}
	return r.Prefix(name)
}

// KeyAs is Key for an origin without variants, treated as one of a format.
func (r *Resolver) KeyAs(o *Origin, f mediatype.Format) filetable.Origin {
	return filetable.Origin{Format: string(f), Digest: o.Served.Digest, Mapping: convert.MappingVersion, Prefix: r.PrefixOf(o.Ref.Name())}
}

// Key returns what the image is made from. It chooses one of several variants.
func (r *Resolver) Key(o *Origin) (filetable.Origin, error) {
	if !o.HasVariants() {
		return r.KeyAs(o, o.Format), nil
	}
	if o.choice == nil {
		var err error
		if o.choice, err = formats.All().Get(string(o.Format)).Variants.Choose(o.Served.Bytes, cmp.Or(o.variant, r.Variant)); err != nil {
			return filetable.Origin{}, o.about(&format.ArtifactError{Err: err})
		}
	}
	key := o.choice.Origin
	key.Prefix = r.PrefixOf(o.Ref.Name())
	return key, nil
}

// Model parses an origin that is a model. It returns convert.ErrNotModel if the origin turns out
// not to be one, errdefs.ErrNotImplemented, naming the format, for one that is not supported, and
// otherwise the errors of its parser, all in an *format.ArtifactError.
func (r *Resolver) Model(ctx context.Context, o *Origin) (*convert.Model, error) {
	if _, err := r.Key(o); err != nil {
		return nil, err
	}
	model, err := r.parse(ctx, o)
	if err != nil {
		return nil, o.about(&format.ArtifactError{Err: err})
	}
	model.Table.Origin.Prefix = r.PrefixOf(o.Ref.Name())
	return model, nil
}

func (r *Resolver) parse(ctx context.Context, o *Origin) (*convert.Model, error) {
	if o.choice != nil {
		return o.choice.Parse(ctx, o.artifact)
	}
	return formats.All().ParseAs(ctx, r.Settings, o.Format, o.artifact, o.Manifest)
}

// Archive returns the format and the URL of the archive of a reference: one that is a URL, or one
// of the hosts of Archives; nil for any other.
func (r *Resolver) Archive(ref remote.Ref) (f *format.Format, address string) {
	if ref.URL != "" {
		return formats.All().OfURL(ref.String())
	}
	// Neither can have a character with a meaning in a URL, or go up.
	return formats.All().OfURL(strings.NewReplacer("{repository}", ref.Repository, "{tag}", ref.Tag).Replace(r.Archives[ref.Host]))
}
