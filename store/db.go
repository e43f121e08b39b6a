package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
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

// objectRecord is a value of the objects bucket.
type objectRecord struct {
	Size int64     `json:"size"`
	Used time.Time `json:"used"`

	// Damaged says that the file was found to have another digest. It counts as absent.
	Damaged bool `json:"damaged,omitempty"`
}

// assembledRecord is a value of the assembled bucket.
type assembledRecord struct {
	Digest digest.Digest `json:"digest"`
}

// shownRecord is a value of the shown bucket.
type shownRecord struct {
	Identity digest.Digest `json:"identity"`
}

// tableRecord is a value of the tables bucket. It lists what the table needs, so that
// collecting and counting never open the table.
type tableRecord struct {
	Objects  []digest.Digest `json:"objects"`  // as far as known, each once
	Logical  int64           `json:"logical"`  // bytes of the files, each as often as it occurs
	Complete bool            `json:"complete"` // all objects were there when last looked
	Used     time.Time       `json:"used"`
}

func openDB(path string) (*bbolt.DB, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: another process has it open: %w", path, errdefs.ErrUnavailable)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
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
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// put stores v as JSON.
func put(tx *bbolt.Tx, bucket []byte, key string, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("store %s/%s: %w", bucket, key, err)
	}
	return tx.Bucket(bucket).Put([]byte(key), p)
}

// load reads a value stored by put, or returns errdefs.ErrNotFound.
func load[T any](tx *bbolt.Tx, bucket []byte, key string) (v T, err error) {
	p := tx.Bucket(bucket).Get([]byte(key))
	if p == nil {
		return v, fmt.Errorf("%s/%s: %w", bucket, key, errdefs.ErrNotFound)
	}
	if err := json.Unmarshal(p, &v); err != nil {
		return v, fmt.Errorf("%s/%s: %w", bucket, key, err)
	}
	return v, nil
}

// each calls fn for every value of a bucket, in the order of its keys.
func each[T any](tx *bbolt.Tx, bucket []byte, fn func(key string, v T) error) error {
	return tx.Bucket(bucket).ForEach(func(k, p []byte) error {
		var v T
		if err := json.Unmarshal(p, &v); err != nil {
			return fmt.Errorf("%s/%s: %w", bucket, k, err)
		}
		return fn(string(k), v)
	})
}
