// Package hashstate reads and writes tables of hash states: the chain of states of a blob (verify.Chain), which allows
// others to verify each window of the blob before they have all of it. A table is an artifact of a registry:
//
//	tag        sha256-<hex of the blob's digest>.states
//	manifest   artifactType application/vnd.ballast.states.v1, with one layer
//	layer      a bundle (package dsse): a signed statement
//	statement  subject: the blob; predicate: its size, the bytes of the windows, and the states
//
// A table is for a blob, not for a model: models share blobs, and it says nothing about names. Who signs it vouches
// for what is read of the blob before it is complete, and for nothing after that: wrong bytes need a signer and a
// source of the blob that lie together. A table comes from the registry that the node names, never from that of the
// model.
package hashstate

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/signature/dsse"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PredicateType is the predicate type of the statement.
const PredicateType = "https://ballast.dev/hash-states/v1"

// MaxBlob is the size in bytes of the largest blob with a table: its bundle has dsse.MaxSize bytes.
const MaxBlob = 512 << 30 // 512 GiB

// predicate is the predicate of the statement.
type predicate struct {
	Size   int64        `json:"size"`   // bytes of the blob
	Head   int64        `json:"head"`   // bytes before the first state
	Window int64        `json:"window"` // bytes before the second, and between two after it
	States verify.Chain `json:"states"`
}

// Tag returns the tag of the table of a blob.
func Tag(blob digest.Digest) string {
	return blob.Algorithm().String() + "-" + blob.Encoded() + ".states"
}

// Sign returns the bundle for the chain of a blob. It returns errdefs.ErrInvalidArgument if the chain cannot be that of
// the blob, or if the blob is too large.
func Sign(key crypto.Signer, b filetable.Blob, c verify.Chain) ([]byte, error) {
	if b.Size > MaxBlob || !c.Valid(b.Size) {
		return nil, fmt.Errorf("hash states of %d bytes for blob %s of %d bytes, of which at most %d have a table: %w",
			len(c), b.Digest, b.Size, int64(MaxBlob), errdefs.ErrInvalidArgument)
	}
	p, err := json.Marshal(predicate{b.Size, verify.Head, verify.Window, c})
	if err != nil {
		return nil, err
	}
	return dsse.Sign(key, dsse.Statement{
		Type: dsse.StatementType, Subject: []dsse.Subject{{Digest: map[string]string{"sha256": b.Digest.Encoded()}}},
		PredicateType: PredicateType, Predicate: p,
	})
}

// Open returns the chain of a blob that a bundle has, and who signed it. It returns errdefs.ErrPermissionDenied if no
// trusted key did, errdefs.ErrFailedPrecondition if it is about another blob, and errdefs.ErrInvalidArgument if it
// cannot be the chain of the blob.
func Open(bundle []byte, t *dsse.Trust, b filetable.Blob) (c verify.Chain, signer string, err error) {
	parsed, err := dsse.Parse(bundle)
	if err != nil {
		return nil, "", err
	}
	s, signer, err := t.Verify(parsed)
	if err != nil {
		return nil, "", err
	}
	if s.PredicateType != PredicateType || len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != b.Digest.Encoded() {
		return nil, signer, fmt.Errorf("the statement by %s has no hash states of %s: %w", signer, b.Digest, errdefs.ErrFailedPrecondition)
	}
	var p predicate
	if err := json.Unmarshal(s.Predicate, &p); err != nil {
		return nil, signer, fmt.Errorf("hash states by %s: %w: %w", signer, err, errdefs.ErrInvalidArgument)
	}
	if p.Size != b.Size || p.Head != verify.Head || p.Window != verify.Window || !p.States.Valid(b.Size) {
		return nil, signer, fmt.Errorf("hash states by %s: %d bytes of states in windows of %d of a blob of %d bytes, which has %d: %w",
			signer, len(p.States), p.Window, p.Size, b.Size, errdefs.ErrInvalidArgument)
	}
	return p.States, signer, nil
}

// Limit returns how many bytes the bundle of a table of a blob can have: its states are base64 twice, beside a
// signature and what proves when it was made.
func Limit(b filetable.Blob) int64 {
	const rest = 64 << 10
	states := (1 + b.Size/verify.Window) * 32
	return min(2*states+rest, dsse.MaxSize)
}

// Read returns what Open does of the table that a repository has for a blob, or errdefs.ErrNotFound.
func Read(ctx context.Context, src *remote.Repository, t *dsse.Trust, b filetable.Blob) (c verify.Chain, signer string, err error) {
	m, err := src.Manifest(ctx, Tag(b.Digest))
	if err != nil {
		return nil, "", err
	}
	p, err := src.Artifact(m).Layer(ctx, Limit(b))
	if err != nil {
		return nil, "", err
	}
	return Open(p, t, b)
}

// Write writes the table of a blob, signed by a key, and reports whether the repository did not have it. It replaces
// another table of the blob.
func Write(ctx context.Context, dst *remote.Repository, key crypto.Signer, b filetable.Blob, c verify.Chain) (written bool, err error) {
	bundle, err := Sign(key, b, c)
	if err != nil {
		return false, err
	}
	m := remote.OneLayer(mediatype.States, ocispec.Descriptor{MediaType: mediatype.Bundle, Digest: digest.FromBytes(bundle), Size: int64(len(bundle))})
	p, err := json.Marshal(m)
	if err != nil {
		return false, err
	}
	tag := Tag(b.Digest)
	if had, err := dst.Tagged(ctx, tag); err == nil && bytes.Equal(had.Bytes, p) {
		return false, nil
	}
	for _, blob := range []struct {
		ocispec.Descriptor
		p []byte
	}{{m.Config, remote.EmptyConfig}, {m.Layers[0], bundle}} {
		open := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(blob.p)), nil }
		if has, err := dst.Has(ctx, blob.Digest, blob.Size); err == nil && has {
			continue
		}
		if err := dst.Put(ctx, blob.Digest, blob.Size, open); err != nil {
			return false, err
		}
	}
	return true, dst.PushManifest(ctx, tag, mediatype.OCIManifest, p)
}
