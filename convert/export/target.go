package export

import (
	"cmp"
	"context"

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

	// Put writes a blob. open returns its verified bytes, and is called again for a retry.
	Put(ctx context.Context, d digest.Digest, size int64, open Opener) error

	// Mount is Put, without the bytes if the target has the blob in another repository, as it reports.
	Mount(ctx context.Context, d digest.Digest, size int64, host, repository string, open Opener) (mounted bool, err error)

	// PutStream writes bytes whose digest is not known before, and returns it.
	PutStream(ctx context.Context, size int64, open Opener) (digest.Digest, error)

	// Named returns the manifest that has the name of the target; nil if there is none, or the
	// target has no name.
	Named(ctx context.Context) ([]byte, error)

	// PutManifest writes the manifest, under the name of the target.
	PutManifest(ctx context.Context, mediaType string, p []byte) error

	// PutReferrer writes a manifest or index that refers to another one, its subject, without a
	// name. The subject need not exist yet. The digest and size of desc match the bytes.
	PutReferrer(ctx context.Context, subject digest.Digest, desc ocispec.Descriptor, p []byte) error
}

var (
	_ Target = (*layout.Layout)(nil)
	_ Target = (*Registry)(nil)
)

// An Opener opens bytes at the first one.
type Opener = remote.Opener

// A Registry is a repository as a Target, with a tag if the manifest gets one.
type Registry struct {
	*remote.Repository
	ref remote.Ref
}

// NewRegistry returns the target for a reference in repo. Without a tag, the manifest has only its
// digest.
func NewRegistry(repo *remote.Repository, ref remote.Ref) *Registry { return &Registry{repo, ref} }

// String returns the reference.
func (r *Registry) String() string { return r.ref.String() }

// Named returns the manifest with the tag; nil if the registry has none, or the reference has no tag.
func (r *Registry) Named(ctx context.Context) ([]byte, error) {
	if r.ref.Tag == "" {
		return nil, nil
	}
	m, err := r.Tagged(ctx, r.ref.Tag)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	return m.Bytes, err
}

// PutManifest uploads the manifest under the tag, or under its digest if the reference has none.
func (r *Registry) PutManifest(ctx context.Context, mediaType string, p []byte) error {
	return r.PushManifest(ctx, cmp.Or(r.ref.Tag, digest.FromBytes(p).String()), mediaType, p)
}
