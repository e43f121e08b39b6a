package meta

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// way is a value of the ways bucket.
type way struct {
	Identity digest.Digest   `json:"identity"`
	Tables   []digest.Digest `json:"tables"`          // that show the file in this way
	Wrong    int             `json:"wrong,omitempty"` // how often wrong bytes were read
}

// shown returns the identity under which the file is read now; it changes with Wrong.
func (w way) shown() digest.Digest {
	if w.Wrong == 0 {
		return w.Identity
	}
	return digest.FromString(fmt.Sprintf("%s %d", w.Identity, w.Wrong))
}

// wayKey returns the key of a file in a view. For the common view it is the digest alone.
func wayKey(view string, file digest.Digest) string {
	return strings.TrimPrefix(view+" "+file.String(), " ")
}

// useless reports whether nothing shows the file of a key in this way: the reference of the view is
// gone or, in the common view, all tables are.
func (w way) useless(tx *txn, key string, used func(table digest.Digest) bool) bool {
	if i := strings.LastIndexByte(key, ' '); i >= 0 {
		return !exists(tx, bucketRefs, key[:i])
	}
	return !slices.ContainsFunc(w.Tables, used)
}

// PutWays records the ways (identities) in which files are read for a table in a view before they
// are complete, and returns the identities under which they are read now. It returns
// errdefs.ErrFailedPrecondition if another referenced table shows a file in another way there.
func (db *DB) PutWays(view string, table digest.Digest, ways map[digest.Digest]digest.Digest) (shown map[digest.Digest]digest.Digest, err error) {
	shown = map[digest.Digest]digest.Digest{}
	if len(ways) == 0 {
		return shown, nil
	}
	return shown, db.update(func(tx *txn) error {
		for file, identity := range ways {
			w, err := load[way](tx, bucketWays, wayKey(view, file))
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			others := slices.DeleteFunc(w.Tables, func(t digest.Digest) bool { return t == table || !tx.index.referred(t) })
			if len(others) > 0 && w.Identity != identity {
				return fmt.Errorf("file %s is read with other chunks for another table: %w", file, errdefs.ErrFailedPrecondition)
			}
			w.Identity, w.Tables = identity, append(others, table)
			shown[file] = w.shown()
			if err := put(tx, bucketWays, wayKey(view, file), w); err != nil {
				return err
			}
		}
		return nil
	})
}

// ReplaceIdentity records that wrong bytes of a file were read in a view, and returns the identity under
// which it is read from now on. It returns errdefs.ErrNotFound for a file without a way.
func (db *DB) ReplaceIdentity(view string, file digest.Digest) (shown digest.Digest, err error) {
	return shown, db.update(func(tx *txn) error {
		w, err := load[way](tx, bucketWays, wayKey(view, file))
		if err != nil {
			return err
		}
		w.Wrong++
		shown = w.shown()
		return put(tx, bucketWays, wayKey(view, file), w)
	})
}

// Identity returns the identity under which a file is read in a view, or was before it was
// complete, or errdefs.ErrNotFound.
func (db *DB) Identity(view string, file digest.Digest) (shown digest.Digest, err error) {
	return shown, db.view(func(tx *txn) error {
		w, err := load[way](tx, bucketWays, wayKey(view, file))
		shown = w.shown()
		return err
	})
}

// Way returns the way (identity) in which a file is read in a view before it is complete, or was, whatever wrong bytes
// were read. It is "" for a file that never was.
func (db *DB) Way(view string, file digest.Digest) (identity digest.Digest, err error) {
	return identity, db.view(func(tx *txn) error {
		w, err := load[way](tx, bucketWays, wayKey(view, file))
		identity = w.Identity
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// replaceWays makes the ways in which files are read that of files that are read only when they are complete.
func replaceWays(tx *txn, files map[digest.Digest]bool) error {
	changed := map[string]way{}
	err := each(tx, bucketWays, func(key string, w way) error {
		file := digest.Digest(key[strings.LastIndexByte(key, ' ')+1:])
		if files[file] {
			w.Identity = file
			changed[key] = w
		}
		return nil
	})
	for key, w := range changed {
		err = errors.Join(err, put(tx, bucketWays, key, w))
	}
	return err
}
