package meta

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/opencontainers/go-digest"
)

// A Found is a file that has the name of an object.
type Found struct {
	Digest [sha256.Size]byte
	Size   int64 // bytes; negative if it is not known
}

// Sized returns the file with its digest as text.
func (f Found) Sized() Sized { return Sized{key(f.Digest).digest(), f.Size} }

// A Difference is how the files in a directory differ from the records.
type Difference struct {
	Unknown []Found         // without a record
	Resized []Found         // recorded with another size
	Missing []digest.Digest // recorded, and not found
}

// Empty reports whether there is no difference.
func (d Difference) Empty() bool { return len(d.Unknown)+len(d.Resized)+len(d.Missing) == 0 }

// Compare compares the files that were found in the directory of the objects whose digests begin with a byte
// with their records. It looks at other records only if some are missing.
func (db *DB) Compare(first byte, found []Found) (diff Difference) {
	x := db.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	left := x.inDir[first]
	for _, f := range found {
		id, ok := x.objects.find(f.Digest)
		o := x.objects.at(id)
		switch {
		case !ok || !o.exists():
			diff.Unknown = append(diff.Unknown, f)
			continue
		case f.Size >= 0 && f.Size != o.size:
			diff.Resized = append(diff.Resized, f)
		}
		left--
	}
	if left > 0 {
		diff.Missing = x.missing(first, found)
	}
	return diff
}

// missing returns the recorded objects of a directory that were not found.
func (x *entries) missing(first byte, found []Found) (objects []digest.Digest) {
	there := make(map[key]bool, len(found))
	for _, f := range found {
		there[f.Digest] = true
	}
	for id := range x.objects.last + 1 {
		if o := x.objects.at(id); o.exists() && o.key[0] == first && !there[o.key] {
			objects = append(objects, o.key.digest())
		}
	}
	return objects
}

// A DirState is the state of a directory, which changes with its entries.
type DirState struct {
	Inode    uint64 `json:"inode"`
	Modified int64  `json:"modified"` // time of the last change of its entries, in nanoseconds since 1970
	Changed  int64  `json:"changed"`  // time of the last change of its attributes
}

// Compared returns the recorded states of directories, by their names: while a directory has this state, its files
// are the recorded objects.
func (db *DB) Compared() (dirs map[string]DirState, err error) {
	dirs = map[string]DirState{}
	err = db.view(func(tx *txn) error {
		return each(tx, bucketCompared, func(name string, s DirState) error {
			dirs[name] = s
			return nil
		})
	})
	return dirs, err
}

// PutCompared records states of directories whose files are the recorded objects. No object may be removed between
// the comparison and the return.
func (db *DB) PutCompared(dirs map[string]DirState) error {
	return db.update(func(tx *txn) error {
		for name, s := range dirs {
			if err := put(tx, bucketCompared, name, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// ForgetCompared removes the recorded state of a directory.
func (db *DB) ForgetCompared(name string) error {
	return db.update(func(tx *txn) error { return remove(tx, bucketCompared, name) })
}

// forgetCompared removes the state of the directory of an object whose record is removed: the file is removed later,
// and may be there again after a power cut, when the directory has the state that it had before.
func forgetCompared(tx *txn, object digest.Digest) error {
	k := keyOf(object)
	return remove(tx, bucketCompared, hex.EncodeToString(k[:1]))
}
