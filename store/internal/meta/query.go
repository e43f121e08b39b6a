package meta

import (
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// ref returns a reference with what counts at it: all of its table, if it is the oldest to that.
func (x *books) ref(r Ref) Ref {
	r.Size, r.Inodes = 0, 0
	if t := x.byKey[keyOf(r.Table)]; t.refs[0] == r.Name {
		r.Size, r.Inodes = t.size, t.count
	}
	r.Sources = slices.Clone(r.Sources)
	return r
}

// list returns references, by name.
func (x *index) list(which func(name string, r Ref) bool) (refs []Ref) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for name, r := range x.refs {
		if which(name, r) {
			refs = append(refs, x.ref(r))
		}
	}
	slices.SortFunc(refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	return refs
}

// named returns the reference of a name; false if there is none.
func (x *index) named(name string) (Ref, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	r, ok := x.refs[name]
	if ok {
		r = x.ref(r)
	}
	return r, ok
}

// refsOf returns the references to a table, oldest first.
func (x *index) refsOf(d digest.Digest) (refs []Ref) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if t := x.byKey[keyOf(d)]; t != nil {
		for _, name := range t.refs {
			refs = append(refs, x.ref(x.refs[name]))
		}
	}
	return refs
}

// unresolved returns the references of which it is not known what they need, by name.
func (x *index) unresolved() []Ref {
	now := time.Now()
	return x.list(func(_ string, r Ref) bool {
		t := x.byKey[keyOf(r.Table)]
		return r.live(now) && (!t.known || t.Broken && t.Partly)
	})
}

// referred says whether a reference keeps a table.
func (x *index) referred(d digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.kept(x.byKey[keyOf(d)], time.Now())
}

func (x *books) kept(t *table, now time.Time) bool {
	return t != nil && slices.ContainsFunc(t.refs, func(name string) bool { return x.refs[name].live(now) })
}

// tablesOf returns the tables that are recorded and need an object.
func (x *index) tablesOf(d digest.Digest) (tables []digest.Digest) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id, _ := x.objects.find(keyOf(d))
	for _, t := range x.objects.needs(id) {
		if x.tables[t].known {
			tables = append(tables, x.tables[t].key.digest())
		}
	}
	return tables
}

// neededBy returns which tables that are complete, or were, need an object, by object: one table, or all
// with a reference if it is empty.
func (x *index) neededBy(one digest.Digest) map[digest.Digest][]digest.Digest {
	x.mu.RLock()
	defer x.mu.RUnlock()
	needed, now := map[digest.Digest][]digest.Digest{}, time.Now()
	add := func(t *table) {
		if t == nil || !t.Complete && !t.Broken {
			return
		}
		d := t.key.digest()
		for _, id := range t.all {
			o := x.objects.at(id).key.digest()
			needed[o] = append(needed[o], d)
		}
	}
	if one != "" {
		add(x.byKey[keyOf(one)])
		return needed
	}
	for _, t := range x.tables {
		if x.kept(t, now) {
			add(t)
		}
	}
	for _, tables := range needed {
		slices.Sort(tables)
	}
	return needed
}

// usage returns the totals. What is in stays is not reclaimable.
func (x *index) usage(stays map[key]bool) Usage {
	x.mu.RLock()
	defer x.mu.RUnlock()
	u := x.totals
	for k := range stays {
		if id, _ := x.objects.find(k); x.objects.idle.has(id) {
			u.Reclaimable -= x.objects.at(id).size
		}
	}
	return u
}

// perObject is what the index takes for each object, in bytes: the object, where it is found and that a table
// needs it.
const perObject = 64

// memory returns what the index takes, in bytes.
func (x *index) memory() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return perObject * int64(x.objects.last)
}

// recorded returns the objects that are there.
func (x *index) recorded() []Sized {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]Sized, 0, x.totals.Objects)
	for id := range x.objects.last {
		if o := x.objects.at(id + 1); o.there() {
			out = append(out, Sized{o.key.digest(), o.size})
		}
	}
	return out
}

// needed says whether anything needs an object.
func (x *index) needed(d digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id, _ := x.objects.find(keyOf(d))
	return x.objects.needed(id)
}

// unneeded returns the objects that nothing needs and that are not in stays.
func (x *index) unneeded(stays map[key]bool) (out []Sized) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for id := range x.objects.idle.all() {
		if o := x.objects.at(id); !stays[o.key] {
			out = append(out, Sized{o.key.digest(), o.size})
		}
	}
	return out
}

// imagesOf returns the images that have one of the references.
func (x *index) imagesOf(refs []string) []Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	which := manifests{}
	for _, r := range refs {
		for d := range x.images.byRef[r] {
			which[d] = true
		}
	}
	return x.images.pick(which)
}

// expired returns the references that do not keep anything any more.
func (x *index) expired(now time.Time) (drop []record) {
	for _, r := range x.list(func(_ string, r Ref) bool { return !r.live(now) }) {
		drop = append(drop, record{bucketRefs, r.Name})
	}
	return drop
}

// outdated returns the images that no reference needs and that were not used for long.
func (x *index) outdated(now time.Time) (drop []record) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for d, im := range x.images.all {
		if now.Sub(im.Used) > imageTTL && !x.kept(x.byKey[keyOf(im.Table)], now) {
			drop = append(drop, record{bucketImages, d.String()})
		}
	}
	return drop
}

// inUse says whether a reference keeps a table, or an image that is not gone has it.
func (x *index) inUse(d digest.Digest, gone map[string]bool) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for manifest := range x.images.byTable[d] {
		if !gone[manifest.String()] {
			return true
		}
	}
	return x.kept(x.byKey[keyOf(d)], time.Now())
}

// hasGarbage says whether something has gone since swept was called.
func (x *index) hasGarbage() bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.garbage
}

func (x *index) swept() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.garbage = false
}

// unusedImages returns the images that no reference and none of the tables needs.
func (x *index) unusedImages(tables []digest.Digest) (idle []Idle) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	now := time.Now()
	for _, im := range x.images.all {
		if x.kept(x.byKey[keyOf(im.Table)], now) || slices.Contains(tables, im.Table) {
			continue
		}
		i := Idle{Image: im.clone()}
		for _, d := range im.documents() {
			id, _ := x.objects.find(keyOf(d))
			if o := x.objects.at(id); o.there() {
				i.Bytes += o.size
			}
		}
		idle = append(idle, i)
	}
	return idle
}
