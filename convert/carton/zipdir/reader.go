package zipdir

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"sync"

	"github.com/ballast-dev/ballast/convert"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/semaphore"
)

const (
	// SmallWindow is the largest window of zstd, in bytes, that needs no place among the large ones.
	// It is the largest that RFC 9659 allows in HTTP, and that the levels up to 19 of the reference
	// encoder use.
	SmallWindow = 8 << 20

	// maxWindow limits the window, and all windows above SmallWindow together.
	maxWindow = convert.WindowMemory
)

var largeWindows = semaphore.NewWeighted(maxWindow)

// NewZstd returns the content of zstd frames with windows of at most SmallWindow. Close does not
// close r.
func NewZstd(r io.Reader) (io.ReadCloser, error) { return newZstd(r, SmallWindow) }

func newZstd(r io.Reader, window uint64) (io.ReadCloser, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(window), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// openZstd returns the content of zstd frames, of which the first has the largest window. It waits
// until there is memory for a large window.
func openZstd(ctx context.Context, r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReader(r)
	p, err := b.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return nil, err
	}
	var head zstd.Header
	window := uint64(maxWindow) // if the header does not tell
	if head.Decode(p) == nil && !head.Skippable {
		if window = head.WindowSize; head.SingleSegment {
			window = head.FrameContentSize
		}
		window = max(window, SmallWindow)
	}
	if window == SmallWindow {
		return NewZstd(b)
	}
	if window > maxWindow {
		return nil, invalid("window of %d bytes, more than %d", window, maxWindow)
	}
	if largeWindows.Acquire(ctx, int64(window)) != nil {
		return nil, context.Cause(ctx)
	}
	convert.Reserve(int64(window))
	release := sync.OnceFunc(func() {
		convert.Reserve(-int64(window))
		largeWindows.Release(int64(window))
	})
	z, err := newZstd(b, window)
	if err != nil {
		release()
		return nil, err
	}
	return &largeWindow{z, release}, nil
}

// A largeWindow is the content of frames with a large window.
type largeWindow struct {
	io.ReadCloser
	release func()
}

func (w *largeWindow) Close() error {
	defer w.release()
	return w.ReadCloser.Close()
}

// Open returns the content of an entry. body has the bytes of the archive from Entry.Start on; the
// content's Close closes it, as does an error of Open. Open returns errdefs.ErrInvalidArgument if
// the local header differs from the directory, and reading does if the content has another size or
// checksum than in the directory; it never returns more than the size. ctx ends the wait for memory
// for a large window (convert.WindowMemory).
func Open(ctx context.Context, body io.ReadCloser, e *Entry) (_ io.ReadCloser, err error) {
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
		if r.content, err = openZstd(ctx, data); err != nil {
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
