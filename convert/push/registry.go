package push

import (
	"cmp"
	"context"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var _ Target = (*Registry)(nil)

// A Registry is a repository as a Target, with a tag if the manifest is to have one.
type Registry struct {
	repo *remote.Repository
	ref  remote.Ref
}

// NewRegistry returns the target for a reference in repo. Without a tag, the manifest has its digest only.
func NewRegistry(repo *remote.Repository, ref remote.Ref) *Registry { return &Registry{repo, ref} }

// String returns the reference.
func (r *Registry) String() string { return r.ref.String() }

// Has reports whether the repository has a blob.
func (r *Registry) Has(ctx context.Context, d digest.Digest, _ int64) (bool, error) {
	return r.repo.HasBlob(ctx, d)
}

// Mount takes a blob over from another repository of the same registry.
func (r *Registry) Mount(ctx context.Context, d digest.Digest, host, repository string) (bool, error) {
	if host != r.repo.Host() || repository == r.ref.Repository {
		return false, nil
	}
	return r.repo.MountBlob(ctx, d, repository)
}

// Put uploads a blob.
func (r *Registry) Put(ctx context.Context, d digest.Digest, size int64, open Opener) error {
	body, err := open(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	return r.repo.PushBlob(ctx, d, size, body)
}

// PutStream uploads bytes whose digest is not known.
func (r *Registry) PutStream(ctx context.Context, size int64, open Opener) (digest.Digest, error) {
	body, err := open(ctx)
	if err != nil {
		return "", err
	}
	defer body.Close()
	return r.repo.PushStream(ctx, size, body)
}

// PutManifest uploads the manifest under the tag, or under its digest if the reference has none.
func (r *Registry) PutManifest(ctx context.Context, mediaType string, p []byte) error {
	return r.repo.PushManifest(ctx, cmp.Or(r.ref.Tag, digest.FromBytes(p).String()), mediaType, p)
}

// PutReferrer uploads a manifest that refers to another.
func (r *Registry) PutReferrer(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor, p []byte) error {
	return r.repo.PushReferrer(ctx, subject, desc, p)
}
