package meta

import (
	"bytes"
	"cmp"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
)

// An index knows which records need which objects, and their sizes. It is built from the records of
// objects, tables, references and images and updated with them. The cost of a query depends on the
// objects it names, not on the size of the database.
type index struct {
	mu      sync.RWMutex
	entries // guarded by mu
}

type entries struct {
	objects objects
	tables  map[tableID]*table
	byKey   map[key]*table
	last    tableID         // last assigned
	refs    map[string]Ref  // Size and Inodes are not set
	expires map[string]bool // references that expire
	images  images

	totals Usage      // Reclaimable counts idle objects
	inDir  [256]int64 // existing objects by the first byte of their digests

	garbage bool // records were removed since the last search for useless ones
}

type tableID uint32

// A table is a recorded or referenced table.
type table struct {
	Table // the record; Objects is nil
	id    tableID
	key   key
	known bool       // there is a record
	all   []objectID // objects that it needs, including itself
	refs  []string   // oldest first
	size  int64      // bytes of the objects that it owns
	count int64      // number of these objects
}

func newIndex() *index {
	return &index{entries: entries{
		objects: newObjects(), tables: map[tableID]*table{}, byKey: map[key]*table{}, refs: map[string]Ref{},
		expires: map[string]bool{}, images: newImages(), garbage: true,
	}}
}

// put applies a value, and reports whether the index depends on values of its type.
func (x *index) put(key string, v any) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch v := v.(type) {
	case Object:
		x.setObject(keyOf(key), v.Size)
	case Table:
		n := needing{Table: v, key: keyOf(key)}
		for _, o := range v.Objects {
			n.keys = append(n.keys, keyOf(o))
		}
		x.setTable(n)
	case Ref:
		x.setRef(v)
	case Image:
		x.setImage(v)
	default:
		return false
	}
	return true
}

// remove applies the removal of a value.
func (x *index) remove(bucket []byte, key string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch string(bucket) {
	case string(bucketObjects):
		x.dropObject(keyOf(key))
	case string(bucketTables):
		x.dropTable(keyOf(key))
	case string(bucketRefs):
		x.dropRef(key)
	case string(bucketImages):
		x.dropImage(digest.Digest(key))
	default:
		return false
	}
	x.garbage = true
	return true
}

// change updates an object with do, and the totals with it.
func (x *entries) change(id objectID, do func(o *object)) {
	o := x.objects.at(id)
	x.count(id, o, -1)
	do(o)
	x.count(id, o, 1)
	x.objects.release(id)
}

// count adds an object to the totals, or subtracts it.
func (x *entries) count(id objectID, o *object, sign int64) {
	if !o.exists() {
		return
	}
	size := sign * o.size
	x.totals.Objects += sign
	x.inDir[o.key[0]] += sign
	x.totals.Unique += size
	if o.complete > 0 {
		x.totals.Shared += size
	}
	switch {
	case o.owner != 0:
		t := x.tables[o.owner]
		t.size += size
		t.count += sign
	case !x.objects.needed(id):
		x.objects.idle.set(id, sign > 0)
		x.totals.Reclaimable += size
	}
}

// setObject records an object.
func (x *entries) setObject(k key, size int64) {
	x.change(x.objects.id(k), func(o *object) { o.size = max(0, size) })
}

// addObject is setObject for a new object, which is not found before objects.hash.
func (x *entries) addObject(k key, size int64) {
	x.change(x.objects.entry(k), func(o *object) { o.size = max(0, size) })
}

func (x *entries) dropObject(k key) {
	x.change(x.objects.id(k), func(o *object) { o.size = absent })
}

// table returns the table with a digest, creating it if needed.
func (x *entries) table(k key) *table {
	if t := x.byKey[k]; t != nil {
		return t
	}
	x.last++
	t := &table{id: x.last, key: k}
	x.tables[t.id], x.byKey[k] = t, t
	x.need(t, []key{k})
	return t
}

// need sets the objects of a table, including the table itself.
func (x *entries) need(t *table, all []key) {
	had := map[objectID]bool{}
	for _, id := range t.all {
		had[id] = true
	}
	now := make([]objectID, 0, len(all))
	x.objects.fetch(all)
	for _, k := range all {
		id := x.objects.id(k)
		now = append(now, id)
		if had[id] {
			delete(had, id)
			continue
		}
		x.change(id, func(o *object) {
			x.objects.add(id, t.id)
			if t.Complete {
				o.complete++
			}
			x.own(o, t)
		})
	}
	for id := range had {
		x.change(id, func(o *object) {
			x.objects.remove(id, t.id)
			if t.Complete {
				o.complete--
			}
			x.disown(id, o, t)
		})
	}
	t.all = now
}

// own makes a referenced table the owner of an object that it needs, unless the owner has an older reference.
func (x *entries) own(o *object, t *table) {
	if len(t.refs) > 0 && (o.owner == 0 || x.older(t.id, o.owner)) {
		o.owner = t.id
	}
}

// disown moves an object owned by a table to another referenced table that needs it, if any.
func (x *entries) disown(id objectID, o *object, t *table) {
	if o.owner != t.id {
		return
	}
	o.owner = 0
	for _, other := range x.objects.needs(id) {
		if other != t.id {
			x.own(o, x.tables[other])
		}
	}
}

// older reports whether the oldest reference to a is older than that to b.
func (x *entries) older(a, b tableID) bool {
	return byAge(x.refs[x.tables[a].refs[0]], x.refs[x.tables[b].refs[0]]) < 0
}

func byAge(a, b Ref) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// setTable records a table.
func (x *entries) setTable(n needing) {
	t := x.table(n.key)
	x.setComplete(t, n.Complete, n.Logical)
	all := append(n.keys, n.key)
	slices.SortFunc(all, func(a, b key) int { return bytes.Compare(a[:], b[:]) })
	t.Table, t.known = n.Table, true
	t.Table.Objects = nil
	x.need(t, slices.Compact(all))
}

// setComplete records whether all objects of a table exist.
func (x *entries) setComplete(t *table, complete bool, logical int64) {
	if t.Complete {
		x.totals.Logical -= t.Logical
	}
	if complete {
		x.totals.Logical += logical
	}
	if t.Complete == complete {
		return
	}
	t.Complete = complete
	for _, id := range t.all {
		x.change(id, func(o *object) {
			if complete {
				o.complete++
			} else {
				o.complete--
			}
		})
	}
}

func (x *entries) dropTable(k key) {
	t := x.table(k)
	x.setComplete(t, false, 0)
	t.Table, t.known = Table{}, false
	x.need(t, []key{k})
	x.forget(t)
}

// forget removes a table that is neither recorded nor referenced.
func (x *entries) forget(t *table) {
	if t.known || len(t.refs) > 0 {
		return
	}
	x.need(t, nil)
	delete(x.byKey, t.key)
	delete(x.tables, t.id)
}

// setRef records a reference, replacing one of the same name.
func (x *entries) setRef(r Ref) {
	old, ok := x.refs[r.Name]
	if ok && old.Table == r.Table && old.Created.Equal(r.Created) {
		x.refs[r.Name] = r
		x.setExpires(r)
		return
	}
	x.dropRef(r.Name)
	x.setExpires(r)
	t := x.table(keyOf(r.Table))
	at, _ := slices.BinarySearchFunc(t.refs, r, func(name string, r Ref) int { return byAge(x.refs[name], r) })
	x.refs[r.Name] = r
	t.refs = slices.Insert(t.refs, at, r.Name)
	if len(t.refs) > 1 {
		return
	}
	x.images.use(r.Table, true)
	for _, id := range t.all {
		x.change(id, func(o *object) { x.own(o, t) })
	}
}

func (x *entries) setExpires(r Ref) {
	if r.Expires.IsZero() {
		delete(x.expires, r.Name)
	} else {
		x.expires[r.Name] = true
	}
}

func (x *entries) dropRef(name string) {
	r, ok := x.refs[name]
	if !ok {
		return
	}
	t := x.table(keyOf(r.Table))
	t.refs = slices.DeleteFunc(t.refs, func(n string) bool { return n == name })
	delete(x.refs, name)
	delete(x.expires, name)
	if len(t.refs) > 0 {
		return
	}
	x.images.use(r.Table, false)
	for _, id := range t.all {
		x.change(id, func(o *object) { x.disown(id, o, t) })
	}
	x.forget(t)
}

// setImage records an image.
func (x *entries) setImage(im Image) {
	x.dropImage(im.Manifest)
	x.images.add(im)
	if t := x.byKey[keyOf(im.Table)]; t == nil || len(t.refs) == 0 {
		x.images.unused[im.Manifest] = true
	}
	for _, d := range im.Documents() {
		id := x.objects.id(keyOf(d))
		x.change(id, func(*object) { x.objects.document(id, 1) })
	}
}

func (x *entries) dropImage(manifest digest.Digest) {
	im, ok := x.images.all[manifest]
	if !ok {
		return
	}
	x.images.remove(im)
	for _, d := range im.Documents() {
		id := x.objects.id(keyOf(d))
		x.change(id, func(*object) { x.objects.document(id, -1) })
	}
}
