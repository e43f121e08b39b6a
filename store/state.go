package store

import (
	"context"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A State is how much of a table is on the node, and what is being done about the rest.
type State struct {
	// Files are the files as Views.Files or Given returns them if the table is complete. The other fields are about an
	// incomplete one.
	Files []filetable.File

	Total int64 // bytes of the whole table
	Done  int64 // of them, complete or staged. Remaining files of an archive of which others were collected do not count
	Begun bool  // anything is on the node: staged bytes, or an object that the table names

	// Running is set while the table is hydrated, with the progress of its blobs. Awaited means that a Hydrate that
	// is not in the background waits for it: such work does not stop when the store is paused.
	Running bool
	Blobs   []Progress
	Awaited bool

	Early map[string]Early // the views that show it
	Lost  []CheckResult    // the missing and damaged objects of a table that was complete, while nobody downloads or reads them
}

// Incomplete reports whether files are missing.
func (s *State) Incomplete() bool { return s.Files == nil }

// State returns the state of a table. With names of sources (transfer.Source), what they have not given, and others
// have, is missing (Views.Given). It returns errdefs.ErrNotFound for an unknown table, and the error of Views.Files for
// one that cannot be shown.
func (s *Store) State(ctx context.Context, table digest.Digest, names ...string) (st State, err error) {
	if len(names) > 0 {
		st.Files, err = s.Views.Given(table, names)
	} else {
		st.Files, err = s.Views.Files(table)
	}
	if err == nil || !errdefs.IsUnavailable(err) {
		return st, err
	}
	t, err := s.windowed(table)
	if err != nil {
		return st, err
	}
	if st.Total, st.Done, err = s.engine.Presence(ctx, t); err != nil {
		return st, err
	}
	st.Begun = st.Done > 0 || s.begun(t)
	st.Blobs, st.Running = s.engine.Running(table)
	st.Awaited, st.Early = s.engine.Awaited(table), s.Views.Early(table)
	if !st.Running && len(st.Early) == 0 {
		st.Lost, err = s.Missing(table)
	}
	return st, err
}

// begun reports whether an object that a table names is on the node, or the first bytes of one are in flight.
func (s *Store) begun(t *filetable.Table) bool {
	for _, f := range t.Files {
		if f.Digest != "" && f.Source != nil && len(f.Source.Inline) == 0 && s.has(f.Digest) {
			return true
		}
	}
	for d := range stagedAs(t) {
		if len(s.area.Dirs(d)) > 0 {
			return true
		}
	}
	return false
}

// ChunkUse reports how many chunks of a table are shared.
type ChunkUse struct {
	Chunks int   // chunks with a digest, without duplicates
	Bytes  int64 // their size
	Shared int64 // size of those that other objects on the node contain
}

// ChunkUse looks for the chunks of a table in other objects. It returns errdefs.ErrNotFound for an
// unknown table.
func (s *Store) ChunkUse(ctx context.Context, table digest.Digest) (ChunkUse, error) {
	t, err := s.Table(table)
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
		if other, err := s.Table(d); err == nil && d != table { // a missing table has no known chunks
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
