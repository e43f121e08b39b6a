package meta

import (
	"bytes"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// A Scrub is how far all objects have been read again, in the order of their digests.
type Scrub struct {
	Began time.Time     `json:"began"`
	Ended time.Time     `json:"ended,omitzero"` // zero until all objects have been read
	Whole time.Time     `json:"whole,omitzero"` // begin of the last one that has read all
	Last  digest.Digest `json:"last,omitempty"` // the object that was read last
	Done  int64         `json:"done"`           // bytes of the objects that were read
}

// keyScrub is the key of the only Scrub.
const keyScrub = "scrub"

// Scrub returns the recorded Scrub, the zero value if there is none.
func (db *DB) Scrub() (Scrub, error) {
	s, err := get[Scrub](db, bucketMeta, keyScrub)
	if errdefs.IsNotFound(err) {
		return Scrub{}, nil
	}
	return s, err
}

// PutScrub records a Scrub.
func (db *DB) PutScrub(s Scrub) error {
	return db.update(func(tx *txn) error { return put(tx, bucketMeta, keyScrub, s) })
}

// ObjectAfter returns the first object after d in the order of digests; false if there is none.
func (db *DB) ObjectAfter(d digest.Digest) (next Sized, ok bool, err error) {
	err = db.view(func(tx *txn) error {
		c, last := tx.Bucket(bucketObjects).Cursor(), recordKey(bucketObjects, d)
		if d == "" {
			last = nil
		}
		k, p := c.Seek(last)
		if bytes.Equal(k, last) {
			k, p = c.Next()
		}
		if ok = k != nil; !ok {
			return nil
		}
		o, err := decode[Object](bucketObjects, k, p)
		next = Sized{key(k).digest(), o.Size} // Open has seen that all keys are digests
		return err
	})
	return next, ok, err
}
