package push

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Nowhere is a target that has nothing and takes nothing: that of a dry run to a layout that does
// not exist. Its value is its name.
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
