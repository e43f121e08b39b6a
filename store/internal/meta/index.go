package meta

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
)

// An index answers what is needed by what, and how much that is. It follows from the records of objects,
// tables, references and images, and changes with them: what a request costs depends on what it names and
// not on how much there is. It takes about 90 bytes for an object.
type index struct {
	mu    sync.RWMutex
	books // guarded by mu
}

type books struct {
	objects objects
	tables  map[tableID]*table
	byKey   map[key]*table
	last    tableID        // that was given
	refs    map[string]Ref // Size and Inodes are those of their tables
	images  images

	idle   map[objectID]bool // objects that are there and that nothing needs
	totals Usage             // Reclaimable: of idle

	garbage bool // something is gone since records of no use were looked for
}

type tableID uint32

// A table is one that is known, or referred to.
type table struct {
	Table // as recorded; Objects is nil
	id    tableID
	key   key
	known bool       // there is a record
	all   []objectID // that it needs; itself is one
	refs  []string   // the oldest first
	size  int64      // bytes of the objects that count here
	count int64      // and how many
}

func newIndex() *index {
	return &index{books: books{
		objects: newObjects(), tables: map[tableID]*table{}, byKey: map[key]*table{}, refs: map[string]Ref{},
		images: newImages(), idle: map[objectID]bool{}, garbage: true,
	}}
}

// load makes the index from the records.
func (db *DB) load() error {
	x := newIndex()
	err := db.view(func(tx *txn) error {
		var refs []Ref
		err := errors.Join(
			each(tx, bucketTables, func(d digest.Digest, t Table) error { x.setTable(d, t); return nil }),
			each(tx, bucketImages, func(_ string, im Image) error { x.setImage(im); return nil }),
			each(tx, bucketRefs, func(_ string, r Ref) error { refs = append(refs, r); return nil }),
		)
		slices.SortFunc(refs, byAge) // what two need counts at the oldest
		for _, r := range refs {
			x.setRef(r)
		}
		// Last: each counts where it belongs at once.
		return errors.Join(err, each(tx, bucketObjects, func(d digest.Digest, o Object) error { x.setObject(d, o.Size); return nil }))
	})
	if err == nil {
		db.index.mu.Lock()
		db.index.books = x.books
		db.index.mu.Unlock()
	}
	return err
}

// put records a value, and says whether anything follows from such.
func (x *index) put(key string, v any) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch v := v.(type) {
	case Object:
		x.setObject(digest.Digest(key), v.Size)
	case Table:
		x.setTable(digest.Digest(key), v)
	case Ref:
		x.setRef(v)
	case Image:
		x.setImage(v)
	default:
		return false
	}
	return true
}

// remove is put for a value that is gone.
func (x *index) remove(bucket []byte, key string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch string(bucket) {
	case string(bucketObjects):
		x.dropObject(digest.Digest(key))
	case string(bucketTables):
		x.dropTable(digest.Digest(key))
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

// change does what changes an object, and keeps what follows from it.
func (x *books) change(id objectID, do func(o *object)) {
	o := x.objects.at(id)
	x.count(id, o, -1)
	do(o)
	x.count(id, o, 1)
	x.objects.release(id)
}

// count adds an object to the totals, or takes it away.
func (x *books) count(id objectID, o *object, sign int64) {
	if !o.there {
		return
	}
	size := sign * o.size
	x.totals.Objects += sign
	x.totals.Unique += size
	if o.complete > 0 {
		x.totals.Shared += size
	}
	switch {
	case o.owner != 0:
		t := x.tables[o.owner]
		t.size += size
		t.count += sign
	case o.documents > 0:
	case sign > 0:
		x.idle[id] = true
		x.totals.Reclaimable += size
	default:
		delete(x.idle, id)
		x.totals.Reclaimable += size
	}
}

// setObject records that an object is there.
func (x *books) setObject(d digest.Digest, size int64) {
	x.change(x.objects.id(keyOf(d)), func(o *object) { o.there, o.size = true, size })
}

func (x *books) dropObject(d digest.Digest) {
	x.change(x.objects.id(keyOf(d)), func(o *object) { o.there = false })
}

// table returns the table with a digest, which is new if need be.
func (x *books) table(d digest.Digest) *table {
	k := keyOf(d)
	if t := x.byKey[k]; t != nil {
		return t
	}
	x.last++
	t := &table{id: x.last, key: k}
	x.tables[t.id], x.byKey[k] = t, t
	x.need(t, []digest.Digest{d})
	return t
}

// need makes all the objects of a table, which has itself among them.
func (x *books) need(t *table, all []digest.Digest) {
	had := map[objectID]bool{}
	for _, id := range t.all {
		had[id] = true
	}
	now := make([]objectID, 0, len(all))
	for _, d := range all {
		id := x.objects.id(keyOf(d))
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
			if o.owner == 0 && len(t.refs) > 0 {
				o.owner = t.id
			}
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

// disown gives an object that counts at a table to another that is referred to, if there is one.
func (x *books) disown(id objectID, o *object, t *table) {
	if o.owner != t.id {
		return
	}
	o.owner = 0
	for _, other := range x.objects.needs(id) {
		if other != t.id && len(x.tables[other].refs) > 0 && (o.owner == 0 || x.older(other, o.owner)) {
			o.owner = other
		}
	}
}

// older says whether the oldest reference to a is older than that to b.
func (x *books) older(a, b tableID) bool {
	return byAge(x.refs[x.tables[a].refs[0]], x.refs[x.tables[b].refs[0]]) < 0
}

func byAge(a, b Ref) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// setTable records a table.
func (x *books) setTable(d digest.Digest, rec Table) {
	t := x.table(d)
	x.setComplete(t, rec.Complete, rec.Logical)
	all := append([]digest.Digest{d}, rec.Objects...)
	slices.Sort(all)
	rec.Objects = nil
	t.Table, t.known = rec, true
	x.need(t, slices.Compact(all))
}

// setComplete says whether all of a table is there.
func (x *books) setComplete(t *table, complete bool, logical int64) {
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

func (x *books) dropTable(d digest.Digest) {
	t := x.table(d)
	x.setComplete(t, false, 0)
	t.Table, t.known = Table{}, false
	x.need(t, []digest.Digest{d})
	x.forget(t)
}

// forget forgets a table that is neither known nor referred to.
func (x *books) forget(t *table) {
	if t.known || len(t.refs) > 0 {
		return
	}
	x.need(t, nil)
	delete(x.byKey, t.key)
	delete(x.tables, t.id)
}

// setRef records a reference, in the place of the one of its name.
func (x *books) setRef(r Ref) {
	old, ok := x.refs[r.Name]
	if ok && old.Table == r.Table && old.Created.Equal(r.Created) {
		x.refs[r.Name] = r
		return
	}
	x.dropRef(r.Name)
	t := x.table(r.Table)
	at, _ := slices.BinarySearchFunc(t.refs, r, func(name string, r Ref) int { return byAge(x.refs[name], r) })
	x.refs[r.Name] = r
	t.refs = slices.Insert(t.refs, at, r.Name)
	if len(t.refs) > 1 {
		return
	}
	for _, id := range t.all {
		x.change(id, func(o *object) {
			if o.owner == 0 {
				o.owner = t.id
			}
		})
	}
}

func (x *books) dropRef(name string) {
	r, ok := x.refs[name]
	if !ok {
		return
	}
	t := x.table(r.Table)
	t.refs = slices.DeleteFunc(t.refs, func(n string) bool { return n == name })
	delete(x.refs, name)
	if len(t.refs) > 0 {
		return
	}
	for _, id := range t.all {
		x.change(id, func(o *object) { x.disown(id, o, t) })
	}
	x.forget(t)
}

// setImage records an image.
func (x *books) setImage(im Image) {
	x.dropImage(im.Manifest)
	x.images.add(im)
	for _, d := range im.documents() {
		x.change(x.objects.id(keyOf(d)), func(o *object) { o.documents++ })
	}
}

func (x *books) dropImage(manifest digest.Digest) {
	im, ok := x.images.all[manifest]
	if !ok {
		return
	}
	x.images.remove(im)
	for _, d := range im.documents() {
		x.change(x.objects.id(keyOf(d)), func(o *object) { o.documents-- })
	}
}
