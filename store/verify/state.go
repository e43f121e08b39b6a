package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A State is the state of sha256 after the first n bytes of a file: its 8 words, big endian, and
// the bytes after the last multiple of 64, which are not yet hashed. It has 32 + n%64 bytes.
//
// Bytes between two states are verified separately, in any order: they are right if continuing the
// hash from the first state with them gives the second. If all bytes of a file are right between
// the states of a list, from the empty state to the digest of the file, then the file has this
// digest. The list itself need not be trusted: with a wrong list, verification either fails or
// still yields the right file.
type State []byte

const (
	wordsLen = sha256.Size
	blockLen = sha256.BlockSize
)

// The encoding of a hash by crypto/sha256: a magic, the words, a block with the bytes not yet
// hashed, and the length.
//
// https://github.com/golang/go/blob/go1.26.0/src/crypto/internal/fips140/sha256/sha256.go#L60
const (
	magic     = "sha\x03"
	atWords   = len(magic)
	atBlock   = atWords + wordsLen
	atLen     = atBlock + blockLen
	marshaled = atLen + 8
)

// Valid reports whether s may be a state after n bytes.
func (s State) Valid(n int64) bool { return n > 0 && len(s) == wordsLen+int(n%blockLen) }

// Resume returns a Hash that continues after the first n bytes, which had the state s; s is nil for
// n = 0. It returns errdefs.ErrInvalidArgument if s cannot be a state after n bytes.
func Resume(s State, n int64) (Hash, error) {
	h := NewHash()
	if n == 0 && s == nil {
		return h, nil
	}
	if !s.Valid(n) {
		return h, fmt.Errorf("no state of a hash of %d bytes: %w", n, errdefs.ErrInvalidArgument)
	}
	p := make([]byte, marshaled)
	copy(p, magic)
	copy(p[atWords:], s[:wordsLen])
	copy(p[atBlock:], s[wordsLen:])
	binary.BigEndian.PutUint64(p[atLen:], uint64(n))
	return h, h.h.(encoding.BinaryUnmarshaler).UnmarshalBinary(p)
}

// State returns the state after the bytes written so far, which must not be empty.
func (h Hash) State() (State, error) {
	p, err := h.h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return nil, err
	}
	if len(p) != marshaled || string(p[:atWords]) != magic {
		return nil, fmt.Errorf("unknown encoding of the state of sha256: %w", errdefs.ErrNotImplemented)
	}
	n := binary.BigEndian.Uint64(p[atLen:])
	return State(bytes.Clone(append(p[atWords:atBlock:atBlock], p[atBlock:][:n%blockLen]...))), nil
}

// A Step is a range of a file between two states.
type Step struct {
	Off    int64 // in the file
	Before State // nil at the start of the file

	After State         // nil at the end of the file
	Whole digest.Digest // of the file, at its end
}

// Verify returns an *Error if p are not the bytes of the step, and errdefs.ErrInvalidArgument if
// Before is not a state.
func (s Step) Verify(p []byte) error {
	h, err := Resume(s.Before, s.Off)
	if err != nil {
		return err
	}
	h.Write(p)
	n := int64(len(p))
	if s.After == nil {
		return Compare(s.Whole, h.Digest(), n, n)
	}
	after, err := h.State()
	if err != nil {
		return err
	}
	return Compare(digest.FromBytes(s.After), digest.FromBytes(after), n, n)
}
