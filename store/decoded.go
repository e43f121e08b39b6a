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
	bytes int
}

// table returns a table, or nil.
func (c *decoded) table(d digest.Digest) *filetable.Table {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tables[d].Table
}

// keep keeps a table with an encoded size in bytes, and drops others if needed.
func (c *decoded) keep(d digest.Digest, t *filetable.Table, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tables == nil {
		c.tables = map[digest.Digest]decodedTable{}
	}
	c.bytes -= c.tables[d].bytes
	delete(c.tables, d)
	for other, t := range c.tables {
		if c.bytes+bytes <= maxDecoded {
			break
		}
		c.bytes -= t.bytes
		delete(c.tables, other)
	}
	c.tables[d] = decodedTable{t, bytes}
	c.bytes += bytes
}
