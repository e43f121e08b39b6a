package export

import (
	"cmp"
	"fmt"
	"hash"
	"io"
	"math/bits"
	"slices"

	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// chunkSize is the maximal size of a chunk with its own digest, in bytes.
const chunkSize = filetable.MaxChunk

const (
	// firstChunk limits the size of the first chunk of a file that has several, in bytes: programs look at the
	// beginning of a file before they read it, and should not wait for 4 MiB then. The header of most
	// safetensors files is smaller, and a chunk of its own.
	firstChunk = 256 << 10 // 256 KiB

	// minTensor is the minimal size in bytes of a tensor that begins and ends a chunk. Smaller ones
	// share chunks.
	minTensor = 256 << 10 // 256 KiB

	// maxTensors limits the number of tensors of a file with chunks of their own: the larger the
	// file, the larger a tensor must be, so that the number of chunks is bounded.
	maxTensors = 1 << 14
)

// A cutter determines where a file is cut into chunks: where the data of a tensor starts, so that
// files with the same tensors have the same chunks, whatever precedes them. It reads the header of
// the file during the transfer.
type cutter struct {
	size    int64 // of the file
	gguf    *gguf.Sniffer
	tensors *safetensors.Sniffer
	offsets []int64 // of the tensors of a GGUF file
	cuts    []int64 // the remaining cuts
}

func newCutter(size int64) *cutter {
	c := &cutter{size: size}
	c.gguf = gguf.NewSniffer(gguf.Options{Size: size, Tensor: func(off int64) { c.offsets = append(c.offsets, off) }})
	c.tensors = safetensors.NewSniffer(safetensors.Options{Size: size})
	return c
}

// see receives the next bytes of the file, before they are cut.
func (c *cutter) see(p []byte) {
	if c.gguf != nil {
		_, _ = c.gguf.Write(p) // never fails
		if c.gguf.Done() {
			if h, err := c.gguf.Header(); err == nil {
				c.plan(h.DataOffset, c.ends(h.DataOffset))
			}
			c.gguf, c.offsets = nil, nil
		}
	}
	if c.tensors != nil {
		_, _ = c.tensors.Write(p) // never fails
		if c.tensors.Done() {
			if h, err := c.tensors.Header(); err == nil {
				ends := make([]int64, len(h.Tensors))
				for i, t := range h.Tensors {
					ends[i] = h.DataOffset + t.Offset + t.Size
				}
				c.plan(h.DataOffset, ends)
			}
			c.tensors = nil
		}
	}
}

// ends returns the ends of the tensors of a GGUF file: the start of the next one.
func (c *cutter) ends(start int64) []int64 {
	slices.Sort(c.offsets)
	var ends []int64
	for i, off := range c.offsets {
		if end := start + off; i > 0 && end <= c.size {
			ends = append(ends, end)
		}
	}
	return append(ends, c.size)
}

// plan plans the cuts of consecutive tensors from start on.
func (c *cutter) plan(start int64, ends []int64) {
	large := max(minTensor, 1<<(bits.Len64(uint64(c.size/maxTensors)+1)-1))
	c.cuts = nil
	cut := func(at int64) {
		if n := len(c.cuts); n == 0 || at > c.cuts[n-1] {
			c.cuts = append(c.cuts, at)
		}
	}
	cut(start)
	group := start // start of a group of small tensors
	for _, end := range ends {
		switch {
		case end-start >= int64(large):
			cut(start)
			cut(end)
			group = end
		case end-group > chunkSize:
			cut(start)
			group = start
		}
		start = end
	}
}

// next returns the end of the chunk that starts at off.
func (c *cutter) next(off int64) int64 {
	for len(c.cuts) > 0 && c.cuts[0] <= off {
		c.cuts = c.cuts[1:]
	}
	end := off + chunkSize
	if c.size > chunkSize && off == 0 {
		end = firstChunk
	} else if c.size > chunkSize && off == firstChunk { // those that follow begin at multiples of chunkSize, if no tensors do
		end = chunkSize
	}
	if len(c.cuts) > 0 {
		end = min(end, c.cuts[0])
	}
	return min(end, c.size)
}

// A chunker cuts a file, whose bytes are written to it, into chunks, and computes their digests,
// and the digest of the file with its hash states between them.
type chunker struct {
	cutter *cutter
	chunks []filetable.Chunk
	hash   hash.Hash   // of the current chunk
	whole  verify.Hash // of all bytes so far
	off, n int64       // of the current chunk

	// emit, if not nil, receives each chunk and its bytes, and returns the chunk to record.
	emit func(filetable.Chunk, []byte) (filetable.Chunk, error)
	buf  []byte
}

func newChunker(size int64) *chunker {
	return &chunker{cutter: newCutter(size), hash: digest.SHA256.Hash(), whole: verify.NewHash()}
}

// Write receives the next bytes of the file. Its errors are those of emit. Bytes beyond the size of
// the file are ignored.
func (c *chunker) Write(p []byte) (int, error) {
	written := len(p)
	c.cutter.see(p)
	for len(p) > 0 {
		end := c.cutter.next(c.off)
		k := min(int64(len(p)), end-c.off-c.n)
		if k <= 0 {
			break
		}
		c.sum(p[:k])
		if c.emit != nil {
			c.buf = append(c.buf, p[:k]...)
		}
		if p, c.n = p[k:], c.n+k; c.off+c.n == end {
			if err := c.cut(); err != nil {
				return 0, err
			}
		}
	}
	return written, nil
}

// inCache is the number of bytes that are hashed a second time while they are in the processor
// cache.
const inCache = 64 << 10

// sum hashes bytes for the chunk and for the file, one after the other: a second processor is more
// useful to the receiver of the bytes.
func (c *chunker) sum(p []byte) {
	for len(p) > 0 {
		n := min(len(p), inCache)
		c.hash.Write(p[:n])
		c.whole.Write(p[:n])
		p = p[n:]
	}
}

// cut ends a chunk.
func (c *chunker) cut() (err error) {
	k := filetable.Chunk{Offset: c.off, Size: c.n, Digest: digest.NewDigest(digest.SHA256, c.hash)}
	if c.off+c.n < c.cutter.size {
		if k.State, err = c.whole.State(); err != nil {
			return err
		}
	}
	if c.emit != nil {
		if k, err = c.emit(k, c.buf); err != nil {
			return err
		}
		c.buf = c.buf[:0]
	}
	c.chunks = append(c.chunks, k)
	c.off, c.n = c.off+c.n, 0
	c.hash.Reset()
	return nil
}

// ranges are the files in a blob whose chunks are computed, by offset.
type ranges struct {
	files  []span
	whole  bool          // the blob is a file
	header string        // path of the file whose header is read; may be empty
	index  digest.Digest // of the members of a tar
}

// A span is a range of a blob, in bytes.
type span struct{ off, size int64 }

// newRanges returns the files of a blob that is a file, or a tar without compression; nil if there
// is nothing to compute.
func newRanges(t *filetable.Table, b filetable.Blob) *ranges {
	if b.Codec != filetable.CodecNone || b.Archive != filetable.ArchiveNone && b.Archive != filetable.ArchiveTar {
		return nil
	}
	r := &ranges{whole: isFile(b), index: b.Index}
	for _, f := range t.Files {
		if f.Source == nil || f.Source.Blob != b.Digest || f.Size == 0 {
			continue
		}
		r.files = append(r.files, span{f.Source.Offset, f.Size})
		if r.header == "" && f.Digest == b.Digest && headers.Has(f.Path, f.Size) {
			r.header = f.Path
		}
	}
	slices.SortFunc(r.files, func(x, y span) int { return cmp.Or(cmp.Compare(x.off, y.off), cmp.Compare(x.size, y.size)) })
	r.files = slices.Compact(r.files)
	for i := 1; i < len(r.files); i++ {
		if last := r.files[i-1]; last.size > r.files[i].off-last.off {
			return nil // in a tar, files do not overlap
		}
	}
	if len(r.files) == 0 {
		return nil
	}
	return r
}

// A passage computes the chunks of the files in a blob from one sequential read.
type passage struct {
	*ranges
	chunkers []*chunker       // of files; nil before their first byte
	header   *headers.Sniffer // nil if no header is read
	members  *memberReader    // nil if it is no tar
	off      int64
}

// pass returns the passage for one read of the blob; nil for nil.
func (r *ranges) pass() *passage {
	if r == nil {
		return nil
	}
	p := &passage{ranges: r, chunkers: make([]*chunker, len(r.files))}
	if r.header != "" {
		p.header = headers.NewSniffer(r.header, r.files[0].size)
	}
	if r.index != "" {
		p.members = readMembers()
	}
	return p
}

// Write receives the next bytes of the blob. It returns len(b) and nil.
func (p *passage) Write(b []byte) (int, error) {
	if p.header != nil {
		_, _ = p.header.Write(b) // never fails
	}
	if p.members != nil {
		_, _ = p.members.Write(b) // it reports errors at the end
	}
	end := p.off + int64(len(b))
	i, _ := slices.BinarySearchFunc(p.files, p.off, func(f span, off int64) int { return cmp.Compare(f.off+f.size, off+1) })
	for ; i < len(p.files) && p.files[i].off < end; i++ {
		f := p.files[i]
		if p.chunkers[i] == nil {
			p.chunkers[i] = newChunker(f.size)
		}
		from, to := max(f.off, p.off), min(f.off+f.size, end)
		_, _ = p.chunkers[i].Write(b[from-p.off : to-p.off]) // without emit it never fails
	}
	p.off = end
	return len(b), nil
}

// close ends a passage, also one that did not get all bytes.
func (p *passage) close() {
	if p.members != nil {
		_, _ = p.members.end()
	}
}

// verify returns a *verify.Error if the blob is a file that was read completely and does not match its digest, and
// errdefs.ErrInvalidArgument if it is a tar with other members than in the table: their headers were read before
// there was a digest to compare.
func (p *passage) verify(d digest.Digest, size int64) error {
	if p.off < size {
		return nil
	}
	if p.members != nil {
		members, err := p.members.end()
		if err == nil && filetable.IndexDigest(members) != p.index {
			err = fmt.Errorf("its headers are not those that the registry gave before: %w", errdefs.ErrInvalidArgument)
		}
		return err
	}
	if !p.whole {
		return nil
	}
	got := verify.Empty
	if c := p.chunkers[0]; c != nil {
		got = c.whole.Digest()
	}
	return verify.Compare(d, got, size, p.off)
}

// A memberReader lists the members of a tar that is written to it.
type memberReader struct {
	*io.PipeWriter
	done    chan struct{} // closed when the other fields are set
	members []filetable.Member
	err     error
}

func readMembers() *memberReader {
	r, w := io.Pipe()
	m := &memberReader{PipeWriter: w, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		m.err = filetable.WalkTar(r, func(x filetable.Member, _ io.Reader) error {
			m.members = append(m.members, x)
			return nil
		})
		r.CloseWithError(m.err) // what follows the last member
	}()
	return m
}

// end returns the members when all bytes are written.
func (m *memberReader) end() ([]filetable.Member, error) {
	m.Close()
	<-m.done
	return m.members, m.err
}

// note adds the results of the passage to a file of the blob.
func (p *passage) note(f *filetable.File) {
	if f.Size == 0 && f.Digest == "" {
		f.Digest = digest.FromBytes(nil)
	}
	i, found := slices.BinarySearchFunc(p.files, f.Source.Offset, func(x span, off int64) int { return cmp.Compare(x.off, off) })
	if !found || f.Size != p.files[i].size || p.chunkers[i] == nil || p.chunkers[i].off != f.Size {
		return
	}
	c := p.chunkers[i]
	if !p.whole {
		f.Digest = c.whole.Digest()
	}
	src := *f.Source
	src.Chunks = c.chunks
	f.Source = &src
}
