package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// maxGap is how many bytes between two chunks are fetched and thrown away rather than asked
// around.
const maxGap = 64 << 10

// chunked says how a file is brought chunk by chunk.
//
// Chunks are fetched, staged and marked in groups: consecutive chunks of at most chunkSize bytes
// together that lie close to each other in the blob. So small chunks cost no request each.
type chunked struct {
	from   filetable.Blob // the blob that the chunks are ranges of
	codec  filetable.Codec
	chunks []filetable.Chunk // with At and Len set, but for zeros
	groups []int             // the first chunk of each group
	recipe digest.Digest
	bundle *bundle // that the file is fetched in; nil: by itself

	// unverified says that the chunks have no digests: what is read is verified only with the
	// whole file.
	unverified bool
}

// newChunked returns how f comes out of blob b by its chunks.
func newChunked(f filetable.File, b filetable.Blob) *chunked {
	c := &chunked{from: b, codec: f.Source.Codec, chunks: f.Source.Chunks}
	if b.Archive != filetable.ArchiveChunks {
		c.chunks = make([]filetable.Chunk, len(f.Source.Chunks))
		for i, ch := range f.Source.Chunks {
			ch.At, ch.Len = f.Source.Offset+ch.Offset, ch.Size
			c.chunks[i] = ch
		}
	}
	c.group()
	return c
}

// newUnverified returns how a raw blob comes in chunks that have no digests.
func newUnverified(b filetable.Blob) *chunked {
	c := &chunked{from: b, unverified: true}
	for at := int64(0); at < b.Size; at += chunkSize {
		n := min(chunkSize, b.Size-at)
		c.chunks = append(c.chunks, filetable.Chunk{Offset: at, Size: n, At: at, Len: n})
	}
	c.group()
	return c
}

func (c *chunked) group() {
	var size, end, length int64
	for i, ch := range c.chunks {
		gap := ch.At - end
		far := ch.Len > 0 && length > 0 && (gap < 0 || gap > maxGap || length+gap+ch.Len > filetable.MaxChunkLen)
		if i == 0 || size+ch.Size > chunkSize || far {
			c.groups = append(c.groups, i)
			size, length, gap = 0, 0, 0
		}
		size += ch.Size
		if ch.Len > 0 {
			if length > 0 {
				length += gap
			}
			length += ch.Len
			end = ch.At + ch.Len
		}
	}
	c.recipe = c.sum()
}

// sum names the way in which the file is brought.
func (c *chunked) sum() digest.Digest {
	h := digest.SHA256.Hash()
	fmt.Fprintf(h, "%s %q %t\n", c.from.Digest, c.codec, c.unverified)
	var line []byte
	for _, ch := range c.chunks {
		line = line[:0]
		for _, n := range []int64{ch.Offset, ch.Size, ch.At, ch.Len} {
			line = binary.BigEndian.AppendUint64(line, uint64(n))
		}
		h.Write(append(line, ch.Digest...))
	}
	return digest.NewDigest(digest.SHA256, h)
}

// grid returns where the groups begin in the file.
func (c *chunked) grid() []int64 {
	out := make([]int64, len(c.groups))
	for g, i := range c.groups {
		out[g] = c.chunks[i].Offset
	}
	return out
}

// of returns the chunks of group g.
func (c *chunked) of(g int) []filetable.Chunk {
	end := len(c.chunks)
	if g+1 < len(c.groups) {
		end = c.groups[g+1]
	}
	return c.chunks[c.groups[g]:end]
}

// find returns the group that has the byte at off.
func (c *chunked) find(off int64) int {
	return sort.Search(len(c.groups), func(g int) bool { return c.chunks[c.groups[g]].Offset > off }) - 1
}

// span returns the range of the blob that chunks lie in; length 0 if all are zeros.
func span(chunks []filetable.Chunk) (at, length int64) {
	var end int64
	for _, ch := range chunks {
		if ch.Len == 0 {
			continue
		}
		if end == 0 {
			at = ch.At
		}
		end = ch.At + ch.Len
	}
	return at, end - at
}

// decode fills buf with chunks, which lie in raw, the bytes of their span, and verifies each.
func (c *chunked) decode(buf, raw []byte, chunks []filetable.Chunk) error {
	at, _ := span(chunks)
	base := chunks[0].Offset
	for _, ch := range chunks {
		dst := buf[ch.Offset-base:][:ch.Size]
		if ch.Len == 0 {
			clear(dst)
			continue
		}
		if err := unpackChunk(dst, raw[ch.At-at:][:ch.Len], c.codec); err != nil {
			return fmt.Errorf("chunk at %d: %w", ch.Offset, err)
		}
		if c.unverified {
			continue
		}
		if err := verify.Compare(ch.Digest, digest.FromBytes(dst), ch.Size, int64(len(dst))); err != nil {
			return fmt.Errorf("chunk at %d: %w", ch.Offset, err)
		}
	}
	return nil
}

// chunkDecoder decodes zstd frames that are in memory. It refuses what is larger than a chunk.
var chunkDecoder = func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(2*filetable.MaxChunk), zstd.WithDecoderMaxWindow(zstdWindow))
	if err != nil {
		panic("store: internal error: zstd: " + err.Error())
	}
	return d
}()

// unpackChunk fills dst from the compressed bytes of one chunk. It returns errdefs.ErrDataLoss if
// they are not that. What comes after the chunk is dropped: stargz has the padding of the file, and
// the tar headers of those that follow, in the frame of its last chunk.
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
		copy(dst, out) // out is elsewhere if it is longer
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

// fetch fills buf with group g. Bytes that are wrong are asked for again, from the next fetcher
// first. It returns which chunks an object had, and where.
func (c *chunked) fetch(ctx context.Context, t xfer, g int, buf []byte) ([]meta.Location, error) {
	chunks := c.of(g)
	found := t.s.fromObjects(chunks, buf)
	for first := 0; first < len(chunks); first++ {
		if found[first].Object != "" {
			continue
		}
		end := first + 1
		for end < len(chunks) && found[end].Object == "" {
			end++
		}
		run := chunks[first:end]
		if err := c.fetchRun(ctx, t, run, buf[run[0].Offset-chunks[0].Offset:]); err != nil {
			return nil, err
		}
		first = end
	}
	return found, nil
}

// right says whether buf, which is group g as it was staged, has the digests of its chunks.
func (c *chunked) right(g int, buf []byte) bool {
	chunks := c.of(g)
	for _, ch := range chunks {
		if verify.Bytes(ch.Digest, buf[ch.Offset-chunks[0].Offset:][:ch.Size]) != nil {
			return false
		}
	}
	return true
}

// errChunk says that sources were asked for a chunk until none was left.
var errChunk = errors.New("no source has the right bytes")

// fetchRun fills buf with consecutive chunks.
func (c *chunked) fetchRun(ctx context.Context, t xfer, run []filetable.Chunk, buf []byte) error {
	at, length := span(run)
	raw := buf[:0]
	if c.codec == filetable.CodecNone && inPlace(run) {
		raw = buf[:length]
	} else if length > 0 {
		b, give, err := t.s.rawBuffer(ctx, t.class)
		if err != nil {
			return err
		}
		defer give()
		raw = b[:length]
	}
	var err error
	for try := range max(2, len(t.fetchers)) {
		if length > 0 {
			if err := c.fetchRaw(ctx, t.rotated(try), raw, at, try == 0); err != nil {
				return err
			}
		}
		if err = c.decode(buf, raw, run); err == nil || !errdefs.IsDataLoss(err) {
			return err
		}
		t.s.counts.corrupt.Add(1)
		t.s.log.Warn("chunk is wrong; asking another source for it", "blob", t.blob, "offset", at, "size", length, "err", err)
	}
	return fmt.Errorf("%w: %w", errChunk, err)
}

// inPlace says whether chunks without codec lie in their blob as they do in the file.
func inPlace(run []filetable.Chunk) bool {
	for _, ch := range run {
		if ch.Len == 0 || ch.At-run[0].At != ch.Offset-run[0].Offset {
			return false
		}
	}
	return true
}

// fetchRaw fills raw from offset at of the blob. together says that the bundle of the file may have
// it. A reader that waits gets what it needs and no more.
func (c *chunked) fetchRaw(ctx context.Context, t xfer, raw []byte, at int64, together bool) error {
	switch {
	case c.bundle == nil || t.class == urgent:
	case together:
		return c.bundle.read(ctx, t, raw, at)
	default:
		t.s.bundles.forget(c.bundle)
	}
	return t.fetchRange(ctx, raw, at)
}

// rawBuffer returns memory for the compressed bytes of a group. Those of transfers that can be told
// to stand still are counted; the others' number is that of their buffers.
func (s *Store) rawBuffer(ctx context.Context, c class) (buf []byte, give func(), err error) {
	if c != background {
		return make([]byte, filetable.MaxChunkLen), func() {}, nil
	}
	buf, err = s.rawBuffers.take(ctx)
	return buf, func() { s.rawBuffers.give(buf) }, err
}

// readFrom fills buf with group g from a blob that is read in order.
func (c *chunked) readFrom(ctx context.Context, w *wholeReader, g int, buf []byte) error {
	chunks := c.of(g)
	at, length := span(chunks)
	raw := make([]byte, length)
	if length > 0 {
		if err := w.readAt(ctx, raw, at); err != nil {
			return err
		}
	}
	return c.decode(buf, raw, chunks)
}
