package meta

import (
	"crypto/sha256"

	"github.com/opencontainers/go-digest"
)

// A Census compares the objects that are recorded with files that are found. It is for one goroutine.
type Census struct {
	index *index
	found bits
}

// Census calls take, during which nothing may be recorded.
func (db *DB) Census(take func(c *Census)) {
	db.index.mu.RLock()
	defer db.index.mu.RUnlock()
	take(&Census{index: db.index})
}

// Found says that there is a file of an object, by the bytes of its digest. It returns the recorded size in
// bytes; false if no such object is recorded.
func (c *Census) Found(d [sha256.Size]byte) (size int64, ok bool) {
	id, ok := c.index.objects.find(d)
	o := c.index.objects.at(id)
	if !ok || !o.there() {
		return 0, false
	}
	c.found.set(id, true)
	return o.size, true
}

// Missing returns the objects that were not found.
func (c *Census) Missing() (objects []digest.Digest) {
	for id := range c.index.objects.last + 1 {
		if o := c.index.objects.at(id); o.there() && !c.found.has(id) {
			objects = append(objects, o.key.digest())
		}
	}
	return objects
}
