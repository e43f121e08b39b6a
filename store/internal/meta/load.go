package meta

import (
	"bytes"
	"errors"
	"runtime"
	"slices"

	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
)

// load builds the index from the records. There must be no writes meanwhile.
func (db *DB) load() error {
	x := newIndex()
	var refs []Ref
	err := errors.Join(
		// First, and in key order: lookups of neighbours are batched.
		decodeAll(db, bucketObjects, decodeCounted, x.addObject),
		decodeAll(db, bucketTables, decodeNeeding, x.setTable),
		db.view(func(tx *txn) error {
			return errors.Join(
				each(tx, bucketImages, func(_ string, im Image) error { x.setImage(im); return nil }),
				each(tx, bucketRefs, func(_ string, r Ref) error { refs = append(refs, r); return nil }),
			)
		}),
	)
	if err != nil {
		return err
	}
	slices.SortFunc(refs, byAge) // an object needed by several tables counts for the oldest reference
	for _, r := range refs {
		x.setRef(r)
	}
	db.index.mu.Lock()
	defer db.index.mu.Unlock()
	db.index.entries = x.entries
	return nil
}

// decodeAll decodes the values of a bucket with digests as keys, on all processors, and calls do
// for each, sequentially and in no order.
func decodeAll[T any](db *DB, bucket []byte, decode func(k, p []byte) (T, error), do func(T)) error {
	batches := make(chan []T, runtime.GOMAXPROCS(0))
	var all errgroup.Group
	all.Go(func() error {
		defer close(batches)
		var ranges errgroup.Group
		ranges.SetLimit(cap(batches))
		for i := range len(digits) {
			ranges.Go(func() error {
				return db.bolt.View(func(tx *bbolt.Tx) error { return decodeRange(tx.Bucket(bucket).Cursor(), i, decode, batches) })
			})
		}
		return ranges.Wait()
	})
	for batch := range batches {
		for _, v := range batch {
			do(v)
		}
	}
	return all.Wait()
}

// digits are the first digits of a digest, which divide the keys of a bucket into ranges.
const digits = "0123456789abcdef"

// batchLen is the number of values in a batch.
const batchLen = 256

// decodeRange decodes the values in a range of keys.
func decodeRange[T any](c *bbolt.Cursor, i int, decode func(k, p []byte) (T, error), to chan<- []T) error {
	first := func(i int) []byte { return []byte("sha256:" + digits[i:i+1]) }
	k, p := c.First()
	if i > 0 {
		k, p = c.Seek(first(i))
	}
	var batch []T
	for ; k != nil; k, p = c.Next() {
		if i+1 < len(digits) && bytes.Compare(k, first(i+1)) >= 0 {
			break
		}
		v, err := decode(k, p)
		if err != nil {
			return err
		}
		if batch = append(batch, v); len(batch) == batchLen {
			to <- batch
			batch = make([]T, 0, batchLen)
		}
	}
	to <- batch
	return nil
}
