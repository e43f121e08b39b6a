package filetable

import (
	"slices"

	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// Windowless returns the blobs of which nothing can be verified before all of it is here, although a chain of states
// (verify.Chain) would allow it: those that are a file without chunks.
func (t *Table) Windowless() (blobs []Blob) {
	chunked := map[digest.Digest]bool{}
	for _, f := range t.Files {
		if f.Source != nil && len(f.Source.Chunks) > 0 {
			chunked[f.Source.Blob] = true
		}
	}
	for _, b := range t.Blobs {
		if b.Archive == ArchiveNone && b.Codec == CodecNone && b.Size > verify.Window && !chunked[b.Digest] {
			blobs = append(blobs, b)
		}
	}
	return blobs
}

// Windowed returns t with the windows of chains, by Windowless blob, as the chunks of their files. The result is not
// the table of a model: its encoding is another one.
func (t *Table) Windowed(chains map[digest.Digest]verify.Chain) *Table {
	if len(chains) == 0 {
		return t
	}
	chunks := map[digest.Digest][]Chunk{} // which files of one blob share
	w := *t
	w.Files = slices.Clone(t.Files)
	for i, f := range w.Files {
		if f.Source == nil || chains[f.Source.Blob] == nil {
			continue
		}
		src := *f.Source
		if chunks[src.Blob] == nil {
			chunks[src.Blob] = windows(src.Size, chains[src.Blob])
		}
		src.Chunks = chunks[src.Blob]
		w.Files[i].Source = &src
	}
	return &w
}

// windows returns the windows of a chain. They have no digests.
func windows(size int64, c verify.Chain) []Chunk {
	var out []Chunk
	for at := int64(0); at < size; {
		end := verify.End(len(out), size)
		out = append(out, Chunk{Offset: at, Size: end - at, State: c.State(len(out))})
		at = end
	}
	return out
}
