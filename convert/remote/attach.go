package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ballast-dev/ballast/convert"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PutReferrer uploads a manifest or index, whose bytes name subject, under its digest. desc
// describes it in the list of referrers; its digest and size are computed from the bytes. If the
// registry does not support the referrers API, PutReferrer also adds it to the fallback tag, where
// a concurrent update can be lost.
// https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md#pushing-manifests-with-subject
func (r *Repository) PutReferrer(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor, p []byte) error {
	desc.Digest, desc.Size = digest.FromBytes(p), int64(len(p))
	header, err := r.pushManifest(ctx, desc.Digest.String(), desc.MediaType, p)
	if err != nil || header.Get("OCI-Subject") != "" {
		return err
	}
	return r.list(ctx, subject, desc)
}

// maxAttached limits the referrers of one type that are compared: the latest one can be the last.
const maxAttached = 1000

// Attached returns the layer of the latest referrer of a manifest with an artifactType. It returns
// errdefs.ErrNotFound if there is none, and errdefs.ErrInvalidArgument if it has more than limit bytes, or another
// number of layers than one.
func (r *Repository) Attached(ctx context.Context, subject digest.Digest, artifactType string, limit int64) ([]byte, error) {
	list, err := r.Referrers(ctx, subject, maxAttached, artifactType)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %s has no referrer of type %s: %w", r, subject, artifactType, errdefs.ErrNotFound)
	}
	last := slices.MaxFunc(list, func(a, b ocispec.Descriptor) int {
		return strings.Compare(a.Annotations[ocispec.AnnotationCreated], b.Annotations[ocispec.AnnotationCreated])
	})
	served, err := r.Manifest(ctx, last.Digest.String())
	if err != nil {
		return nil, err
	}
	return r.Artifact(served).Layer(ctx, limit)
}

// EmptyConfig is the config of an artifact without one.
// https://github.com/opencontainers/image-spec/blob/v1.1.1/manifest.md#guidance-for-an-empty-descriptor
var EmptyConfig = []byte("{}")

// OneLayer returns the manifest of an artifact with EmptyConfig and one layer, as Artifact.Layer reads it.
func OneLayer(artifactType string, layer ocispec.Descriptor) ocispec.Manifest {
	return ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIManifest, ArtifactType: artifactType,
		Config: ocispec.Descriptor{MediaType: mediatype.OCIEmpty, Digest: digest.FromBytes(EmptyConfig), Size: int64(len(EmptyConfig))},
		Layers: []ocispec.Descriptor{layer},
	}
}

// Layer returns the layer of a small artifact that has one. It returns errdefs.ErrInvalidArgument if the layer has more
// than limit bytes, if there is another number of layers, or if the manifest is long.
func (a *Artifact) Layer(ctx context.Context, limit int64) ([]byte, error) {
	if len(a.m.Bytes) > convert.SmallDocument {
		return nil, fmt.Errorf("%s@%s has more than %d bytes: %w", a.r, a.m.Digest, convert.SmallDocument, errdefs.ErrInvalidArgument)
	}
	m, err := convert.ParseManifest(a.m.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", a.r, a.m.Digest, err)
	}
	if len(m.Layers) != 1 {
		return nil, fmt.Errorf("%s@%s has %d layers, not one: %w", a.r, a.m.Digest, len(m.Layers), errdefs.ErrInvalidArgument)
	}
	return a.ReadBlob(ctx, m.Layers[0].Descriptor, limit)
}

// list adds a referrer to the fallback tag.
func (r *Repository) list(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: mediatype.OCIIndex, Manifests: []ocispec.Descriptor{}}
	had, err := r.Tagged(ctx, ReferrersTag(subject))
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err == nil {
		if err := json.Unmarshal(had.Bytes, &index); err != nil {
			return fmt.Errorf("%s:%s: %w: %w", r, ReferrersTag(subject), err, errdefs.ErrInvalidArgument)
		}
	}
	if slices.ContainsFunc(index.Manifests, func(m ocispec.Descriptor) bool { return m.Digest == desc.Digest }) {
		return nil
	}
	index.Manifests = append(index.Manifests, desc)
	p, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return r.PushManifest(ctx, ReferrersTag(subject), mediatype.OCIIndex, p)
}
