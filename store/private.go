package store

import (
	"os"
	"slices"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// mayHave reports whether an object exists and sources with these names may have it.
func (s *Store) mayHave(d digest.Digest, names []string) bool {
	o, ok := s.objects.Record(d)
	return ok && mayHave(o, names)
}

// mayHave reports whether sources with these names may have an object: it is public, or came from
// one of them.
func mayHave(o meta.Object, names []string) bool {
	return len(o.Private) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(o.Private, n) })
}

// hasBlob reports whether a raw blob is present for these sources. If it came from other sources, with
// credentials, it is not: these sources must provide all of it.
//
// It returns a *verify.Error if the object and the table differ in size.
func (s *Store) hasBlob(b filetable.Blob, from *transfer.Sources) (bool, error) {
	o, ok := s.objects.Record(b.Digest)
	if !ok || from != nil && !mayHave(o, transfer.Names(from.Order())) {
		return false, nil
	}
	return true, verify.Compare(b.Digest, b.Digest, b.Size, o.Size)
}

// Find implements chunkfile.Finder.
func (h host) Find(chunks []filetable.Chunk, buf []byte, from *transfer.Sources, right func(filetable.Chunk, []byte) error) []filetable.Location {
	s := h.Store
	found := make([]filetable.Location, len(chunks))
	names := transfer.Names(from.Order())
	places, err := s.db.Chunks(chunks)
	if err != nil {
		s.log.Warn("chunks are fetched that may be there", "err", err)
		return found
	}
	var (
		f    *os.File
		open digest.Digest
	)
	defer func() {
		if f != nil {
			f.Close() // opened for reading
		}
	}()
	for i, c := range chunks {
		at := places[i]
		if at.Object == "" {
			continue
		}
		if at.Object != open {
			if f != nil {
				f.Close()
			}
			f, open = nil, at.Object
			if s.mayHave(open, names) {
				if f, err = s.OpenObject(open); err != nil {
					f = nil // collected or damaged
				}
			}
		}
		if f == nil {
			continue
		}
		p := buf[c.Offset-chunks[0].Offset:][:c.Size]
		if _, err := f.ReadAt(p, at.Off); err == nil && right(c, p) == nil {
			found[i] = at
		}
	}
	return found
}

// Open implements chunkfile.Finder.
func (h host) Open(d digest.Digest) (*os.File, error) { return h.OpenObject(d) }

// readChunk reads chunk c at off into dst and reports whether it is right.
func readChunk(f *os.File, off int64, c filetable.Chunk, dst []byte) bool {
	_, err := f.ReadAt(dst, off)
	return err == nil && verify.Bytes(c.Digest, dst) == nil
}
