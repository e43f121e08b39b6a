package meta

import (
	"bytes"
	"encoding/binary"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// minIndexed is the smallest chunk, in bytes, that is looked for in other objects.
const minIndexed = 32 << 10

// Chunks returns where the chunks may be, each at its index. The objects are recorded, but their
// bytes have to be compared.
func (db *DB) Chunks(chunks []filetable.Chunk) ([]filetable.Location, error) {
	out := make([]filetable.Location, len(chunks))
	return out, db.view(func(tx *txn) error {
		b := tx.Bucket(bucketChunks)
		for i, c := range chunks {
			if c.Digest == "" || c.Size < minIndexed {
				continue
			}
			if at, ok := decodeLocation(b.Get(chunkKey(c.Digest))); ok && exists(tx, bucketObjects, at.Object) {
				out[i] = at
			}
		}
		return nil
	})
}

// chunkKey returns the key of a chunk, the 32 bytes of its digest.
func chunkKey(d digest.Digest) []byte {
	k := keyOf(d)
	return k[:]
}

// decodeLocation reads a value of the chunks bucket.
func decodeLocation(p []byte) (filetable.Location, bool) {
	if len(p) != 40 {
		return filetable.Location{}, false
	}
	object := digest.NewDigestFromBytes(digest.SHA256, p[:32])
	return filetable.Location{Object: object, Off: int64(binary.BigEndian.Uint64(p[32:]))}, true
}

// neighbours is how many entries are looked at for each that is made.
const neighbours = 4

// putChunks remembers where the chunks of a complete file are. An entry stays when its object goes: there
// can be millions, and nobody looks through them. Instead those next to each new one are looked at. Digests
// are spread evenly, so no more than about one in neighbours is outdated for long.
func putChunks(tx *txn, object digest.Digest, chunks []filetable.Chunk) error {
	b := tx.Bucket(bucketChunks)
	head := chunkKey(object)
	for _, c := range chunks {
		if c.Digest == "" || c.Size < minIndexed {
			continue
		}
		k := chunkKey(c.Digest)
		if err := b.Put(k, binary.BigEndian.AppendUint64(head[:32:32], uint64(c.Offset))); err != nil {
			return err
		}
		if err := dropOutdated(tx, b, k); err != nil {
			return err
		}
	}
	return nil
}

// dropOutdated forgets those of the entries behind a key whose objects are gone.
func dropOutdated(tx *txn, b *bbolt.Bucket, key []byte) error {
	var outdated [][]byte
	c := b.Cursor()
	c.Seek(key)
	for range neighbours {
		k, v := c.Next()
		if k == nil {
			break
		}
		if at, ok := decodeLocation(v); !ok || !exists(tx, bucketObjects, at.Object) {
			outdated = append(outdated, bytes.Clone(k))
		}
	}
	for _, k := range outdated {
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
