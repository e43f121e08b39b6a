package converttest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An Artifact is a Built as a convert.Artifact. It counts what is read of each blob.
type Artifact struct {
	built *Built

	mu    sync.Mutex // guards read
	read  map[digest.Digest]int64
	whole map[digest.Digest]bool
}

// NewArtifact returns b as a convert.Artifact.
func NewArtifact(b *Built) *Artifact {
	return &Artifact{built: b, read: map[digest.Digest]int64{}, whole: map[digest.Digest]bool{}}
}

// Manifest returns the manifest.
func (a *Artifact) Manifest() []byte { return a.built.Manifest }

// ReadBlob reads a blob whole; see convert.Artifact.
func (a *Artifact) ReadBlob(_ context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	p, ok := a.built.Blobs[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	b, err := verify.Read(bytes.NewReader(p), desc.Digest, desc.Size, limit)
	if err == nil {
		a.count(desc.Digest, len(b), true)
	}
	return b, err
}

// BlobAt returns ranged reads of a blob; see convert.Artifact.
func (a *Artifact) BlobAt(_ context.Context, desc ocispec.Descriptor) (io.ReaderAt, error) {
	p, ok := a.built.Blobs[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return &blobAt{a: a, d: desc.Digest, r: bytes.NewReader(p)}, nil
}

// BytesRead returns how many bytes of a blob were read.
func (a *Artifact) BytesRead(d digest.Digest) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.read[d]
}

// ReadWhole reports whether a blob was read whole, by ReadBlob.
func (a *Artifact) ReadWhole(d digest.Digest) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.whole[d]
}

func (a *Artifact) count(d digest.Digest, n int, whole bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read[d] += int64(n)
	a.whole[d] = a.whole[d] || whole
}

type blobAt struct {
	a *Artifact
	d digest.Digest
	r *bytes.Reader
}

func (b *blobAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := b.r.ReadAt(p, off)
	b.a.count(b.d, n, false)
	return n, err
}
