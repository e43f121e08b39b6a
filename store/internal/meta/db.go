package meta

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
)

// schemaVersion is the version of the schema in doc.go.
const schemaVersion = "3"

var (
	bucketMeta      = []byte("meta")
	bucketObjects   = []byte("objects")
	bucketContents  = []byte("contents")
	bucketAssembled = []byte("assembled")
	bucketTables    = []byte("tables")
	bucketImages    = []byte("images")
	bucketRefs      = []byte("refs")
	bucketChunks    = []byte("chunks")
	bucketWays      = []byte("ways")
	bucketVerdicts  = []byte("verdicts")
	bucketOrders    = []byte("orders")
	bucketChains    = []byte("chains")

	// sealed are the buckets whose values have a checksum.
	sealed = [][]byte{
		bucketObjects, bucketContents, bucketAssembled, bucketTables, bucketImages, bucketRefs, bucketWays, bucketVerdicts, bucketOrders,
		bucketChains,
	}
	buckets = append([][]byte{bucketMeta, bucketChunks}, sealed...)
)

const (
	keyVersion = "version"
	keyRebuilt = "rebuilt"
)

// DB is an open database. Its methods are safe for concurrent use; each is one transaction and
// accesses no other file.
type DB struct {
	Catalog

	bolt  *bbolt.DB
	file  *os.File // of bolt
	index *index

	writing sync.Mutex // held until the index has the changes of a transaction
}

// A Catalog is the part of a DB that needs no objects: images, verdicts and what is known of references.
type Catalog struct{ db *DB }

// A txn is a transaction. Its changes are applied to the index at once.
type txn struct {
	*bbolt.Tx
	index   *index
	changed bool // the index has changes
}

// update runs do in a write transaction. If it fails, the index is rebuilt.
func (db *DB) update(do func(tx *txn) error) error {
	db.writing.Lock()
	defer db.writing.Unlock()
	t := &txn{index: db.index}
	err := db.bolt.Update(func(tx *bbolt.Tx) error {
		t.Tx = tx
		return do(t)
	})
	if err != nil && t.changed {
		return errors.Join(err, db.load())
	}
	return err
}

// AwaitWrites waits until no other write transaction runs, and writes nothing.
func (db *DB) AwaitWrites() error {
	db.writing.Lock()
	defer db.writing.Unlock()
	tx, err := db.bolt.Begin(true)
	if err != nil {
		return err
	}
	return tx.Rollback()
}

// view runs do in a read transaction.
func (db *DB) view(do func(tx *txn) error) error {
	return db.bolt.View(func(tx *bbolt.Tx) error { return do(&txn{Tx: tx, index: db.index}) })
}

// prepare creates the buckets and checks the schema version.
func prepare(tx *txn) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	p := tx.Bucket(bucketMeta).Get([]byte(keyVersion))
	switch v, err := version(p); {
	case err != nil:
		return err
	case v == schemaVersion:
		return nil
	case v != "":
		return fmt.Errorf("schema version %q, want %q: it was written by another version of ballast: %w", v, schemaVersion, errdefs.ErrFailedPrecondition)
	}
	return putVersion(tx, schemaVersion)
}

// putVersion records the version of the schema: as text, which each version can read, however it encodes records.
func putVersion(tx *txn, v string) error {
	return tx.Bucket(bucketMeta).Put([]byte(keyVersion), seal(bucketMeta, []byte(keyVersion), []byte(v)))
}

// version returns the version of a schema; "" if there is none.
func version(p []byte) (string, error) {
	if len(p) == 0 {
		return "", nil
	}
	p, err := unseal(bucketMeta, []byte(keyVersion), p)
	return string(p), err
}

// Memory returns the size of the index, in bytes.
func (db *DB) Memory() int64 { return db.index.memory() }

// Close closes the database after the running transactions.
func (db *DB) Close() error { return db.bolt.Close() }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealLen is the length of a checksum.
const sealLen = 4

// seal prepends a checksum, over bucket, key and value, to a value.
func seal(bucket, key, value []byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, sealLen+len(value)), checksum(bucket, key, value)), value...)
}

// separator is in front of key and value in a checksum. As a literal, it would be allocated for each of a million
// records.
var separator = []byte{0}

func checksum(bucket, key, value []byte) (sum uint32) {
	for _, p := range [...][]byte{bucket, separator, key, separator, value} {
		sum = crc32.Update(sum, castagnoli, p)
	}
	return sum
}

// unseal returns a value without its checksum, or errdefs.ErrDataLoss if the checksum is wrong.
func unseal(bucket, key, p []byte) ([]byte, error) {
	if len(p) < sealLen || checksum(bucket, key, p[sealLen:]) != binary.BigEndian.Uint32(p) {
		return nil, fmt.Errorf("record %s/%q has a wrong checksum: %w", bucket, key, errdefs.ErrDataLoss)
	}
	return p[sealLen:], nil
}

// put stores v: as it encodes itself, or as JSON.
func put[K ~string](tx *txn, bucket []byte, key K, v any) error {
	p, err := encode(v)
	if err != nil {
		return fmt.Errorf("store %s/%s: %w", bucket, key, err)
	}
	k := recordKey(bucket, key)
	if err := tx.Bucket(bucket).Put(k, seal(bucket, k, p)); err != nil {
		return err
	}
	tx.changed = tx.index.put(string(key), v) || tx.changed
	return nil
}

// recordKey returns the key of a record: the bytes of the digest in objects, the text otherwise.
func recordKey[K ~string](bucket []byte, k K) []byte {
	if bytes.Equal(bucket, bucketObjects) {
		digest := keyOf(k)
		return digest[:]
	}
	return []byte(k)
}

func encode(v any) ([]byte, error) {
	if m, ok := v.(encoding.BinaryMarshaler); ok {
		return m.MarshalBinary()
	}
	return json.Marshal(v)
}

// remove removes a value, if it exists.
func remove[K ~string](tx *txn, bucket []byte, key K) error {
	if err := tx.Bucket(bucket).Delete(recordKey(bucket, key)); err != nil {
		return err
	}
	tx.changed = tx.index.remove(bucket, string(key)) || tx.changed
	return nil
}

func decode[T any](bucket, key, p []byte) (v T, err error) {
	if p, err = unseal(bucket, key, p); err != nil {
		return v, err
	}
	return parse[T](bucket, key, p)
}

// parse decodes a value without its checksum.
func parse[T any](bucket, key, p []byte) (v T, err error) {
	if u, ok := any(&v).(encoding.BinaryUnmarshaler); ok {
		err = u.UnmarshalBinary(p)
	} else {
		err = json.Unmarshal(p, &v)
	}
	if err != nil {
		return v, fmt.Errorf("record %s/%s: %w", bucket, key, err)
	}
	return v, nil
}

// load reads a value stored by put, or returns errdefs.ErrNotFound.
func load[T any, K ~string](tx *txn, bucket []byte, key K) (v T, err error) {
	k := recordKey(bucket, key)
	p := tx.Bucket(bucket).Get(k)
	if p == nil {
		return v, fmt.Errorf("%s/%s: %w", bucket, key, errdefs.ErrNotFound)
	}
	return decode[T](bucket, k, p)
}

// get is load in its own transaction.
func get[T any, K ~string](db *DB, bucket []byte, key K) (v T, err error) {
	err = db.view(func(tx *txn) error {
		v, err = load[T](tx, bucket, key)
		return err
	})
	return v, err
}

// change updates a value with do, or returns errdefs.ErrNotFound.
func change[T any, K ~string](db *DB, bucket []byte, key K, do func(v *T)) error {
	return db.update(func(tx *txn) error {
		v, err := load[T](tx, bucket, key)
		if err != nil {
			return err
		}
		do(&v)
		return put(tx, bucket, key, v)
	})
}

// each calls fn for every value of a bucket, in key order.
func each[K ~string, T any](tx *txn, bucket []byte, fn func(key K, v T) error) error {
	return tx.Bucket(bucket).ForEach(func(k, p []byte) error {
		v, err := decode[T](bucket, k, p)
		if err != nil {
			return err
		}
		return fn(K(k), v)
	})
}

// keys calls fn for every key of a bucket, in order.
func keys(tx *txn, bucket []byte, fn func(key string) error) error {
	return tx.Bucket(bucket).ForEach(func(k, _ []byte) error { return fn(string(k)) })
}

// run runs do in a transaction, which is read-only in a dry run.
func (db *DB) run(dryRun bool, do func(tx *txn) error) error {
	if dryRun {
		return db.view(do)
	}
	return db.update(do)
}

// exists reports whether there is a value.
func exists[K ~string](tx *txn, bucket []byte, key K) bool {
	return tx.Bucket(bucket).Get(recordKey(bucket, key)) != nil
}

// now returns the current time in the recorded form.
func now() time.Time { return time.Now().UTC() }
