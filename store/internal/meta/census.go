package meta

import (
	"crypto/sha256"

	"github.com/opencontainers/go-digest"
)

// A Census compares the recorded objects with the files that are found. It is not safe for
// concurrent use.
type Census struct {
	index *index
	found bits
}

// Census calls take with a new Census. Nothing may be recorded until take returns.
func (db *DB) Census(take func(c *Census)) {
	db.index.mu.RLock()
	defer db.index.mu.RUnlock()
	take(&Census{index: db.index})
}

// Found records that the file of an object was found, by the bytes of its digest. It returns the
// recorded size in bytes; false if the object is not recorded.
func (c *Census) Found(d [sha256.Size]byte) (size int64, ok bool) {
	id, ok := c.index.objects.find(d)
	o := c.index.objects.at(id)
	if !ok || !o.exists() {
		return 0, false
	}
	c.found.set(id, true)
	return o.size, true
}

// Missing returns the recorded objects that were not found.
func (c *Census) Missing() (objects []digest.Digest) {
	for id := range c.index.objects.last + 1 {
		if o := c.index.objects.at(id); o.exists() && !c.found.has(id) {
			objects = append(objects, o.key.digest())
		}
	}
	return objects
}
