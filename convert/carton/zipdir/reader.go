package zipdir

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// maxWindow limits the window of zstd, in bytes. The reference encoder uses at most 128 MiB by
// default.
// https://github.com/facebook/zstd/blob/v1.5.7/programs/zstd.1.md
const maxWindow = 128 << 20 // 128 MiB

// NewZstd returns the content of zstd frames. Close does not close r.
func NewZstd(r io.Reader) (io.ReadCloser, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// Open returns the content of an entry. body has the bytes of the archive from Entry.Start on; the
// content's Close closes it, as does an error of Open. Open returns errdefs.ErrInvalidArgument if
// the local header differs from the directory, and reading does if the content has another size or
// checksum than in the directory; it never returns more than the size.
func Open(body io.ReadCloser, e *Entry) (_ io.ReadCloser, err error) {
	defer func() {
		if err != nil {
			body.Close()
		}
	}()
	head := make([]byte, e.HeaderSize())
	if _, err := io.ReadFull(body, head); err != nil {
		return nil, fmt.Errorf("entry %q: local header: %w: %w", e.Name, err, errdefs.ErrUnavailable)
	}
	n, err := e.Locate(head)
	if err != nil {
		return nil, err
	}
	data := &source{r: io.MultiReader(bytes.NewReader(head[n:]), body), left: e.Packed}
	r := &reader{e: e, body: body, data: data, left: e.Size, crc: crc32.NewIEEE(), descriptor: e.Span() - n - e.Packed}
	switch e.Method {
	case Stored:
		r.content = io.NopCloser(data)
	case Deflate:
		r.content = flate.NewReader(data)
	case Zstd:
		if r.content, err = NewZstd(data); err != nil {
			return nil, fmt.Errorf("entry %q: %w", e.Name, err)
		}
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

// A reader reads the content of an entry, and compares it with the directory.
type reader struct {
	e       *Entry
	body    io.Closer
	data    *source
	content io.ReadCloser
	left    int64
	crc     hash.Hash32
	err     error

	descriptor int64 // bytes of the data descriptor; zero without one
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.content.Read(p)
	excess := max(0, int64(n)-r.left)
	n -= int(excess)
	r.left -= int64(n)
	r.crc.Write(p[:n])
	switch {
	case excess > 0:
		r.err = invalid("entry %q: has more than %d bytes", r.e.Name, r.e.Size)
	case err == io.EOF && r.left > 0:
		r.err = invalid("entry %q: ends %d bytes early", r.e.Name, r.left)
	case err == io.EOF && r.crc.Sum32() != r.e.raw.crc:
		r.err = invalid("entry %q: wrong checksum", r.e.Name)
	case err == io.EOF:
		r.err = cmp.Or(r.checkDescriptor(), err)
	case err == nil:
	case r.data.err != nil:
		r.err = fmt.Errorf("entry %q: %w", r.e.Name, r.data.err)
	default:
		r.err = invalid("entry %q: %w", r.e.Name, err)
	}
	return n, r.err
}

// checkDescriptor compares the data descriptor, which follows the data, with the directory. It can
// have a signature, and sizes of 4 or 8 bytes.
func (r *reader) checkDescriptor() error {
	if r.descriptor == 0 {
		return nil
	}
	got := make([]byte, r.descriptor)
	_, err := io.CopyN(io.Discard, r.data.r, r.data.left)
	if err == nil {
		_, err = io.ReadFull(r.data.r, got)
	}
	if err != nil {
		return fmt.Errorf("entry %q: data descriptor: %w: %w", r.e.Name, err, errdefs.ErrUnavailable)
	}
	order := binary.LittleEndian
	want := order.AppendUint32(order.AppendUint32(nil, sigDescriptor), r.e.raw.crc)
	if r.descriptor < descriptor64-4 {
		want = order.AppendUint32(order.AppendUint32(want, uint32(r.e.Packed)), uint32(r.e.Size))
	} else {
		want = order.AppendUint64(order.AppendUint64(want, uint64(r.e.Packed)), uint64(r.e.Size))
	}
	if !bytes.Equal(got, want) && !bytes.Equal(got, want[4:]) {
		return invalid("entry %q: the data descriptor differs from the directory", r.e.Name)
	}
	return nil
}

func (r *reader) Close() error {
	r.err = fmt.Errorf("entry %q: %w", r.e.Name, io.ErrClosedPipe)
	r.content.Close() // it only frees memory
	return r.body.Close()
}
