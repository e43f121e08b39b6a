package store

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// minIndexed is the smallest chunk, in bytes, that is looked for in other objects.
const minIndexed = 32 << 10

// place is a value of the chunks bucket: an object and an offset in it.
type place struct {
	object digest.Digest
	off    int64
}

// chunkKey returns the key of a chunk, the 32 bytes of its digest.
func chunkKey(d digest.Digest) []byte {
	key, err := hex.DecodeString(d.Encoded())
	if err != nil {
		panic("store: internal error: digest " + d.String())
	}
	return key
}

// putChunks remembers where the chunks of a complete file are.
func putChunks(tx *bbolt.Tx, object digest.Digest, chunks []filetable.Chunk) error {
	b := tx.Bucket(bucketChunks)
	head := chunkKey(object)
	for _, c := range chunks {
		if c.Digest == "" || c.Size < minIndexed {
			continue
		}
		if err := b.Put(chunkKey(c.Digest), binary.BigEndian.AppendUint64(head[:32:32], uint64(c.Offset))); err != nil {
			return err
		}
	}
	return nil
}

// dropChunks forgets the chunks of objects that are gone.
func dropChunks(tx *bbolt.Tx, gone map[digest.Digest]bool) error {
	if len(gone) == 0 {
		return nil
	}
	var keys [][]byte
	err := tx.Bucket(bucketChunks).ForEach(func(k, v []byte) error {
		if p, err := decodePlace(v); err != nil || gone[p.object] {
			keys = append(keys, k)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := tx.Bucket(bucketChunks).Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// decodePlace reads a value of the chunks bucket.
func decodePlace(p []byte) (place, error) {
	if len(p) != 40 {
		return place{}, fmt.Errorf("place of a chunk has %d bytes: %w", len(p), errdefs.ErrDataLoss)
	}
	return place{digest.NewDigestFromBytes(digest.SHA256, p[:32]), int64(binary.BigEndian.Uint64(p[32:]))}, nil
}

// fromObjects fills buf with those of the chunks, which follow each other in it, that an object
// has already, and returns where: no object for the others.
func (s *Store) fromObjects(chunks []filetable.Chunk, buf []byte) []place {
	places, err := s.places(chunks)
	if err != nil {
		s.log.Warn("chunks are fetched that may be there", "err", err)
		return make([]place, len(chunks))
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
		if d := places[i].object; d != "" && d != open {
			if f != nil {
				f.Close()
			}
			open = d
			if f, err = s.OpenObject(open); err != nil {
				f = nil // it was collected, or is damaged
			}
		}
		if places[i].object == "" || f == nil || !readChunk(f, places[i].off, c, buf[c.Offset-chunks[0].Offset:][:c.Size]) {
			places[i] = place{}
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

// places looks chunks up.
func (s *Store) places(chunks []filetable.Chunk) ([]place, error) {
	out := make([]place, len(chunks))
	return out, s.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketChunks)
		for i, c := range chunks {
			if c.Digest == "" || c.Size < minIndexed {
				continue
			}
			if p := b.Get(chunkKey(c.Digest)); p != nil {
				var err error
				if out[i], err = decodePlace(p); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
