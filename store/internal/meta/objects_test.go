package meta

import (
	"crypto/sha256"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// TestObjects checks that objects are found by any digest while others are added and removed.
func TestObjects(t *testing.T) {
	s, r := newObjects(), rand.New(rand.NewPCG(1, 2))
	there := map[key]objectID{}
	keys := []key{{}} // the zero key, which no object has but a table can name
	for i := range 3 * pageLen {
		keys = append(keys, sha256.Sum256([]byte(strconv.Itoa(i))))
	}
	for range 20 * len(keys) {
		k := keys[r.IntN(len(keys))]
		id, ok := s.find(k)
		if want, there := there[k]; ok != there || id != want {
			t.Fatalf("found %d, %t; want %d, %t", id, ok, want, there)
		}
		if r.IntN(3) > 0 {
			there[k] = s.id(k)
			s.at(there[k]).size = int64(there[k])
			s.idle.set(there[k], true)
		} else if ok {
			s.at(id).size = absent
			s.release(id)
			s.idle.set(id, false)
			delete(there, k)
		}
	}
	for k, id := range there {
		if o := s.at(id); o.key != k || o.size != int64(id) {
			t.Errorf("object %d is of %x, size %d", id, o.key, o.size)
		}
	}
	if got, want := slices.Collect(s.idle.all()), slices.Sorted(maps.Values(there)); !slices.Equal(got, want) {
		t.Errorf("%d objects in a set of %d", len(got), len(want))
	}
	if int(s.last) > len(keys) {
		t.Errorf("%d places for %d objects", s.last, len(keys))
	}
}
