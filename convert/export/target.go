package export

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/convert/layout"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// A Target is the destination of a model. Its methods are safe for concurrent use, and return the
// errors of store.Fetcher.
type Target interface {
	// String returns its name.
	String() string

	// Has reports whether the target has a blob.
	Has(ctx context.Context, d digest.Digest, size int64) (bool, error)

	// Mount mounts a blob from another repository of the same registry, if the target supports it.
	Mount(ctx context.Context, d digest.Digest, host, repository string) (bool, error)

	// Put writes a blob. open returns its verified bytes, and is called again for a retry.
	Put(ctx context.Context, d digest.Digest, size int64, open Opener) error

	// PutStream writes bytes whose digest is not known before, and returns it.
	PutStream(ctx context.Context, size int64, open Opener) (digest.Digest, error)

	// PutManifest writes the manifest, under the name of the target.
	PutManifest(ctx context.Context, mediaType string, p []byte) error

	// PutReferrer writes a manifest or index that refers to another one, its subject, without a
	// name. The subject need not exist yet. The digest and size of desc match the bytes.
	PutReferrer(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor, p []byte) error
}

var (
	_ Target = (*layout.Layout)(nil)
	_ Target = (*Registry)(nil)
	_ Target = Nowhere("")
)

// An Opener opens bytes at the first one.
type Opener = func(ctx context.Context) (io.ReadCloser, error)

// A Registry is a repository as a Target, with a tag if the manifest gets one.
type Registry struct {
	repo *remote.Repository
	ref  remote.Ref
}

// NewRegistry returns the target for a reference in repo. Without a tag, the manifest has only its
// digest.
func NewRegistry(repo *remote.Repository, ref remote.Ref) *Registry { return &Registry{repo, ref} }

// String returns the reference.
func (r *Registry) String() string { return r.ref.String() }

// Has reports whether the repository has a blob.
func (r *Registry) Has(ctx context.Context, d digest.Digest, _ int64) (bool, error) {
	return r.repo.HasBlob(ctx, d)
}

// Mount mounts a blob from another repository of the same registry.
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

// PutReferrer uploads a manifest that refers to another one.
func (r *Registry) PutReferrer(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor, p []byte) error {
	return r.repo.PushReferrer(ctx, subject, desc, p)
}

// Nowhere is an empty target that cannot be written: that of a dry run to a layout that does not
// exist. Its value is its name.
type Nowhere string

// String returns the name.
func (n Nowhere) String() string { return string(n) }

// Has returns false.
func (n Nowhere) Has(context.Context, digest.Digest, int64) (bool, error) { return false, nil }

// Mount returns false.
func (n Nowhere) Mount(context.Context, digest.Digest, string, string) (bool, error) {
	return false, nil
}

// Put returns errdefs.ErrNotImplemented.
func (n Nowhere) Put(context.Context, digest.Digest, int64, Opener) error { return n.refuse() }

// PutStream returns errdefs.ErrNotImplemented.
func (n Nowhere) PutStream(context.Context, int64, Opener) (digest.Digest, error) {
	return "", n.refuse()
}

// PutManifest returns errdefs.ErrNotImplemented.
func (n Nowhere) PutManifest(context.Context, string, []byte) error { return n.refuse() }

// PutReferrer returns errdefs.ErrNotImplemented.
func (n Nowhere) PutReferrer(context.Context, digest.Digest, ocispec.Descriptor, []byte) error {
	return n.refuse()
}

func (n Nowhere) refuse() error {
	return fmt.Errorf("%s: nothing is written: %w", n, errdefs.ErrNotImplemented)
}
