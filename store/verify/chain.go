package verify

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"
)

// Head and Window divide a file that is longer than Window: the first Head bytes, which programs look at first, the
// rest of the first Window bytes, and every Window bytes after them.
const (
	Head   = 256 << 10 // 256 KiB
	Window = 4 << 20   // 4 MiB
)

// A Chain is the states of sha256 after each window of a file that is longer than Window, without the one at its end:
// 32 bytes each, 8 KiB for 1 GiB. With it, each window is verified separately (Step). Only who has hashed the file can
// make it, and whoever verifies a window by it trusts its author, until all windows of the file are right.
type Chain []byte

// End returns the end of window i of a file of size bytes.
func End(i int, size int64) int64 {
	if i == 0 {
		return min(Head, size)
	}
	return min(int64(i)*Window, size)
}

// Valid reports whether c can be the chain of a file of size bytes.
func (c Chain) Valid(size int64) bool {
	return size > Window && int64(len(c)) == (1+(size-1)/Window)*wordsLen
}

// State returns the state after window i; nil after the last.
func (c Chain) State(i int) State {
	if (i+1)*wordsLen > len(c) {
		return nil
	}
	return State(c[i*wordsLen:][:wordsLen:wordsLen])
}

// Add writes p, which begins at off in a file of size bytes, to h, and appends the states after the windows that end
// in p. h and c have what is before it.
func (c *Chain) Add(h Hash, p []byte, off, size int64) error {
	for len(p) > 0 {
		end := End(len(*c)/wordsLen, size)
		n := min(end-off, int64(len(p)))
		h.Write(p[:n])
		off, p = off+n, p[n:]
		if off < end || end == size {
			continue
		}
		s, err := h.State()
		if err != nil {
			return err
		}
		*c = append(*c, s...)
	}
	return nil
}

// ReadChain reads a file of size bytes and returns its chain, which is not Valid if there is at most one window. It
// calls progress with the number of bytes after each window. It returns an *Error if the file does not have digest d,
// and the error of ctx if that ends.
func ReadChain(ctx context.Context, r io.Reader, d digest.Digest, size int64, progress func(done int64)) (c Chain, err error) {
	h, n, buf := NewHash(), int64(0), make([]byte, Window)
	for n < size {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		got, err := io.ReadFull(r, buf[:min(Window, size-n)])
		if err := c.Add(h, buf[:got], n, size); err != nil {
			return nil, err
		}
		if n += int64(got); err != nil {
			return nil, Compare(d, h.Digest(), size, n)
		}
		progress(n)
	}
	return c, Compare(d, h.Digest(), size, n)
}
