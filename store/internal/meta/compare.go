package meta

import "github.com/opencontainers/go-digest"

// A Difference is how the files in a directory differ from the records.
type Difference struct {
	Unknown []Sized         // without a record
	Resized []Sized         // recorded with another size
	Missing []digest.Digest // recorded, and not found
}

// Compare compares the files that were found in the directory of the objects whose digests begin with a byte
// with their records. It looks at other records only if some are missing.
func (db *DB) Compare(first byte, found []Sized) (diff Difference) {
	x := db.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	left := x.inDir[first]
	for _, f := range found {
		id, ok := x.objects.find(keyOf(f.Digest))
		o := x.objects.at(id)
		switch {
		case !ok || !o.exists():
			diff.Unknown = append(diff.Unknown, f)
			continue
		case f.Size != o.size:
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
func (x *entries) missing(first byte, found []Sized) (objects []digest.Digest) {
	there := make(map[key]bool, len(found))
	for _, f := range found {
		there[keyOf(f.Digest)] = true
	}
	for id := range x.objects.last + 1 {
		if o := x.objects.at(id); o.exists() && o.key[0] == first && !there[o.key] {
			objects = append(objects, o.key.digest())
		}
	}
	return objects
}
