package store

import (
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A VerifyError says that bytes do not have the digest or the size they should have.
// errors.Is(err, errdefs.ErrDataLoss) holds for it.
type VerifyError struct {
	Want, Got         digest.Digest
	WantSize, GotSize int64
}

func (e *VerifyError) Error() string {
	if e.WantSize != e.GotSize {
		return fmt.Sprintf("blob %s: got %d bytes, want %d", e.Want, e.GotSize, e.WantSize)
	}
	return fmt.Sprintf("blob %s: content has digest %s", e.Want, e.Got)
}

// Unwrap returns errdefs.ErrDataLoss.
func (e *VerifyError) Unwrap() error { return errdefs.ErrDataLoss }

// verify is the one place where digests are compared.
func verify(want, got digest.Digest, wantSize, gotSize int64) error {
	if want != got || wantSize != gotSize {
		return &VerifyError{Want: want, Got: got, WantSize: wantSize, GotSize: gotSize}
	}
	return nil
}

// ParseDigest parses a digest from outside. Only sha256 in lower case is accepted; another
// algorithm gives errdefs.ErrNotImplemented, anything else errdefs.ErrInvalidArgument.
func ParseDigest(s string) (digest.Digest, error) {
	d, err := digest.Parse(s)
	switch {
	case errors.Is(err, digest.ErrDigestUnsupported), err == nil && d.Algorithm() != digest.SHA256:
		return "", fmt.Errorf("digest %q: only sha256 is supported: %w", clip(s), errdefs.ErrNotImplemented)
	case err != nil:
		return "", fmt.Errorf("digest %q: %w: %w", clip(s), err, errdefs.ErrInvalidArgument)
	}
	return d, nil
}

// ReadVerified reads a small blob of the given digest and size whole. It reads at most
// size+1 bytes, and refuses a size above limit with errdefs.ErrInvalidArgument before
// reading. It returns a *VerifyError if the bytes are not the blob's.
func ReadVerified(r io.Reader, d digest.Digest, size, limit int64) ([]byte, error) {
	if size < 0 || size > limit {
		return nil, fmt.Errorf("blob %s: size %d is not within 0 to %d: %w", d, size, limit, errdefs.ErrInvalidArgument)
	}
	p, err := io.ReadAll(io.LimitReader(r, size+1))
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d, err)
	}
	if err := verify(d, digest.FromBytes(p), size, int64(len(p))); err != nil {
		return nil, err
	}
	return p, nil
}

// VerifyBytes returns a *VerifyError if p does not have digest d.
func VerifyBytes(d digest.Digest, p []byte) error {
	return verify(d, digest.FromBytes(p), int64(len(p)), int64(len(p)))
}
