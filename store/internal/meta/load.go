package meta

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ballast-dev/ballast/store/boltfile"
	"github.com/containerd/errdefs"
)

// read builds the index from the records of a database file of size bytes. It returns errdefs.ErrDataLoss if the
// pages or the checksums of records are wrong. In a database of another schema only the pages are checked.
//
// It reads the file and does not map it: a mapping of all records would count as memory of the process.
func read(f io.ReaderAt, size int64) (*index, error) {
	l := newLoader()
	err := boltfile.Walk(f, size, l.record)
	l.close()
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

	refs   []Ref
	images []Image

	// Another goroutine adds to the index, since both decoding and adding take time. Objects come first: then
	// an object is found with its size, and a table with its references.
	x        *index
	linked   bool // work includes link
	work     chan func()
	working  sync.WaitGroup
	objects  []counted      // not yet added
	recycled chan []counted // buffers for objects
}

// loadBatch is the number of objects that are added at once.
const loadBatch = 512

func newLoader() *loader {
	l := &loader{x: newIndex(), work: make(chan func(), 8)}
	l.recycled = make(chan []counted, cap(l.work)+2) // one is added, and one is filled
	for range cap(l.recycled) - 1 {
		l.recycled <- make([]counted, 0, loadBatch)
	}
	l.objects = make([]counted, 0, loadBatch)
	l.working.Go(func() {
		for do := range l.work {
			do()
		}
	})
	return l
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

func (l *loader) decode(bucket, key, value []byte) error {
	switch string(bucket) {
	case string(bucketObjects):
		c, err := decodeCounted(key, value)
		if err != nil {
			return err
		}
		if l.objects = append(l.objects, c); len(l.objects) == loadBatch {
			l.addObjects()
			l.objects = <-l.recycled
		}
		return nil
	case string(bucketTables):
		n, err := decodeNeeding(key, value)
		if err == nil {
			l.work <- func() { l.x.setTable(n) }
		}
		return err
	case string(bucketImages):
		im, err := decode[Image](bucket, key, value)
		l.images = append(l.images, im)
		return err
	case string(bucketRefs):
		r, err := decode[Ref](bucket, key, value)
		l.refs = append(l.refs, r)
		return err
	}
	_, err := unseal(bucket, key, value)
	return err
}

// addObjects adds the decoded objects to the index.
func (l *loader) addObjects() {
	batch := l.objects
	l.work <- func() {
		for _, c := range batch {
			l.x.addObject(c)
		}
		l.recycled <- batch[:0]
	}
}

// link completes the objects, and adds references and images, after which tables can be added.
func (l *loader) link() {
	if l.linked {
		return
	}
	l.linked = true
	l.addObjects()
	l.objects = nil
	l.work <- func() {
		l.x.objects.hash()
		for _, im := range l.images {
			l.x.setImage(im)
		}
		for _, r := range l.refs {
			l.x.setRef(r)
		}
	}
}

// close waits until the index is complete.
func (l *loader) close() {
	l.link()
	close(l.work)
	l.working.Wait()
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
