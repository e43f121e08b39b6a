package verify

import (
	"hash"
	"io"

	"github.com/opencontainers/go-digest"
)

// NewReader returns a reader for streaming a blob: it reads r and compares digest and size at the
// end. If they are wrong, Read returns an *Error instead of the last bytes, so the consumer never
// has all of them. An end of r before size bytes is also an *Error.
func NewReader(r io.Reader, d digest.Digest, size int64) io.Reader {
	return &reader{r: r, d: d, size: size, hash: digest.SHA256.Hash()}
}

type reader struct {
	r    io.Reader
	d    digest.Digest
	size int64
	hash hash.Hash
	n    int64
	err  error // of the comparison, when n is size
	done bool
}

func (v *reader) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.r.Read(p)
	v.n += int64(n)
	v.hash.Write(p[:n])
	switch {
	case v.n > v.size, v.n < v.size && err == io.EOF:
		v.err = Compare(v.d, v.d, v.size, v.n)
		return 0, v.err
	case v.n == v.size && !v.done:
		v.done = true
		if v.err = Compare(v.d, digest.NewDigest(digest.SHA256, v.hash), v.size, v.n); v.err != nil {
			return 0, v.err
		}
	}
	return n, err
}
