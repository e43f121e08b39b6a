package meta

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
)

// A key is the bytes of a digest; of what is none, which no object is named by, a digest of it.
type key [sha256.Size]byte

func keyOf(d digest.Digest) (k key) {
	if _, in, ok := strings.Cut(string(d), ":"); !ok || len(in) != hex.EncodedLen(len(k)) {
		return sha256.Sum256([]byte(d))
	} else if _, err := hex.Decode(k[:], []byte(in)); err != nil {
		return sha256.Sum256([]byte(d))
	}
	return k
}

func (k key) digest() digest.Digest { return digest.NewDigestFromBytes(digest.SHA256, k[:]) }

type objectID uint32

// An object is one that is there, or that is needed.
type object struct {
	key       key
	size      int64    // bytes
	next      objectID // of those with the same first bytes; 0 is none
	owner     tableID  // that is referred to, where it counts; 0 is none
	need      tableID  // that needs it; others are in objects.more
	documents uint32   // how many images have it as a document
	complete  uint32   // how many complete tables need it
	there     bool
}

func (o *object) needed() bool { return o.owner != 0 || o.documents > 0 }

// objects are found by their digests.
type objects struct {
	first  map[uint64]objectID // by the first bytes of their keys
	all    []object            // by id; 0 is none
	unused []objectID
	more   map[objectID][]tableID
}

func newObjects() objects {
	return objects{first: map[uint64]objectID{}, all: make([]object, 1), more: map[objectID][]tableID{}}
}

func (s *objects) at(id objectID) *object { return &s.all[id] }

func head(k key) uint64 { return binary.BigEndian.Uint64(k[:]) }

// find returns an object; false if there is none.
func (s *objects) find(k key) (objectID, bool) {
	id := s.first[head(k)]
	for id != 0 && s.all[id].key != k {
		id = s.all[id].next
	}
	return id, id != 0
}

// id returns an object, which is new if need be.
func (s *objects) id(k key) objectID {
	if id, ok := s.find(k); ok {
		return id
	}
	if n := len(s.unused); n == 0 {
		s.all = append(s.all, object{})
		s.unused = append(s.unused, objectID(len(s.all)-1))
	}
	id := s.unused[len(s.unused)-1]
	s.unused = s.unused[:len(s.unused)-1]
	s.all[id] = object{key: k, next: s.first[head(k)]}
	s.first[head(k)] = id
	return id
}

// release forgets an object that is neither there nor needed.
func (s *objects) release(id objectID) {
	o := &s.all[id]
	if o.there || o.need != 0 || o.documents > 0 {
		return
	}
	h := head(o.key)
	if s.first[h] != id {
		before := s.first[h]
		for s.all[before].next != id {
			before = s.all[before].next
		}
		s.all[before].next = o.next
	} else if o.next != 0 {
		s.first[h] = o.next
	} else {
		delete(s.first, h)
	}
	*o = object{}
	s.unused = append(s.unused, id)
}

// needs returns the tables that need an object.
func (s *objects) needs(id objectID) []tableID {
	if s.all[id].need == 0 {
		return nil
	}
	return append([]tableID{s.all[id].need}, s.more[id]...)
}

// add says that a table needs an object.
func (s *objects) add(id objectID, t tableID) {
	if o := &s.all[id]; o.need == 0 {
		o.need = t
	} else {
		s.more[id] = append(s.more[id], t)
	}
}

// remove says that a table does not need an object any more.
func (s *objects) remove(id objectID, t tableID) {
	left := slices.DeleteFunc(s.needs(id), func(other tableID) bool { return other == t })
	delete(s.more, id)
	s.all[id].need = 0
	if len(left) > 0 {
		s.all[id].need = left[0]
	}
	if len(left) > 1 {
		s.more[id] = left[1:]
	}
}
