package store

import (
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// maxDecoded limits the tables kept decoded, by their encoded size in bytes; decoded they take
// about twice as much. One table is kept whatever its size, because a pull uses it repeatedly.
const maxDecoded = 24 << 20 // 24 MiB

// decoded are the recently used tables. The zero value works.
type decoded struct {
	mu     sync.Mutex
	tables map[digest.Digest]decodedTable // guarded by mu
	bytes  int                            // guarded by mu: encoded size of tables
}

type decodedTable struct {
	*filetable.Table
	refused error // of Decode: a hostile table costs time only once
	bytes   int   // encoded size, or refusedBytes
}

// refusedBytes is what a refused table counts.
const refusedBytes = 64 << 10 // 64 KiB

// table returns a table, or nil.
func (c *decoded) table(d digest.Digest) *filetable.Table {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tables[d].Table
}

// decode decodes the table with digest d and keeps the result.
func (c *decoded) decode(d digest.Digest, p []byte) (*filetable.Table, error) {
	c.mu.Lock()
	r, known := c.tables[d]
	c.mu.Unlock()
	if !known {
		t, err := filetable.Decode(p)
		if r = (decodedTable{t, nil, len(p)}); err != nil {
			r = decodedTable{nil, err, refusedBytes}
		}
		c.keep(d, r)
	}
	return r.Table, r.refused
}

// keep keeps the result for a table, and drops others if needed.
func (c *decoded) keep(d digest.Digest, r decodedTable) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tables == nil {
		c.tables = map[digest.Digest]decodedTable{}
	}
	c.bytes -= c.tables[d].bytes
	delete(c.tables, d)
	for other, t := range c.tables {
		if c.bytes+r.bytes <= maxDecoded {
			break
		}
		c.bytes -= t.bytes
		delete(c.tables, other)
	}
	c.tables[d] = r
	c.bytes += r.bytes
}
