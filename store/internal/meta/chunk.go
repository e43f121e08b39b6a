package meta

import (
	"bytes"
	"encoding/binary"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// minIndexed is the smallest indexed chunk, in bytes.
const minIndexed = 32 << 10

// Chunks returns possible locations of the chunks, at their index. The objects are recorded, but
// their bytes must be compared.
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

// decodeLocation decodes a value of the chunks bucket.
func decodeLocation(p []byte) (filetable.Location, bool) {
	if len(p) != 40 {
		return filetable.Location{}, false
	}
	object := digest.NewDigestFromBytes(digest.SHA256, p[:32])
	return filetable.Location{Object: object, Off: int64(binary.BigEndian.Uint64(p[32:]))}, true
}

// neighbours is the number of entries checked for each new one.
const neighbours = 4

// putChunks records the locations of the chunks of a complete file. Entries stay when their object
// is removed, because there can be millions. Instead, the entries next to each new one are checked.
// Digests are evenly distributed, so at most about one in neighbours entries stays outdated for
// long.
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

// dropOutdated removes entries after a key whose objects no longer exist.
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
