package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// Presence reports how much of a table is on the node, in bytes.
type Presence struct {
	Total int64 // of the whole table
	Done  int64 // complete or staged
}

// Presence returns how much of a table is on the node. It returns errdefs.ErrNotFound for an
// unknown table. Remaining files of an archive of which others were collected do not count.
func (s *Store) Presence(ctx context.Context, table digest.Digest) (Presence, error) {
	t, err := s.Table(ctx, table)
	if err != nil {
		return Presence{}, err
	}
	total, done, err := s.engine.Presence(ctx, t)
	return Presence{Total: total, Done: done}, err
}

// Awaited reports whether a Hydrate that is not in the background waits for a table. Such work does
// not stop when the store is paused.
func (s *Store) Awaited(table digest.Digest) bool { return s.engine.Awaited(table) }

// ChunkUse reports how many chunks of a table are shared.
type ChunkUse struct {
	Chunks int   // chunks with a digest, without duplicates
	Bytes  int64 // their size
	Shared int64 // size of those that other objects on the node contain
}

// ChunkUse looks for the chunks of a table in other objects. It returns errdefs.ErrNotFound for an
// unknown table.
func (s *Store) ChunkUse(ctx context.Context, table digest.Digest) (ChunkUse, error) {
	t, err := s.Table(ctx, table)
	if err != nil {
		return ChunkUse{}, err
	}
	own, use := map[digest.Digest]bool{}, ChunkUse{}
	wanted := map[digest.Digest]int64{}
	for _, f := range t.Files {
		own[f.Digest] = true
		if f.Source == nil {
			continue
		}
		for _, c := range f.Source.Chunks {
			if _, twice := wanted[c.Digest]; c.Digest != "" && !twice {
				wanted[c.Digest] = c.Size
				use.Bytes += c.Size
			}
		}
	}
	use.Chunks = len(wanted)
	if use.Chunks == 0 {
		return use, nil
	}
	tables, err := s.chunksIndexed(wanted, own, &use)
	if err != nil {
		return use, err
	}
	for _, d := range tables {
		if err := ctx.Err(); err != nil {
			return use, err
		}
		if other, err := s.Table(ctx, d); err == nil && d != table { // a missing table has no known chunks
			s.chunksOf(other, wanted, own, &use)
		}
	}
	return use, nil
}

// chunksIndexed removes from wanted the chunks that the index has in an object not in own, and
// returns all tables. The index has one location for a chunk, so others may share more.
func (s *Store) chunksIndexed(wanted map[digest.Digest]int64, own map[digest.Digest]bool, use *ChunkUse) (tables []digest.Digest, err error) {
	chunks := make([]filetable.Chunk, 0, len(wanted))
	for d, size := range wanted {
		chunks = append(chunks, filetable.Chunk{Digest: d, Size: size})
	}
	places, err := s.db.Chunks(chunks)
	if err != nil {
		return nil, err
	}
	for i, p := range places {
		if p.Object != "" && !own[p.Object] {
			use.Shared += chunks[i].Size
			delete(wanted, chunks[i].Digest)
		}
	}
	return s.db.Tables(), nil
}

// chunksOf removes from wanted the chunks in complete files of a table that are not in own.
func (s *Store) chunksOf(t *filetable.Table, wanted map[digest.Digest]int64, own map[digest.Digest]bool, use *ChunkUse) {
	for _, f := range t.Files {
		if f.Source == nil || len(f.Source.Chunks) == 0 || own[f.Digest] || !s.has(f.Digest) {
			continue
		}
		for _, c := range f.Source.Chunks {
			if size, ok := wanted[c.Digest]; ok {
				use.Shared += size
				delete(wanted, c.Digest)
			}
		}
	}
}

// Started reports whether anything of a table is on the node: staged bytes, or an object that it
// names.
func (s *Store) Started(ctx context.Context, table digest.Digest) (bool, error) {
	p, err := s.Presence(ctx, table)
	if err != nil || p.Done > 0 {
		return p.Done > 0, err
	}
	t, err := s.Table(ctx, table)
	if err != nil {
		return false, err
	}
	for _, f := range t.Files {
		if f.Digest != "" && f.Source != nil && len(f.Source.Inline) == 0 && s.has(f.Digest) {
			return true, nil
		}
	}
	for _, b := range t.Blobs { // its first bytes may be in flight
		if len(s.area.Dirs(b.Digest)) > 0 {
			return true, nil
		}
	}
	return false, nil
}
