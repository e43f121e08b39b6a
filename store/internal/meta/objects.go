package meta

import (
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"iter"
	mathbits "math/bits"
	"slices"

	"github.com/opencontainers/go-digest"
)

// A key is the bytes of a digest; of any other text, which names no object, the bytes of its
// sha256.
type key [sha256.Size]byte

func keyOf[T ~string | ~[]byte](d T) (k key) {
	const prefix = "sha256:"
	var in [2 * len(k)]byte
	if len(d) != len(prefix)+len(in) || string(d[:len(prefix)]) != prefix {
		return sha256.Sum256([]byte(d))
	}
	copy(in[:], d[len(prefix):])
	if _, err := hex.Decode(k[:], in[:]); err != nil {
		return sha256.Sum256([]byte(d))
	}
	return k
}

func (k key) digest() digest.Digest { return digest.NewDigestFromBytes(digest.SHA256, k[:]) }

type objectID uint32

// Special sizes.
const (
	absent = -1 // an object that does not exist
	vacant = -2 // an unused entry
)

// An object exists or is needed. There can be millions, so each field costs memory of the daemon.
type object struct {
	key      key
	size     int64    // bytes, or absent, or vacant
	next     objectID // in the same hash bucket; 0 is none
	owner    tableID  // referenced table for which it counts; 0 is none
	need     tableID  // a table that needs it; others are in objects.more
	complete uint32   // number of complete tables that need it
}

func (o *object) exists() bool { return o.size >= 0 }

// objects is a hash table of objects by digest.
type objects struct {
	seed      maphash.Seed // random, so that collisions cannot be chosen
	heads     []objectID   // hash buckets; a power of two of them
	pages     [][]object   // by id, pageLen each; id 0 is unused
	last      objectID
	unused    []objectID
	more      map[objectID][]tableID
	documents map[objectID]int // number of images that have it as a document
	idle      bits             // existing objects that nothing needs
}

// pageLen is the number of objects in a page. Objects do not move when pages are added.
const pageLen = 1 << 12

func newObjects() objects {
	s := objects{
		seed: maphash.MakeSeed(), heads: make([]objectID, 1), pages: [][]object{make([]object, pageLen)},
		more: map[objectID][]tableID{}, documents: map[objectID]int{},
	}
	s.at(0).size = vacant
	return s
}

func (s *objects) at(id objectID) *object { return &s.pages[id/pageLen][id%pageLen] }

func (s *objects) head(k *key) *objectID {
	return &s.heads[maphash.Bytes(s.seed, k[:])&uint64(len(s.heads)-1)]
}

// find returns an object; false if there is none.
func (s *objects) find(k key) (objectID, bool) {
	for id := *s.head(&k); id != 0; {
		o := s.at(id)
		if o.key == k {
			return id, true
		}
		id = o.next
	}
	return 0, false
}

// fetch touches the entries that id will read for keys, so that the memory loads are parallel. The
// result has no meaning.
func (s *objects) fetch(keys []key) (sum uint32) {
	var ids [64]objectID
	for len(keys) > 0 {
		some := keys[:min(len(ids), len(keys))]
		keys = keys[len(some):]
		for i := range some {
			ids[i] = *s.head(&some[i])
		}
		for i := range some {
			if o := s.at(ids[i]); o.key != some[i] {
				ids[i] = o.next
			}
		}
		for i := range some { // the end of an object may be in another line of the cache than its key
			o := s.at(ids[i])
			sum += o.complete + uint32(o.key[0])
		}
	}
	return sum
}

// id returns an object, creating it if needed.
func (s *objects) id(k key) objectID {
	if id, ok := s.find(k); ok {
		return id
	}
	return s.fresh(k)
}

// fresh returns a new object.
func (s *objects) fresh(k key) objectID {
	id := s.entry(k)
	if int(s.last) > len(s.heads) {
		s.hash()
	} else {
		s.enter(id)
	}
	return id
}

// entry returns a new object that is not in a hash bucket.
func (s *objects) entry(k key) (id objectID) {
	if n := len(s.unused); n > 0 {
		id, s.unused = s.unused[n-1], s.unused[:n-1]
	} else {
		s.last++
		if id = s.last; int(id/pageLen) == len(s.pages) {
			s.pages = append(s.pages, make([]object, pageLen))
		}
	}
	*s.at(id) = object{key: k, size: absent}
	return id
}

// enter adds an object to its hash bucket.
func (s *objects) enter(id objectID) {
	o := s.at(id)
	head := s.head(&o.key)
	o.next, *head = *head, id
}

// hash puts all objects into hash buckets, of which there are at least as many.
func (s *objects) hash() {
	s.heads = make([]objectID, 1<<mathbits.Len32(uint32(s.last)))
	for id := objectID(1); id <= s.last; id++ {
		if s.at(id).size != vacant {
			s.enter(id)
		}
	}
}

// release removes an object that neither exists nor is needed.
func (s *objects) release(id objectID) {
	o := s.at(id)
	if o.exists() || o.need != 0 || s.documents[id] > 0 {
		return
	}
	before := s.head(&o.key)
	for *before != id {
		before = &s.at(*before).next
	}
	*before = o.next
	*o = object{size: vacant}
	s.unused = append(s.unused, id)
}

// needed reports whether anything needs an object.
func (s *objects) needed(id objectID) bool { return s.at(id).owner != 0 || s.documents[id] > 0 }

// needs returns the tables that need an object.
func (s *objects) needs(id objectID) []tableID {
	o := s.at(id)
	if o.need == 0 {
		return nil
	}
	return append([]tableID{o.need}, s.more[id]...)
}

// add records that a table needs an object.
func (s *objects) add(id objectID, t tableID) {
	if o := s.at(id); o.need == 0 {
		o.need = t
	} else {
		s.more[id] = append(s.more[id], t)
	}
}

// remove records that a table no longer needs an object.
func (s *objects) remove(id objectID, t tableID) {
	left := slices.DeleteFunc(s.needs(id), func(other tableID) bool { return other == t })
	delete(s.more, id)
	o := s.at(id)
	o.need = 0
	if len(left) > 0 {
		o.need = left[0]
	}
	if len(left) > 1 {
		s.more[id] = left[1:]
	}
}

// document changes the number of images that have an object as a document.
func (s *objects) document(id objectID, more int) {
	if s.documents[id] += more; s.documents[id] == 0 {
		delete(s.documents, id)
	}
}

// bits is a set of objects.
type bits []uint64

func (b *bits) set(id objectID, in bool) {
	at, bit := int(id/64), uint64(1)<<(id%64)
	switch {
	case !in && at < len(*b):
		(*b)[at] &^= bit
	case in:
		if at >= len(*b) {
			*b = append(*b, make([]uint64, at+1-len(*b))...)
		}
		(*b)[at] |= bit
	}
}

func (b bits) has(id objectID) bool { return int(id/64) < len(b) && b[id/64]>>(id%64)&1 != 0 }

func (b bits) all() iter.Seq[objectID] {
	return func(yield func(objectID) bool) {
		for at, word := range b {
			for ; word != 0; word &= word - 1 {
				if !yield(objectID(at*64 + mathbits.TrailingZeros64(word))) {
					return
				}
			}
		}
	}
}
