package chunkfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// ErrUndecodable means that the writer of a chunk used its format in a way that cannot be read by chunks.
var ErrUndecodable = errors.New("cannot be decompressed by chunks")

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
		if err := l.Verify(ch, dst); err != nil {
			return fmt.Errorf("chunk at %d: %w", ch.Offset, err)
		}
	}
	return nil
}

// right reports whether buf, group g as staged, has the digests of its chunks.
func (l *Layout) right(g int, buf []byte) bool {
	chunks := l.of(g)
	for _, ch := range chunks {
		if l.Verify(ch, buf[ch.Offset-chunks[0].Offset:][:ch.Size]) != nil {
			return false
		}
	}
	return true
}

// Verify returns an error of errdefs.ErrDataLoss if p is not the content of a chunk, as far as that
// is known.
func (l *Layout) Verify(ch filetable.Chunk, p []byte) error {
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

// chunkDecoder decodes zstd frames in the memory of the caller, as far as that goes. The output is the window, so
// the window that a frame declares takes no memory: encoders of streams declare that of their level, up to
// 32 MiB, whatever the size of the chunk.
var chunkDecoder = func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(filetable.MaxWindow))
	if err != nil {
		panic("store: internal error: zstd: " + err.Error())
	}
	return d
}()

// maxBlock is the largest block of zstd, in bytes.
const maxBlock = 128 << 10 // 128 KiB

// unpackChunk fills dst from the compressed bytes of a chunk. Bytes after the chunk are dropped: the frame of
// the last chunk of a file in stargz also has the padding of the file and the tar headers of the following
// ones. It returns errdefs.ErrDataLoss for bytes that are invalid or too short, and ErrUndecodable.
func unpackChunk(dst, raw []byte, codec filetable.Codec) error {
	switch codec {
	case filetable.CodecNone:
		copy(dst, raw)
		return nil
	case filetable.CodecZstd:
		return unpackZstd(dst, raw)
	case filetable.CodecGzip:
		r, err := gzip.NewReader(bytes.NewReader(raw))
		if err == nil {
			_, err = io.ReadFull(r, dst)
		}
		return decodeError(err)
	}
	panic("store: internal error: codec " + string(codec))
}

// unpackZstd is unpackChunk for zstd.
func unpackZstd(dst, raw []byte) error {
	out, err := chunkDecoder.DecodeAll(raw, dst[:0:len(dst)])
	if err != nil && len(out) < len(dst) { // the block with the end of the chunk may be longer
		out, err = chunkDecoder.DecodeAll(raw, make([]byte, 0, len(dst)+maxBlock))
	}
	if len(out) < len(dst) {
		return decodeError(cmp.Or(err, fmt.Errorf("%d bytes instead of %d", len(out), len(dst))))
	}
	copy(dst, out)
	return nil
}

// decodeError adds its category to the error of a decoder.
func decodeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrUnknownDictionary):
		return fmt.Errorf("%w: %w", ErrUndecodable, err)
	}
	return fmt.Errorf("%w: %w", err, errdefs.ErrDataLoss)
}
