package expose

import (
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"
)

// index is all exposures. Guarded by Set.mu.
type index struct {
	files  map[digest.Digest]map[string]*exposure // by view
	tables map[digest.Digest]map[*exposure]bool   // by table that shows them
}

func newIndex() index {
	return index{files: map[digest.Digest]map[string]*exposure{}, tables: map[digest.Digest]map[*exposure]bool{}}
}

// at returns the exposure of a file in a view, or nil.
func (e index) at(d digest.Digest, view string) *exposure { return e.files[d][view] }

// in returns the exposures of a file in all views.
func (e index) in(d digest.Digest) []*exposure { return slices.Collect(maps.Values(e.files[d])) }

// of returns the exposures of a table.
func (e index) of(table digest.Digest) []*exposure {
	return slices.Collect(maps.Keys(e.tables[table]))
}

// show records that a table shows a file, from a group of sources.
func (e index) show(x *exposure, table digest.Digest, group string) {
	if e.files[x.digest] == nil {
		e.files[x.digest] = map[string]*exposure{}
	}
	e.files[x.digest][x.view] = x
	if e.tables[table] == nil {
		e.tables[table] = map[*exposure]bool{}
	}
	e.tables[table][x] = true
	x.tables[table] = group
}

// hide records that a table no longer shows a file, and reports whether no table does.
func (e index) hide(x *exposure, table digest.Digest) (gone bool) {
	delete(x.tables, table)
	if delete(e.tables[table], x); len(e.tables[table]) == 0 {
		delete(e.tables, table)
	}
	if len(x.tables) > 0 {
		return false
	}
	if delete(e.files[x.digest], x.view); len(e.files[x.digest]) == 0 {
		delete(e.files, x.digest)
	}
	return true
}

// drop hides a file for all tables.
func (e index) drop(x *exposure) {
	for table := range x.tables {
		e.hide(x, table)
	}
}
