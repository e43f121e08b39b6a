package meta

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
)

// ref returns a reference with its usage: that of its table, if it is the oldest reference to it.
func (x *entries) ref(r Ref) Ref {
	r.Size, r.Inodes = 0, 0
	if t := x.byKey[keyOf(r.Table)]; t.refs[0] == r.Name {
		r.Size, r.Inodes = t.size, t.count
	}
	r.Sources = slices.Clone(r.Sources)
	return r
}

// list returns references, sorted by name.
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

// named returns the reference with a name; false if there is none.
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

// unresolved returns the references whose needed objects are unknown, sorted by name.
func (x *index) unresolved() []Ref {
	now := time.Now()
	return x.list(func(_ string, r Ref) bool {
		t := x.byKey[keyOf(r.Table)]
		return r.live(now) && (!t.known || t.Broken && t.Partly)
	})
}

// unresolvedOf is unresolved for the references to a table.
func (x *index) unresolvedOf(d digest.Digest) (refs []Ref) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := x.byKey[keyOf(d)]
	if t == nil || t.known && !(t.Broken && t.Partly) {
		return nil
	}
	for _, name := range t.refs {
		if r := x.refs[name]; r.live(time.Now()) {
			refs = append(refs, r)
		}
	}
	return refs
}

// referred reports whether a reference keeps a table.
func (x *index) referred(d digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.kept(x.byKey[keyOf(d)], time.Now())
}

func (x *entries) kept(t *table, now time.Time) bool {
	return t != nil && slices.ContainsFunc(t.refs, func(name string) bool { return x.refs[name].live(now) })
}

// tablesOf returns the recorded tables that need an object.
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

// neededBy returns the objects that a table needs; none if there is no table or it never was complete.
func (x *index) neededBy(d digest.Digest) []digest.Digest {
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := x.byKey[keyOf(d)]
	if t == nil || !t.Complete && !t.Broken {
		return nil
	}
	out := make([]digest.Digest, len(t.all))
	for i, id := range t.all {
		out[i] = x.objects.at(id).key.digest()
	}
	return out
}

// usage returns the totals. Objects in stays are not reclaimable.
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

// perObject is the size of the index for each object, in bytes: the object, its hash bucket, and
// the tables that need it.
const perObject = 64

// memory returns the size of the index, in bytes.
func (x *index) memory() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return perObject * int64(x.objects.last)
}

// recorded returns the existing objects.
func (x *index) recorded() []Sized {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]Sized, 0, x.totals.Objects)
	for id := range x.objects.last {
		if o := x.objects.at(id + 1); o.exists() {
			out = append(out, Sized{o.key.digest(), o.size})
		}
	}
	return out
}

// tablesWith returns tables, sorted by digest.
func (x *index) tablesWith(which func(*table) bool) (out []digest.Digest) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, t := range x.tables {
		if which(t) {
			out = append(out, t.key.digest())
		}
	}
	slices.Sort(out)
	return out
}

// exists reports whether there is an object.
func (x *index) exists(d digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id, ok := x.objects.find(keyOf(d))
	return ok && x.objects.at(id).exists()
}

// needed reports whether anything needs an object.
func (x *index) needed(d digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	id, _ := x.objects.find(keyOf(d))
	return x.objects.needed(id)
}

// unneeded returns the unneeded objects that are not in stays.
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

// imagesOf returns the images with any of the references.
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

// expired returns the expired references.
func (x *index) expired(now time.Time) (drop []record) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for name := range x.expires {
		if !x.refs[name].live(now) {
			drop = append(drop, record{bucketRefs, name})
		}
	}
	return drop
}

// unused returns the images that no reference needs. An index has no table that a reference could keep: an
// imported one, which no registry may have, is never among them.
func (x *entries) unused(now time.Time) manifests {
	unused := maps.Clone(x.images.unused)
	for name := range x.expires {
		if table := x.refs[name].Table; !x.kept(x.byKey[keyOf(table)], now) {
			maps.Copy(unused, x.images.byTable[table])
		}
	}
	maps.DeleteFunc(unused, func(d digest.Digest, _ bool) bool {
		im := x.images.all[d]
		return im.Table == "" && len(im.Imported) > 0
	})
	return unused
}

// outdated returns the images that no reference needs and that were unused for imageTTL.
func (x *index) outdated(now time.Time) (drop []record) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for d := range x.unused(now) {
		if now.Sub(x.images.all[d].Used) > imageTTL {
			drop = append(drop, record{bucketImages, d.String()})
		}
	}
	return drop
}

// only returns the objects of the tables of images that are in no table of another image.
func (x *index) only(images []Image) (out []digest.Digest) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	gone := map[digest.Digest]bool{}
	for _, im := range images {
		gone[im.Manifest] = true
	}
	others := func(n tableID) bool {
		for manifest := range x.images.byTable[x.tables[n].key.digest()] {
			if !gone[manifest] {
				return true
			}
		}
		return false
	}
	for _, im := range images {
		t := x.byKey[keyOf(im.Table)]
		if im.Table == "" || t == nil {
			continue
		}
		for _, id := range t.all {
			if !slices.ContainsFunc(x.objects.needs(id), others) {
				out = append(out, x.objects.at(id).key.digest())
			}
		}
	}
	return out
}

// inUse reports whether a reference keeps a table, or an image that is not gone has it.
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

// swept reports whether a record was removed since the last call that was not dry.
func (x *index) swept(dry bool) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	garbage := x.garbage
	x.garbage = x.garbage && dry
	return garbage
}

// unusedImages returns the images that neither a reference nor the tables need.
func (x *index) unusedImages(tables []digest.Digest) (idle []Idle) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for d := range x.unused(time.Now()) {
		im := x.images.all[d]
		if slices.Contains(tables, im.Table) {
			continue
		}
		i := Idle{Image: im.clone()}
		for _, d := range im.Documents() {
			id, _ := x.objects.find(keyOf(d))
			if o := x.objects.at(id); o.exists() {
				i.Bytes += o.size
			}
		}
		idle = append(idle, i)
	}
	return idle
}

// shares returns the share of each image, by its manifest, and of each other table that a reference or the
// roots keep, by its digest.
func (x *index) shares(roots []digest.Digest) map[digest.Digest]Share {
	x.mu.RLock()
	defer x.mu.RUnlock()
	keeps, out := x.keeps(roots), map[digest.Digest]Share{}
	add := func(model digest.Digest) {
		if s := x.share(model, keeps); s != (Share{}) {
			out[model] = s
		}
	}
	for manifest := range x.images.all {
		add(manifest)
	}
	for _, t := range x.tables {
		if keeps(t) {
			add(t.key.digest())
		}
	}
	return out
}

// shareOf is shares for one model.
func (x *index) shareOf(model digest.Digest, roots []digest.Digest) Share {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.share(model, x.keeps(roots))
}

// keeps returns whether a table without an image is a model: a reference or the roots keep it.
func (x *entries) keeps(roots []digest.Digest) func(*table) bool {
	now, rooted := time.Now(), map[key]bool{}
	for _, d := range roots {
		rooted[keyOf(d)] = true
	}
	return func(t *table) bool {
		d := t.key.digest()
		return len(x.images.byTable[d]) == 0 && x.images.all[d].Manifest == "" && (x.kept(t, now) || rooted[t.key])
	}
}

// share returns the share of an image, by its manifest, or of another table. It looks at the other users of each
// object until it finds one.
func (x *entries) share(model digest.Digest, keeps func(*table) bool) (s Share) {
	im, isImage := x.images.all[model]
	own, shown := x.byKey[keyOf(model)], map[objectID]int{} // its table, and how often objects are its documents
	if isImage {
		own = x.byKey[keyOf(im.Table)]
		for _, d := range im.Documents() {
			if id, ok := x.objects.find(keyOf(d)); ok {
				shown[id]++
			}
		}
	}
	var all []objectID
	if own != nil {
		all = own.all
	}
	for id := range shown {
		if !slices.Contains(all, id) {
			all = append(slices.Clip(all), id)
		}
	}
	twin := isImage && len(x.images.byTable[im.Table]) > 1 // another image has the same table
	for _, id := range all {
		o := x.objects.at(id)
		switch {
		case !o.exists():
		case x.objects.documents[id] > shown[id], slices.ContainsFunc(x.objects.needs(id), func(n tableID) bool {
			t := x.tables[n]
			return t == own && twin || t != own && (len(x.images.byTable[t.key.digest()]) > 0 || keeps(t))
		}):
			s.Shared += o.size
		default:
			s.Own += o.size
		}
	}
	return s
}
