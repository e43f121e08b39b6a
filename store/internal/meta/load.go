package meta

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/containerd/errdefs"
)

// read builds the index from the records of a database file of size bytes. It returns errdefs.ErrDataLoss if the
// pages or the checksums of records are wrong. In a database of another schema only the pages are checked.
//
// It reads the file and does not map it: a mapping of all records would count as memory of the process.
func read(f io.ReaderAt, size int64) (*index, error) {
	l := loader{x: newIndex()}
	err := boltfile.Walk(f, size, l.record)
	l.link()
	if err != nil {
		return nil, err
	}
	v, err := version(l.version)
	switch {
	case err != nil:
		return nil, err
	case v == "":
		return nil, fmt.Errorf("no version: %w", errdefs.ErrDataLoss)
	case v != schemaVersion:
		return newIndex(), nil
	case l.wrong != nil:
		return nil, l.wrong
	case l.err != nil:
		return nil, l.err
	}
	return l.x, nil
}

// A loader builds an index from records in the order of their buckets, and finds wrong ones.
type loader struct {
	version []byte
	wrong   error // a record is damaged
	err     error // a record cannot be decoded

	x      *index
	refs   []Ref
	images []Image
	linked bool // x has refs and images
}

// record loads a record. It is called by boltfile.Walk.
func (l *loader) record(path [][]byte, key, value []byte) {
	switch {
	case len(path) > 1 || (len(path) == 0) != (value == nil): // all buckets, and nothing else, are at the top
		l.wrong = fmt.Errorf("%q/%q is not of the schema: %w", path, key, errdefs.ErrDataLoss)
	case len(path) == 0:
		if bytes.Equal(key, bucketTables) {
			l.link()
		}
	case bytes.Equal(path[0], bucketMeta) && string(key) == keyVersion:
		l.version = bytes.Clone(value)
	case isSealed(path[0]):
		if err := l.decode(path[0], key, value); errdefs.IsDataLoss(err) {
			l.wrong = err
		} else if err != nil {
			l.err = err
		}
	}
}

// decode adds a record to the index. Objects come first: then an object is found with its size, and a table with its
// references.
func (l *loader) decode(bucket, k, value []byte) error {
	switch string(bucket) {
	case string(bucketObjects):
		var o Object // decode would allocate it
		value, err := unseal(bucket, k, value)
		if err == nil {
			err = o.UnmarshalBinary(value)
		}
		if err == nil && len(k) != sha256.Size {
			err = fmt.Errorf("key %x of an object: %w", k, errdefs.ErrDataLoss)
		}
		if err == nil {
			l.x.addObject(key(k), o.Size)
		}
		return err
	case string(bucketTables):
		n, err := decode[needing](bucket, k, value)
		if err == nil {
			n.key = keyOf(k)
			l.x.setTable(n)
		}
		return err
	case string(bucketImages):
		im, err := decode[Image](bucket, k, value)
		l.images = append(l.images, im)
		return err
	case string(bucketRefs):
		r, err := decode[Ref](bucket, k, value)
		l.refs = append(l.refs, r)
		return err
	}
	_, err := unseal(bucket, k, value)
	return err
}

// link completes the objects, and adds references and images, after which tables can be added.
func (l *loader) link() {
	if l.linked {
		return
	}
	l.linked = true
	l.x.objects.hash()
	for _, im := range l.images {
		l.x.setImage(im)
	}
	for _, r := range l.refs {
		l.x.setRef(r)
	}
}

// load builds the index again from the records. There must be no writes meanwhile.
func (db *DB) load() error {
	info, err := db.file.Stat()
	if err != nil {
		return err
	}
	x, err := read(db.file, info.Size())
	if err != nil {
		return errors.Join(errors.New("the index of the database cannot be built again"), err)
	}
	db.index.mu.Lock()
	defer db.index.mu.Unlock()
	db.index.entries = x.entries
	return nil
}
