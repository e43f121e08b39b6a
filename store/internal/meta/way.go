package meta

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"go.etcd.io/bbolt"
)

// way is a value of the ways bucket.
type way struct {
	Identity digest.Digest   `json:"identity"`
	Tables   []digest.Digest `json:"tables"` // that show the file in this way
}

// PutWays records in which ways (identities) files are read for a table before they are complete. It
// returns errdefs.ErrFailedPrecondition if another table shows one in another way.
func (db *DB) PutWays(table digest.Digest, ways map[digest.Digest]digest.Digest) error {
	if len(ways) == 0 {
		return nil
	}
	return db.bolt.Update(func(tx *bbolt.Tx) error {
		for file, identity := range ways {
			w, err := load[way](tx, bucketWays, file)
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			others := slices.DeleteFunc(w.Tables, func(t digest.Digest) bool { return t == table })
			if len(others) > 0 && w.Identity != identity {
				return fmt.Errorf("file %s is read in another way for another table: %w", file, errdefs.ErrFailedPrecondition)
			}
			if err := put(tx, bucketWays, file, way{Identity: identity, Tables: append(others, table)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// DropWays forgets what PutWays recorded for tables.
func (db *DB) DropWays(tables []digest.Digest) error {
	return db.changeWays(func(t digest.Digest) bool { return slices.Contains(tables, t) })
}

// PruneWays forgets what PutWays recorded for tables that nothing refers to.
func (db *DB) PruneWays() error {
	refs, err := db.Refs("")
	if err != nil {
		return err
	}
	return db.changeWays(func(t digest.Digest) bool {
		return !slices.ContainsFunc(refs, func(r Ref) bool { return r.Table == t })
	})
}

func (db *DB) changeWays(drop func(table digest.Digest) bool) error {
	return db.bolt.Update(func(tx *bbolt.Tx) error {
		changed := map[digest.Digest]way{}
		err := each(tx, bucketWays, func(file digest.Digest, w way) error {
			n := len(w.Tables)
			w.Tables = slices.DeleteFunc(w.Tables, drop)
			if len(w.Tables) < n {
				changed[file] = w
			}
			return nil
		})
		if err != nil {
			return err
		}
		for file, w := range changed {
			if len(w.Tables) == 0 {
				err = tx.Bucket(bucketWays).Delete([]byte(file))
			} else {
				err = put(tx, bucketWays, file, w)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
