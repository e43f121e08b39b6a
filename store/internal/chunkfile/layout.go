package chunkfile

import (
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/opencontainers/go-digest"
)

// MaxGap is the largest gap between two chunks, in bytes, that is fetched and dropped instead of
// sending another request.
const MaxGap = 64 << 10 // 64 KiB

// A Layout describes how a file is fetched by chunks. It is immutable.
type Layout struct {
	From   filetable.Blob // the blob with the chunks
	Codec  filetable.Codec
	Chunks []filetable.Chunk // with At and Len set, except for zeros; nil if they have no digests
	ID     digest.Digest     // identifies the chunks, which is what readers see
	Group  string            // of its sources

	// Stated is true if chunks are verified as parts of the file: if all are right, so is the file.
	Stated bool

	file   digest.Digest
	groups []int // the first chunk of each group; nil if they have no digests
	raw    int64 // size of a file whose chunks have no digests, otherwise 0
}

// NewLayout returns the layout of f, which has chunks, in blob b from a group of sources
// (transfer.GroupKey).
func NewLayout(f filetable.File, b filetable.Blob, group string) *Layout {
	l := &Layout{From: b, Group: group, Codec: f.Source.Codec, Chunks: f.Source.Chunks, Stated: f.Source.Stated(), file: f.Digest}
	if b.Archive != filetable.ArchiveChunks {
		l.Chunks = make([]filetable.Chunk, len(f.Source.Chunks))
		for i, ch := range f.Source.Chunks {
			ch.At, ch.Len = f.Source.Offset+ch.Offset, ch.Size
			l.Chunks[i] = ch
		}
	}
	l.group(f.Size)
	return l
}

// NewRaw returns the layout of a raw blob from a group of sources, without digests: each group is a chunk of
// staging.ChunkSize. It costs the same for any size, which is only what a manifest says.
func NewRaw(b filetable.Blob, group string) *Layout {
	l := &Layout{From: b, Group: group, raw: b.Size}
	l.ID = l.sum()
	return l
}

// Raw reports whether the chunks have no digests: no reader gets them before the whole file is verified.
func (l *Layout) Raw() bool { return l.raw > 0 }

// Chained reports whether the chunks are the windows of a chain of states that is not part of the table: it may be
// wrong although the table is right.
func (l *Layout) Chained() bool {
	return l.Stated && len(l.Chunks) > 1 && l.From.Archive == filetable.ArchiveNone && l.From.Digest == l.file && l.Chunks[0].Digest == ""
}

// group divides the chunks, whose sizes are total together, into groups.
func (l *Layout) group(total int64) {
	long := total > staging.ChunkSize // programs look at the beginning first: it is a group by itself
	var size, end, length int64
	for i, ch := range l.Chunks {
		gap := ch.At - end
		far := ch.Len > 0 && length > 0 && (gap < 0 || gap > MaxGap || length+gap+ch.Len > filetable.MaxChunkLen)
		if i == 0 || i == 1 && long || size+ch.Size > staging.ChunkSize || far {
			l.groups = append(l.groups, i)
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
	l.ID = l.sum()
}

func (l *Layout) sum() digest.Digest {
	h := digest.SHA256.Hash()
	fmt.Fprintf(h, "%s %q %d %d\n", l.From.Digest, l.Codec, l.raw, staging.ChunkSize)
	var line []byte
	for _, ch := range l.Chunks {
		line = line[:0]
		for _, n := range []int64{ch.Offset, ch.Size, ch.At, ch.Len} {
			line = binary.BigEndian.AppendUint64(line, uint64(n))
		}
		h.Write(append(line, ch.Digest...))
		h.Write(ch.State)
	}
	return digest.NewDigest(digest.SHA256, h)
}

// Dir returns the name of the directory in staging.Area in which the file with digest d is staged.
func (l *Layout) Dir(d digest.Digest) string { return staging.BlobDir(d, l.ID.String(), l.Group) }

// Groups returns the number of groups.
func (l *Layout) Groups() int {
	if l.Raw() {
		return int((l.raw + staging.ChunkSize - 1) / staging.ChunkSize)
	}
	return len(l.groups)
}

// Grid returns the offsets of the groups in the file.
func (l *Layout) Grid() []int64 {
	out := make([]int64, l.Groups())
	for g := range out {
		out[g] = l.start(g)
	}
	return out
}

// start returns the offset of group g in the file.
func (l *Layout) start(g int) int64 {
	if l.Raw() {
		return int64(g) * staging.ChunkSize
	}
	return l.Chunks[l.groups[g]].Offset
}

// of returns the chunks of group g.
func (l *Layout) of(g int) []filetable.Chunk {
	if l.Raw() {
		at := l.start(g)
		n := min(staging.ChunkSize, l.raw-at)
		return []filetable.Chunk{{Offset: at, Size: n, At: at, Len: n}}
	}
	end := len(l.Chunks)
	if g+1 < len(l.groups) {
		end = l.groups[g+1]
	}
	return l.Chunks[l.groups[g]:end]
}

// Part returns the range of the file that is group g.
func (l *Layout) Part(g int) (off, size int64) {
	chunks := l.of(g)
	last := chunks[len(chunks)-1]
	return chunks[0].Offset, last.Offset + last.Size - chunks[0].Offset
}

// Find returns the group with the byte at off.
func (l *Layout) Find(off int64) int {
	return sort.Search(l.Groups(), func(g int) bool { return l.start(g) > off }) - 1
}

// Span returns the range of the blob with the whole file; length 0 if it is all zeros.
func (l *Layout) Span() (at, length int64) {
	if l.Raw() {
		return 0, l.raw
	}
	return span(l.Chunks)
}

// span returns the range of the blob with chunks; length 0 if all are zeros.
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

// index returns the chunk with a byte of the file.
func (l *Layout) index(off int64) int {
	return sort.Search(len(l.Chunks), func(i int) bool { return l.Chunks[i].Offset > off }) - 1
}
