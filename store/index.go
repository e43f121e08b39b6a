package store

import (
	"os"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
)

// fromObjects fills buf with those of the chunks, which follow each other in it, that an object
// has already, and returns where: no object for the others.
func (s *Store) fromObjects(chunks []filetable.Chunk, buf []byte) []meta.Location {
	places, err := s.db.Chunks(chunks)
	if err != nil {
		s.log.Warn("chunks are fetched that may be there", "err", err)
		return make([]meta.Location, len(chunks))
	}
	var (
		f    *os.File
		open digest.Digest
	)
	defer func() {
		if f != nil {
			f.Close() // only read from
		}
	}()
	for i, c := range chunks {
		if d := places[i].Object; d != "" && d != open {
			if f != nil {
				f.Close()
			}
			open = d
			if f, err = s.OpenObject(open); err != nil {
				f = nil // it was collected, or is damaged
			}
		}
		if places[i].Object == "" || f == nil || !readChunk(f, places[i].Off, c, buf[c.Offset-chunks[0].Offset:][:c.Size]) {
			places[i] = meta.Location{}
			continue
		}
		s.counts.copied.Add(c.Size)
	}
	return places
}

// readChunk fills dst with chunk c, which f should have at off, and says whether it has.
func readChunk(f *os.File, off int64, c filetable.Chunk, dst []byte) bool {
	_, err := f.ReadAt(dst, off)
	return err == nil && verify.Bytes(c.Digest, dst) == nil
}
