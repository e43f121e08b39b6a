package verify

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// An Error says that bytes do not have the digest or the size they should have.
// errors.Is(err, errdefs.ErrDataLoss) holds for it.
type Error struct {
	Want, Got         digest.Digest
	WantSize, GotSize int64
}

func (e *Error) Error() string {
	if e.WantSize != e.GotSize {
		return fmt.Sprintf("blob %s: got %d bytes, want %d", e.Want, e.GotSize, e.WantSize)
	}
	return fmt.Sprintf("blob %s: content has digest %s", e.Want, e.Got)
}

// Unwrap returns errdefs.ErrDataLoss.
func (e *Error) Unwrap() error { return errdefs.ErrDataLoss }

// Empty is the digest of no bytes.
var Empty = digest.FromBytes(nil)

// Compare is the one place where digests are compared. It returns an *Error if digests or sizes, in
// bytes, differ.
func Compare(want, got digest.Digest, wantSize, gotSize int64) error {
	if want != got || wantSize != gotSize {
		return &Error{Want: want, Got: got, WantSize: wantSize, GotSize: gotSize}
	}
	return nil
}

// ParseDigest parses a digest from outside. Only sha256 in lower case is accepted; another
// algorithm gives errdefs.ErrNotImplemented, anything else errdefs.ErrInvalidArgument.
func ParseDigest(s string) (digest.Digest, error) {
	d, err := digest.Parse(s)
	switch {
	case errors.Is(err, digest.ErrDigestUnsupported), err == nil && d.Algorithm() != digest.SHA256:
		return "", fmt.Errorf("digest %.200q: only sha256 is supported: %w", s, errdefs.ErrNotImplemented)
	case err != nil:
		return "", fmt.Errorf("digest %.200q: %w: %w", s, err, errdefs.ErrInvalidArgument)
	}
	return d, nil
}

// Read reads a small blob of the given digest and size whole. It reads at most
// size+1 bytes, and refuses a size above limit with errdefs.ErrInvalidArgument before
// reading. It returns an *Error if the bytes are not the blob's.
func Read(r io.Reader, d digest.Digest, size, limit int64) ([]byte, error) {
	if size < 0 || size > limit {
		return nil, fmt.Errorf("blob %s: size %d is not within 0 to %d: %w", d, size, limit, errdefs.ErrInvalidArgument)
	}
	p, err := io.ReadAll(io.LimitReader(r, size+1))
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d, err)
	}
	if err := Compare(d, digest.FromBytes(p), size, int64(len(p))); err != nil {
		return nil, err
	}
	return p, nil
}

// Bytes returns an *Error if p does not have digest d.
func Bytes(d digest.Digest, p []byte) error {
	return Compare(d, digest.FromBytes(p), int64(len(p)), int64(len(p)))
}

// A Hash computes the digest of what is written to it.
type Hash struct{ h hash.Hash }

// NewHash returns a Hash of nothing.
func NewHash() Hash { return Hash{sha256.New()} }

// Write implements io.Writer. It never fails.
func (h Hash) Write(p []byte) (int, error) { return h.h.Write(p) }

// Digest returns the digest of what was written so far.
func (h Hash) Digest() digest.Digest { return digest.NewDigest(digest.SHA256, h.h) }
