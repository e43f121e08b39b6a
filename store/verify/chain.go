package verify

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"
)

// Window is the number of bytes of a file between two states of a Chain.
const Window = 4 << 20 // 4 MiB

// A Chain is the states of sha256 after each Window bytes of a file that is longer than that, without the one at its
// end: 32 bytes each, 8 KiB for 1 GiB. With it, each window is verified separately (Step). Only who has hashed the
// file can make it, and whoever verifies a window by it trusts its author, until all windows of the file are right.
type Chain []byte

// Valid reports whether c can be the chain of a file of size bytes.
func (c Chain) Valid(size int64) bool {
	return size > Window && int64(len(c)) == (size-1)/Window*wordsLen
}

// State returns the state after window i; nil after the last.
func (c Chain) State(i int) State {
	if (i+1)*wordsLen > len(c) {
		return nil
	}
	return State(c[i*wordsLen:][:wordsLen:wordsLen])
}

// Add appends the state of h, which has hashed all windows so far and the next one.
func (c *Chain) Add(h Hash) error {
	s, err := h.State()
	*c = append(*c, s...)
	return err
}

// ReadChain reads a file of size bytes and returns its chain, which is not Valid if there is at most one window. It
// calls progress with the number of bytes after each window. It returns an *Error if the file does not have digest d,
// and the error of ctx if that ends.
func ReadChain(ctx context.Context, r io.Reader, d digest.Digest, size int64, progress func(done int64)) (c Chain, err error) {
	h, n := NewHash(), int64(0)
	for n < size {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		part, err := io.CopyN(h, r, min(Window, size-n))
		if n += part; err != nil {
			return nil, Compare(d, h.Digest(), size, n)
		}
		progress(n)
		if n < size {
			if err := c.Add(h); err != nil {
				return nil, err
			}
		}
	}
	return c, Compare(d, h.Digest(), size, n)
}
