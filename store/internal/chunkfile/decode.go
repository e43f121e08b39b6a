package chunkfile

import (
	"bytes"
	"cmp"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// maxWindow limits the zstd window of a chunk, in bytes. The memory of a decoder is also limited by
// the size of a chunk.
const maxWindow = 128 << 20

// decode fills buf with chunks from raw, the bytes of their span, and verifies each.
func (l *Layout) decode(buf, raw []byte, chunks []filetable.Chunk) error {
	at, _ := span(chunks)
	base := chunks[0].Offset
	for _, ch := range chunks {
		dst := buf[ch.Offset-base:][:ch.Size]
		if ch.Len == 0 {
			clear(dst)
		} else if err := unpackChunk(dst, raw[ch.At-at:][:ch.Len], l.Codec); err != nil {
			return fmt.Errorf("chunk at %d: %w", ch.Offset, err)
		}
		if err := l.verify(ch, dst); err != nil {
			return fmt.Errorf("chunk at %d: %w", ch.Offset, err)
		}
	}
	return nil
}

// right reports whether buf, group g as staged, has the digests of its chunks.
func (l *Layout) right(g int, buf []byte) bool {
	chunks := l.of(g)
	for _, ch := range chunks {
		if l.verify(ch, buf[ch.Offset-chunks[0].Offset:][:ch.Size]) != nil {
			return false
		}
	}
	return true
}

// verify returns an error of errdefs.ErrDataLoss if p is not the content of a chunk, as far as that
// is known.
func (l *Layout) verify(ch filetable.Chunk, p []byte) error {
	switch {
	case l.Stated:
		step := verify.Step{Off: ch.Offset, After: ch.State, Whole: l.file}
		if i := l.index(ch.Offset); i > 0 {
			step.Before = l.Chunks[i-1].State
		}
		return step.Verify(p)
	case ch.Digest != "":
		return verify.Bytes(ch.Digest, p)
	}
	return nil
}

// chunkDecoder decodes zstd frames in memory. It refuses frames larger than a chunk.
var chunkDecoder = func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(2*filetable.MaxChunk), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		panic("store: internal error: zstd: " + err.Error())
	}
	return d
}()

// unpackChunk fills dst from the compressed bytes of a chunk. It returns errdefs.ErrDataLoss if
// they are invalid. Bytes after the chunk are dropped: the frame of the last chunk of a file in
// stargz also has the padding of the file and the tar headers of the following ones.
func unpackChunk(dst, raw []byte, codec filetable.Codec) error {
	bad := func(err error) error { return fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss) }
	switch codec {
	case filetable.CodecNone:
		copy(dst, raw)
		return nil
	case filetable.CodecZstd:
		out, err := chunkDecoder.DecodeAll(raw, dst[:0:len(dst)])
		if len(out) < len(dst) {
			return bad(cmp.Or(err, fmt.Errorf("%d bytes instead of %d", len(out), len(dst))))
		}
		copy(dst, out) // out is another slice if it is longer
		return nil
	case filetable.CodecGzip:
		r, err := gzip.NewReader(bytes.NewReader(raw))
		if err != nil {
			return bad(err)
		}
		if _, err := io.ReadFull(r, dst); err != nil {
			return bad(err)
		}
		return nil
	}
	panic("store: internal error: codec " + string(codec))
}
