package push

import (
	"cmp"
	"hash"
	"math/bits"
	"slices"
	"sync"

	"github.com/ballast-dev/ballast/convert/gguf"
	"github.com/ballast-dev/ballast/convert/headers"
	"github.com/ballast-dev/ballast/convert/safetensors"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// chunkSize is the largest size of a chunk that has a digest of its own, in bytes.
const chunkSize = filetable.MaxChunk

const (
	// minTensor is the size in bytes from which on a tensor begins a chunk and ends one. Smaller ones
	// are together in chunks.
	minTensor = 256 << 10 // 256 KiB

	// maxTensors is the number of tensors of a file that can have chunks of their own: of a larger
	// file a tensor has to be larger for that, so that the chunks do not get too many.
	maxTensors = 1 << 14
)

// A cutter says where a file is cut into chunks: where the data of a tensor starts, so that files
// with the same tensors have the same chunks, whatever is before them. It reads the header of the
// file while it passes by.
type cutter struct {
	size    int64 // of the file
	gguf    *gguf.Sniffer
	tensors *safetensors.Sniffer
	offsets []int64 // of the tensors of a GGUF file
	cuts    []int64 // that are still to come
}

func newCutter(size int64) *cutter {
	c := &cutter{size: size}
	c.gguf = gguf.NewSniffer(gguf.Options{Size: size, Tensor: func(off int64) { c.offsets = append(c.offsets, off) }})
	c.tensors = safetensors.NewSniffer(safetensors.Options{Size: size})
	return c
}

// see takes the next bytes of the file, before they are cut.
func (c *cutter) see(p []byte) {
	if c.gguf != nil {
		_, _ = c.gguf.Write(p) // fails never
		if c.gguf.Done() {
			if h, err := c.gguf.Header(); err == nil {
				c.plan(h.DataOffset, c.ends(h.DataOffset))
			}
			c.gguf, c.offsets = nil, nil
		}
	}
	if c.tensors != nil {
		_, _ = c.tensors.Write(p) // fails never
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

// ends returns where the tensors of a GGUF file end: where the next one starts.
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

// plan plans the cuts of tensors that lie one after the other from start on.
func (c *cutter) plan(start int64, ends []int64) {
	large := max(minTensor, 1<<(bits.Len64(uint64(c.size/maxTensors)+1)-1))
	c.cuts = nil
	cut := func(at int64) {
		if n := len(c.cuts); n == 0 || at > c.cuts[n-1] {
			c.cuts = append(c.cuts, at)
		}
	}
	cut(start)
	group := start // where the small tensors start that are together
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

// next returns where the chunk that starts at off ends.
func (c *cutter) next(off int64) int64 {
	for len(c.cuts) > 0 && c.cuts[0] <= off {
		c.cuts = c.cuts[1:]
	}
	end := off + chunkSize
	if len(c.cuts) > 0 {
		end = min(end, c.cuts[0])
	}
	return min(end, c.size)
}

// A chunker cuts a file, whose bytes are written to it, into chunks, and computes their digests, and that of
// the file with its states between them.
type chunker struct {
	cutter *cutter
	chunks []filetable.Chunk
	hash   hash.Hash   // of the chunk that passes by
	whole  verify.Hash // of what has passed by
	off, n int64       // of the chunk that passes by

	// emit, if not nil, gets each chunk and its bytes, and returns what is noted of it.
	emit func(filetable.Chunk, []byte) (filetable.Chunk, error)
	buf  []byte
}

func newChunker(size int64) *chunker {
	return &chunker{cutter: newCutter(size), hash: digest.SHA256.Hash(), whole: verify.NewHash()}
}

// Write takes the next bytes of the file. Its errors are those of emit. What is beyond the size of
// the file is dropped.
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

// minParallel is how many bytes are worth being hashed on two cores.
const minParallel = 64 << 10

// sum hashes bytes for the chunk and for the file.
func (c *chunker) sum(p []byte) {
	if len(p) < minParallel {
		c.hash.Write(p)
		c.whole.Write(p)
		return
	}
	var chunk sync.WaitGroup
	chunk.Go(func() { c.hash.Write(p) })
	c.whole.Write(p)
	chunk.Wait()
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

// A passage computes digests of the files that are ranges of a blob, while the blob passes by.
type passage struct {
	files   []*passing // by offset, none in another
	whole   bool       // the blob is a file
	off     int64
	sniffer *headers.Sniffer // of the blob, or nil
}

// A passing is a range of a blob.
type passing struct {
	off, size int64
	chunker   *chunker
}

// newPassage returns a passage of the files of a blob that is a file, or a tar without codec; nil if there
// is nothing to compute.
func newPassage(t *filetable.Table, b filetable.Blob) *passage {
	if b.Codec != filetable.CodecNone || b.Archive != filetable.ArchiveNone && b.Archive != filetable.ArchiveTar {
		return nil
	}
	p := &passage{whole: isFile(b)}
	for _, f := range t.Files {
		if f.Source != nil && f.Source.Blob == b.Digest && f.Size > 0 {
			p.files = append(p.files, &passing{off: f.Source.Offset, size: f.Size})
		}
	}
	slices.SortFunc(p.files, func(x, y *passing) int { return cmp.Or(cmp.Compare(x.off, y.off), cmp.Compare(x.size, y.size)) })
	p.files = slices.CompactFunc(p.files, func(x, y *passing) bool { return x.off == y.off && x.size == y.size })
	for i := 1; i < len(p.files); i++ {
		if last := p.files[i-1]; last.size > p.files[i].off-last.off {
			return nil // no tar has a file in another
		}
	}
	if len(p.files) == 0 {
		return nil
	}
	return p
}

// filePassage returns a passage of a file that is a blob.
func filePassage(size int64) *passage {
	return &passage{files: []*passing{{size: size}}, whole: true}
}

// restart begins anew: the blob comes from its first byte.
func (p *passage) restart() {
	p.off = 0
	for _, f := range p.files {
		f.chunker = nil
	}
}

// Write takes the next bytes of the blob. It returns len(b) and nil.
func (p *passage) Write(b []byte) (int, error) {
	if p.sniffer != nil {
		_, _ = p.sniffer.Write(b) // fails never
	}
	end := p.off + int64(len(b))
	i, _ := slices.BinarySearchFunc(p.files, p.off, func(f *passing, off int64) int { return cmp.Compare(f.off+f.size, off+1) })
	for ; i < len(p.files) && p.files[i].off < end; i++ {
		f := p.files[i]
		if f.chunker == nil {
			f.chunker = newChunker(f.size)
		}
		from, to := max(f.off, p.off), min(f.off+f.size, end)
		part := b[from-p.off : to-p.off]
		_, _ = f.chunker.Write(part) // nothing is emitted
	}
	p.off = end
	return len(b), nil
}

// verify returns a *verify.Error if all of a blob has passed that is a file, and it is wrong.
func (p *passage) verify(d digest.Digest, size int64) error {
	if !p.whole || p.off < size {
		return nil
	}
	got := verify.Empty
	if c := p.files[0].chunker; c != nil {
		got = c.whole.Digest()
	}
	return verify.Compare(d, got, size, p.off)
}

// note adds to a file of the blob what has passed of it.
func (p *passage) note(f *filetable.File) {
	if f.Size == 0 && f.Digest == "" {
		f.Digest = digest.FromBytes(nil)
	}
	i, found := slices.BinarySearchFunc(p.files, f.Source.Offset, func(x *passing, off int64) int { return cmp.Compare(x.off, off) })
	if !found || f.Size != p.files[i].size || p.files[i].chunker == nil || p.files[i].chunker.off != f.Size {
		return
	}
	x := p.files[i]
	if !p.whole {
		f.Digest = x.chunker.whole.Digest()
	}
	src := *f.Source
	src.Chunks = x.chunker.chunks
	f.Source = &src
}
