package meta

import (
	"encoding/binary"
	"encoding/hex"

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
	return out, db.bolt.View(func(tx *bbolt.Tx) error {
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
	key, err := hex.DecodeString(d.Encoded())
	if err != nil {
		panic("meta: internal error: digest " + d.String())
	}
	return key
}

// decodeLocation reads a value of the chunks bucket.
func decodeLocation(p []byte) (filetable.Location, bool) {
	if len(p) != 40 {
		return filetable.Location{}, false
	}
	object := digest.NewDigestFromBytes(digest.SHA256, p[:32])
	return filetable.Location{Object: object, Off: int64(binary.BigEndian.Uint64(p[32:]))}, true
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

// dropChunks forgets the chunks of objects that are not recorded. It looks for them in a
// transaction that nobody waits for: there can be millions.
func (db *DB) dropChunks() error {
	var keys [][]byte
	stale := func(tx *bbolt.Tx, v []byte) bool {
		at, ok := decodeLocation(v)
		return !ok || !exists(tx, bucketObjects, at.Object)
	}
	err := db.bolt.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketChunks).ForEach(func(k, v []byte) error {
			if stale(tx, v) {
				keys = append(keys, append([]byte(nil), k...))
			}
			return nil
		})
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	return db.bolt.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketChunks)
		for _, k := range keys {
			if v := b.Get(k); v != nil && stale(tx, v) {
				if err := b.Delete(k); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
