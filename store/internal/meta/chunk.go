package meta

import (
	"encoding/binary"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// keepChunks is how many objects there are for each that is gone and whose chunks stay.
const keepChunks = 8

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

// putChunks remembers where the chunks of a complete file are.
func putChunks(tx *txn, object digest.Digest, chunks []filetable.Chunk) error {
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

// chunksGone says that the chunks of n more objects are those of objects that are gone. They are forgotten
// when many are: there can be millions to look through, and they only take room.
func (db *DB) chunksGone(n int) error {
	db.mu.Lock()
	db.gone += n
	many := db.gone > int(db.index.usage(nil).Objects)/keepChunks
	if many {
		db.gone = 0
	}
	db.mu.Unlock()
	if !many {
		return nil
	}
	return db.dropChunks()
}

// dropChunks forgets the chunks of objects that are not recorded. It looks for them in a
// transaction that nobody waits for: there can be millions.
func (db *DB) dropChunks() error {
	var keys [][]byte
	stale := func(tx *txn, v []byte) bool {
		at, ok := decodeLocation(v)
		return !ok || !exists(tx, bucketObjects, at.Object)
	}
	err := db.view(func(tx *txn) error {
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
	return db.update(func(tx *txn) error {
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
