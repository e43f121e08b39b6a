package export

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"hash"
	"hash/crc64"
	"io"
	"os"

	"github.com/ballast-dev/ballast/convert/chunked"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// maxPending limits the bytes of tar headers and padding in one frame.
const maxPending = 1 << 20

// A frameWriter writes zstd frames, each of which can be decompressed independently, to a temporary
// file. Incompressible data is in raw blocks.
type frameWriter struct {
	f    *os.File // unnamed; closing it removes it
	w    *bufio.Writer
	hash hash.Hash
	enc  *zstd.Encoder
	buf  []byte
	off  int64 // bytes written

	plain hash.Hash // if not nil, hashes the content of the frames
}

func newFrameWriter(dir string) (*frameWriter, error) {
	f, err := os.CreateTemp(dir, "ballast-convert-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w := &frameWriter{f: f, hash: digest.SHA256.Hash(), enc: enc}
	w.w = bufio.NewWriterSize(io.MultiWriter(f, w.hash), bufferSize)
	return w, nil
}

// raw writes bytes uncompressed.
func (w *frameWriter) raw(p []byte) error {
	n, err := w.w.Write(p)
	w.off += int64(n)
	return err
}

// frame writes bytes as a frame, and returns its offset and size.
func (w *frameWriter) frame(p []byte) (at, n int64, err error) {
	at = w.off
	if w.plain != nil {
		w.plain.Write(p) // a hash never fails
	}
	w.buf = w.enc.EncodeAll(p, w.buf[:0])
	return at, int64(len(w.buf)), w.raw(w.buf)
}

// content writes the content of a file, with a frame for each of its chunks. also receives it too.
func (w *frameWriter) content(ctx context.Context, f file, also io.Writer) ([]chunked.Chunk, error) {
	var list []chunked.Chunk
	c := newChunker(f.Size)
	c.emit = func(k filetable.Chunk, p []byte) (filetable.Chunk, error) {
		var err error
		k.At, k.Len, err = w.frame(p)
		list = append(list, chunked.Chunk{Chunk: k, Zeros: isZeros(p)})
		return k, err
	}
	err := f.copy(ctx, io.MultiWriter(c, also))
	return list, err
}

// zeroBlock is used to detect zeros.
var zeroBlock [4 << 10]byte

func isZeros(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeroBlock))
		if !bytes.Equal(p[:n], zeroBlock[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

// Close removes the file.
func (w *frameWriter) Close() error { return errors.Join(w.enc.Close(), w.f.Close()) }

// finish returns the digest of the written bytes, and an Opener.
func (w *frameWriter) finish() (digest.Digest, Opener, error) {
	if err := w.w.Flush(); err != nil {
		return "", nil, err
	}
	d, size := digest.NewDigest(digest.SHA256, w.hash), w.off
	return d, func(ctx context.Context) (io.ReadCloser, error) {
		return io.NopCloser(&untilDone{ctx, verify.NewReader(io.NewSectionReader(w.f, 0, size), d, size)}), nil
	}, nil
}

// writeSeekable writes a file in the zstd seekable format.
func (w *frameWriter) writeSeekable(ctx context.Context, f file) ([]chunked.Member, error) {
	list, err := w.content(ctx, f, io.Discard)
	if err != nil {
		return nil, err
	}
	table, err := chunked.SeekTable(list)
	if err != nil {
		return nil, err
	}
	return []chunked.Member{{File: f.File, Chunks: list}}, w.raw(table)
}

// isoTable is the table of the checksums used to restore a tar.
var isoTable = crc64.MakeTable(crc64.ISO)

// writeTar writes files as a tar in zstd:chunked, and also returns the annotations of the layer.
func (w *frameWriter) writeTar(ctx context.Context, files []file) ([]chunked.Member, map[string]string, error) {
	t, err := newTarball(files)
	if err != nil {
		return nil, nil, err
	}
	var members []chunked.Member
	var pending []byte // of the tar
	flush := func() (err error) {
		if len(pending) > 0 {
			_, _, err = w.frame(pending)
			pending = pending[:0]
		}
		return err
	}
	for i, f := range files {
		m := chunked.Member{File: f.File, Header: t.headers[i]}
		pending = append(pending, m.Header...)
		if f.Type == filetable.TypeReg && f.Size > 0 || len(pending) > maxPending {
			if err := flush(); err != nil {
				return nil, nil, err
			}
		}
		if f.Type == filetable.TypeReg && f.Size > 0 {
			sum := crc64.New(isoTable)
			if m.Chunks, err = w.content(ctx, f, sum); err != nil {
				return nil, nil, err
			}
			m.CRC, m.Padding = sum.Sum(nil), int(padding(f.Size))
			pending = append(pending, make([]byte, m.Padding)...)
		}
		members = append(members, m)
	}
	end := make([]byte, tarEnd)
	pending = append(pending, end...)
	if err := flush(); err != nil {
		return nil, nil, err
	}
	tail, annotations, err := chunked.TOC(w.off, members, end)
	if err != nil {
		return nil, nil, err
	}
	return members, annotations, w.raw(tail)
}
