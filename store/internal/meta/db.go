package meta

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// schemaVersion is the version of the buckets drawn in doc.go.
const schemaVersion = "1"

var (
	bucketMeta      = []byte("meta")
	bucketObjects   = []byte("objects")
	bucketContents  = []byte("contents")
	bucketAssembled = []byte("assembled")
	bucketTables    = []byte("tables")
	bucketImages    = []byte("images")
	bucketRefs      = []byte("refs")
	bucketChunks    = []byte("chunks")
	bucketShown     = []byte("shown")

	keyVersion = []byte("version")

	buckets = [][]byte{bucketMeta, bucketObjects, bucketContents, bucketAssembled, bucketTables, bucketImages, bucketRefs, bucketChunks, bucketShown}
)

// DB is an open database. Its methods are safe for concurrent use; each is one transaction, and
// none of them touches another file.
type DB struct{ bolt *bbolt.DB }

// Open opens the database at path, and makes it if need be. It returns errdefs.ErrUnavailable if
// another process has it open, and errdefs.ErrFailedPrecondition if it has another schema.
func Open(path string) (*DB, error) {
	bolt, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: another process has it open: %w", path, errdefs.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := bolt.Update(prepare); err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &DB{bolt}, nil
}

// prepare makes the buckets, and compares the schema.
func prepare(tx *bbolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	switch v := string(meta.Get(keyVersion)); v {
	case "":
		return meta.Put(keyVersion, []byte(schemaVersion))
	case schemaVersion:
		return nil
	default:
		return fmt.Errorf("schema version %q, want %q: another ballast made it: %w", v, schemaVersion, errdefs.ErrFailedPrecondition)
	}
}

// Close closes the database, after the transactions that are going on.
func (db *DB) Close() error { return db.bolt.Close() }

// put stores v as JSON.
func put[K ~string](tx *bbolt.Tx, bucket []byte, key K, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("store %s/%s: %w", bucket, key, err)
	}
	return tx.Bucket(bucket).Put([]byte(key), p)
}

// load reads a value stored by put, or returns errdefs.ErrNotFound.
func load[T any, K ~string](tx *bbolt.Tx, bucket []byte, key K) (v T, err error) {
	p := tx.Bucket(bucket).Get([]byte(key))
	if p == nil {
		return v, fmt.Errorf("%s/%s: %w", bucket, key, errdefs.ErrNotFound)
	}
	if err := json.Unmarshal(p, &v); err != nil {
		return v, fmt.Errorf("%s/%s: %w", bucket, key, err)
	}
	return v, nil
}

// get is load in a transaction of its own.
func get[T any, K ~string](db *DB, bucket []byte, key K) (v T, err error) {
	err = db.bolt.View(func(tx *bbolt.Tx) error {
		v, err = load[T](tx, bucket, key)
		return err
	})
	return v, err
}

// each calls fn for every value of a bucket, in the order of its keys.
func each[K ~string, T any](tx *bbolt.Tx, bucket []byte, fn func(key K, v T) error) error {
	return tx.Bucket(bucket).ForEach(func(k, p []byte) error {
		var v T
		if err := json.Unmarshal(p, &v); err != nil {
			return fmt.Errorf("%s/%s: %w", bucket, k, err)
		}
		return fn(K(k), v)
	})
}

// exists says whether there is a value.
func exists[K ~string](tx *bbolt.Tx, bucket []byte, key K) bool {
	return tx.Bucket(bucket).Get([]byte(key)) != nil
}
