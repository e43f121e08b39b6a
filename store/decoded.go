package store

import (
	"sync"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/opencontainers/go-digest"
)

// maxDecoded is how many bytes of encoded tables are kept decoded, which takes about twice as much. One
// table is kept whatever its size: a pull asks for it again and again.
const maxDecoded = 24 << 20 // 24 MiB

// decoded are the tables that were used of late. The zero value works.
type decoded struct {
	mu     sync.Mutex
	tables map[digest.Digest]decodedTable // guarded by mu
	bytes  int                            // guarded by mu: of tables, encoded
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

// keep keeps a table that has a number of bytes encoded; others make room.
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
