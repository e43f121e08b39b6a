package verify

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// An Error means that bytes do not have the expected digest or size. It matches
// errdefs.ErrDataLoss.
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

// Empty is the digest of an empty file.
var Empty = digest.FromBytes(nil)

// Compare is the only place where digests are compared. It returns an *Error if the digests or the
// sizes, in bytes, differ.
func Compare(want, got digest.Digest, wantSize, gotSize int64) error {
	if want != got || wantSize != gotSize {
		return &Error{Want: want, Got: got, WantSize: wantSize, GotSize: gotSize}
	}
	return nil
}

// ParseDigest parses an untrusted digest. Only sha256 in lower case is accepted; another algorithm
// returns errdefs.ErrNotImplemented, anything else errdefs.ErrInvalidArgument.
func ParseDigest(s string) (digest.Digest, error) {
	if len(s) == len(Empty) && strings.HasPrefix(s, "sha256:") && strings.Trim(s[len("sha256:"):], "0123456789abcdef") == "" {
		return digest.Digest(s), nil // a table can have hundreds of thousands, and Parse uses regular expressions
	}
	d, err := digest.Parse(s)
	switch {
	case errors.Is(err, digest.ErrDigestUnsupported), err == nil && d.Algorithm() != digest.SHA256:
		return "", fmt.Errorf("digest %.200q: only sha256 is supported: %w", s, errdefs.ErrNotImplemented)
	case err != nil:
		return "", fmt.Errorf("digest %.200q: %w: %w", s, err, errdefs.ErrInvalidArgument)
	}
	return d, nil
}

// Read reads and verifies a small blob. It reads at most size+1 bytes, and refuses a size above
// limit with errdefs.ErrInvalidArgument before reading. It returns an *Error if the bytes are
// wrong.
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

// NewHash returns an empty Hash.
func NewHash() Hash { return Hash{sha256.New()} }

// Write implements io.Writer. It never fails.
func (h Hash) Write(p []byte) (int, error) { return h.h.Write(p) }

// Digest returns the digest of the bytes written so far.
func (h Hash) Digest() digest.Digest { return digest.NewDigest(digest.SHA256, h.h) }
