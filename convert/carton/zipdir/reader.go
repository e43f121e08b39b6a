package zipdir

import (
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// MaxWindow limits the window of zstd, in bytes. The reference encoder uses at most 128 MiB by
// default.
// https://github.com/facebook/zstd/blob/v1.5.7/programs/zstd.1.md
const MaxWindow = 128 << 20 // 128 MiB

// NewReader returns the content of an entry, whose bytes in the archive are data. Reading returns
// errdefs.ErrInvalidArgument if the content has another size or checksum than in the directory; it
// never reads more than the size. Close frees memory, and does not close data.
func NewReader(data io.Reader, e *Entry) (io.ReadCloser, error) {
	src := &source{r: data, left: e.Packed}
	r := &reader{e: e, src: src, left: e.Size, crc: crc32.NewIEEE(), close: func() {}}
	switch e.Method {
	case Stored:
		r.r = src
	case Deflate:
		f := flate.NewReader(src)
		r.r, r.close = f, func() { f.Close() }
	case Zstd:
		z, err := zstd.NewReader(src, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(MaxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("entry %q: %w", e.Name, err)
		}
		r.r, r.close = z, z.Close
	default:
		panic(fmt.Sprintf("zipdir: internal error: method %d", e.Method))
	}
	return r, nil
}

// A source is the data of an entry. It distinguishes a read error from invalid data.
type source struct {
	r    io.Reader
	left int64
	err  error // why there are fewer bytes than expected
}

func (s *source) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left)])
	s.left -= int64(n)
	if s.left == 0 {
		return n, io.EOF
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	s.err = err
	return n, err
}

type reader struct {
	e     *Entry
	src   *source
	r     io.Reader
	left  int64
	crc   hash.Hash32
	done  bool
	err   error
	close func()
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.left == 0 {
		r.err = r.end()
		return 0, r.err
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	r.crc.Write(p[:n])
	switch {
	case err == io.EOF && r.left > 0:
		r.err = invalid("entry %q: ends %d bytes early", r.e.Name, r.left)
	case err != nil && err != io.EOF:
		r.err = r.failed(err)
	}
	return n, r.err
}

func (r *reader) failed(err error) error {
	if r.src.err != nil {
		return fmt.Errorf("entry %q: %w", r.e.Name, r.src.err)
	}
	return invalid("entry %q: %w", r.e.Name, err)
}

// end makes the checks that need all bytes.
func (r *reader) end() error {
	var more [1]byte
	for range 16 { // empty reads are allowed
		n, err := r.r.Read(more[:])
		switch {
		case n > 0:
			return invalid("entry %q: has more than %d bytes", r.e.Name, r.e.Size)
		case err == io.EOF:
			if !r.e.bare && r.crc.Sum32() != r.e.raw.crc {
				return invalid("entry %q: wrong checksum", r.e.Name)
			}
			return io.EOF
		case err != nil:
			return r.failed(err)
		}
	}
	return io.ErrNoProgress
}

func (r *reader) Close() error {
	if !r.done {
		r.done = true
		r.err = fmt.Errorf("entry %q: %w", r.e.Name, io.ErrClosedPipe)
		r.close()
	}
	return nil
}
