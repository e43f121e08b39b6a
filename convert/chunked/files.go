package chunked

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// contents are the members of a layer, as in a tar. The Offset of a Member is the index of its
// source.
type contents struct {
	l       Layer
	stargz  bool  // reports whether there are landmarks
	end     int64 // of the part of the blob with chunks, in bytes
	starts  []int64
	members []filetable.Member
	sources []source
	regular map[string]int // index in members, by path
	chunks  int            // in all files
}

// A source is the place of the bytes of a regular file.
type source struct {
	digest digest.Digest
	filetable.Source
}

// add adds the entries of a table of contents.
func (c *contents) add(entries []entry) error {
	c.regular = map[string]int{}
	for i := range entries {
		e := &entries[i]
		if e.InnerOffset != 0 {
			return opaque("file %.100q: several chunks in one %s stream", e.Name, c.l.Codec)
		}
		if e.Type == typeChunk || e.Type == typeReg && e.Size > 0 {
			c.starts = append(c.starts, e.Offset)
		}
	}
	slices.Sort(c.starts)
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && entries[n].Type == typeChunk && entries[n].Name == entries[0].Name {
			n++
		}
		if err := c.member(entries[:n]); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// member adds one member: its entry, and those of the chunks after the first.
func (c *contents) member(e []entry) error {
	first := e[0]
	invalid := func(why string) error {
		return fmt.Errorf("table of contents: file %.200q: %s: %w", first.Name, why, errdefs.ErrInvalidArgument)
	}
	if first.Type == typeDir && !strings.HasPrefix(first.Name, "/") && path.Clean(first.Name) == "." {
		return nil // the root of the archive
	}
	if first.Type == typeChunk || first.Type != typeReg && len(e) > 1 {
		return opaque("chunk of %.100q without the file", first.Name)
	}
	p, err := filetable.CleanPath(first.Name)
	if err != nil {
		return fmt.Errorf("table of contents: %w", err)
	}
	if c.stargz && first.Type == typeReg && first.Size == 1 && slices.Contains(landmarks, p) {
		return nil
	}
	m := filetable.Member{Path: p, Mode: uint32(first.Mode) & 0o777}
	if m.UID, m.GID, err = filetable.Owner(first.UID, first.GID); err != nil {
		return fmt.Errorf("table of contents: file %q: %w", p, err)
	}
	if m.ModTime, err = modTime(first.ModTime); err != nil {
		return opaque("file %.100q: %v", p, err)
	}
	switch first.Type {
	case typeReg:
		src, err := c.source(e)
		if err != nil {
			return err
		}
		m.Type, m.Size, m.Offset = filetable.TypeReg, first.Size, int64(len(c.sources))
		c.sources = append(c.sources, src)
		c.regular[p] = len(c.members)
	case typeDir:
		m.Type = filetable.TypeDir
	case typeSymlink:
		m.Type, m.Target = filetable.TypeSymlink, first.Link
	case typeHardlink:
		target, err := filetable.CleanPath(first.Link)
		if err != nil {
			return fmt.Errorf("table of contents: file %q: hard link: %w", p, err)
		}
		at, ok := c.regular[target]
		if !ok {
			return invalid(fmt.Sprintf("hard link to %q, which is not a regular file earlier in the archive", target))
		}
		to := c.members[at]
		to.Path = p
		m = to
		c.regular[p] = len(c.members)
		if err := c.count(len(c.sources[m.Offset].Chunks)); err != nil {
			return err
		}
	default:
		return invalid(fmt.Sprintf("type %.20q is not allowed in a model, which has files, directories and links", first.Type))
	}
	c.members = append(c.members, m)
	return nil
}

// count adds to the number of chunks.
func (c *contents) count(n int) error {
	if c.chunks += n; c.chunks > MaxChunks {
		return opaque("more than %d chunks", MaxChunks)
	}
	return nil
}

// source returns the place of the bytes of a regular file.
func (c *contents) source(e []entry) (source, error) {
	first := &e[0]
	src := source{Source: filetable.Source{Blob: c.l.Digest, Codec: c.l.Codec}}
	bad := func(format string, args ...any) (source, error) {
		return src, opaque("file %.100q: %s", first.Name, fmt.Sprintf(format, args...))
	}
	if first.Size <= 0 {
		if src.digest = verify.Empty; first.Size < 0 || len(e) > 1 {
			return bad("%d bytes in %d chunks", first.Size, len(e))
		}
		return src, nil
	}
	if len(e) == 1 { // its only chunk has the same digest, under either name
		first.Digest = cmp.Or(first.Digest, first.ChunkDigest)
		first.ChunkDigest = first.Digest
	}
	var err error
	if src.digest, err = verify.ParseDigest(first.Digest); err != nil {
		return bad("%v", err)
	}
	var at int64
	for i := range e {
		size := e[i].ChunkSize
		if size == 0 && i == len(e)-1 {
			size = first.Size - at
		}
		if e[i].ChunkOffset != at || size <= 0 || size > first.Size-at {
			return bad("chunk %d of %d bytes at %d, where %d of %d are to come", i, size, e[i].ChunkOffset, first.Size-at, first.Size)
		}
		if src.Chunks, err = c.chunk(src.Chunks, e, i, filetable.Chunk{Offset: at, Size: size}); err != nil {
			return bad("chunk %d: %v", i, err)
		}
		at += size
	}
	if at != first.Size {
		return bad("chunks of %d bytes, of %d", at, first.Size)
	}
	return src, nil
}

// chunk appends chunk i of the file of e, which is at its place in the file.
func (c *contents) chunk(list []filetable.Chunk, e []entry, i int, k filetable.Chunk) ([]filetable.Chunk, error) {
	if e[i].ChunkType == chunkZeros {
		if err := c.count(int((k.Size-1)/filetable.MaxChunk) + 1); err != nil {
			return nil, err
		}
		for end := k.Offset + k.Size; k.Offset < end; k.Offset += k.Size {
			k.Size = min(end-k.Offset, filetable.MaxChunk)
			list = append(list, k)
		}
		return list, nil
	}
	if e[i].ChunkType != "" {
		return nil, opaque("type %.20q", e[i].ChunkType)
	}
	var err error
	if k.Digest, err = verify.ParseDigest(e[i].ChunkDigest); err != nil {
		return nil, opaque("%v", err)
	}
	k.At = e[i].Offset
	end := c.endOf(e, i)
	if k.Size > filetable.MaxChunk || k.At < 0 || end <= k.At || end > c.end || end-k.At > filetable.MaxChunkLen {
		return nil, opaque("%d bytes at %d to %d", k.Size, k.At, end)
	}
	k.Len = end - k.At
	return append(list, k), c.count(1)
}

// endOf returns the end of chunk i in the blob: the start of the next one of the file, the end of
// the file, or the start of anything else.
func (c *contents) endOf(e []entry, i int) int64 {
	switch {
	case i+1 < len(e):
		return e[i+1].Offset
	case e[0].EndOffset != 0:
		return e[0].EndOffset
	}
	n, _ := slices.BinarySearch(c.starts, e[i].Offset+1)
	if n < len(c.starts) {
		return min(c.starts[n], c.end)
	}
	return c.end
}

// place returns the files at their paths in the model.
func (c *contents) place(as string) []filetable.File {
	files := make([]filetable.File, 0, len(c.members))
	for _, m := range filetable.PlaceTar(c.members, as) {
		f := m.File()
		if m.Type == filetable.TypeReg {
			src := c.sources[m.Offset]
			f.Digest, f.Source = src.digest, &src.Source
		}
		files = append(files, f)
	}
	return files
}

// modTime parses a time; an empty one is 1970, for which stargz writes none.
func modTime(s string) (time.Time, error) {
	if s == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	return filetable.CleanTime(t), err
}
