package chunkfile

import (
	"bytes"
	stdgzip "compress/gzip"
	"errors"
	"io"
	"testing"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
)

// FuzzUnpackChunk unpacks a chunk into the middle of a buffer, and compares it with the output of
// stream readers.
func FuzzUnpackChunk(f *testing.F) {
	plain := bytes.Repeat([]byte("a chunk "), 100)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	var z bytes.Buffer
	w := stdgzip.NewWriter(&z)
	_, _ = w.Write(plain)
	w.Close()
	frame := enc.EncodeAll(plain, nil)
	for _, size := range []uint16{uint16(len(plain)), 1, 2000} {
		f.Add(frame, size, false)
		f.Add(append(bytes.Clone(frame), frame...), size, false)
		f.Add(streamed(f, plain, 32<<20), size, false)
		f.Add(z.Bytes(), size, true)
	}
	f.Add([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}, uint16(1), false) // a skippable frame
	f.Fuzz(func(t *testing.T, raw []byte, size uint16, gzip bool) {
		const guard = 16
		buf := bytes.Repeat([]byte{0xaa}, guard+int(size)+guard)
		dst, codec := buf[guard:][:size], filetable.CodecZstd
		if gzip {
			codec = filetable.CodecGzip
		}
		err := unpackChunk(dst, raw, codec)
		if edge := bytes.Repeat([]byte{0xaa}, guard); !bytes.Equal(buf[:guard], edge) || !bytes.Equal(buf[guard+int(size):], edge) {
			t.Fatal("wrote outside of the chunk")
		}
		if err != nil {
			if errors.Is(err, ErrUndecodable) == errdefs.IsDataLoss(err) {
				t.Fatalf("error without a category: %v", err)
			}
			return
		}
		want := make([]byte, size)
		var r io.Reader
		if gzip {
			r, err = stdgzip.NewReader(bytes.NewReader(raw))
		} else {
			r, err = zstd.NewReader(bytes.NewReader(raw), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(filetable.MaxWindow))
		}
		if err != nil {
			t.Fatal(err)
		}
		// A frame with an error at its end may be accepted: the digest of the chunk decides.
		if _, err := io.ReadFull(r, want); err == nil && !bytes.Equal(dst, want) {
			t.Fatalf("got %q, want %q", dst, want)
		}
	})
}
