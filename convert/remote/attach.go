package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

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
