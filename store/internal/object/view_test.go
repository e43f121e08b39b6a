package object_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/opencontainers/go-digest"
)

var everything = object.CollectOptions{Want: func(int64) int64 { return math.MaxInt64 }}

// put makes n objects that nothing needs.
func put(t *testing.T, s *object.Objects, n, round int) (objects []digest.Digest) {
	t.Helper()
	for i := range n {
		p := fmt.Appendf(nil, "object %d of %d", i, round)
		d := digest.FromBytes(p)
		if _, err := s.Put(meta.Arrival{}, p); err != nil {
			t.Fatal(err)
		}
		s.Unprotect(d)
		objects = append(objects, d)
	}
	return objects
}

// addViews makes views of references, each with the same object.
func addViews(t *testing.T, db *meta.DB, s *object.Objects, n int) {
	t.Helper()
	d := put(t, s, 1, -1)[0]
	if err := db.PutTable(d, meta.Table{Objects: []digest.Digest{d}}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		view := fmt.Sprintf("snapshot/%d", i)
		if _, err := db.AddRef(view, d, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Grant(view, d); err != nil {
			t.Fatal(err)
		}
	}
}

// An object that is in no view is not looked for in any when it is removed, since there can be many views: a
// directory in its place is not noticed.
func TestRemoveBesideViews(t *testing.T) {
	s, db, root := empty(t)
	addViews(t, db, s, 2)
	d := put(t, s, 1, 0)[0]
	if err := root.MkdirAll(object.ViewPath("snapshot/1", d)+"/directory", 0o700); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Collect(nothing{}, everything); err != nil || c.Objects != 1 {
		t.Errorf("%d objects removed: %v", c.Objects, err)
	}
}

// A collection that removes nothing from views does not make mounts look at all their files again; one that
// does, does.
func TestWithheld(t *testing.T) {
	s, db, _ := empty(t)
	addViews(t, db, s, 2)
	put(t, s, 1, 0)
	before := s.Removals()
	if c, err := s.Collect(nothing{}, everything); err != nil || c.Objects != 1 {
		t.Fatalf("%d objects removed: %v", c.Objects, err)
	}
	if n := s.Removals(); n != before {
		t.Errorf("%d removals from views", n-before)
	}
	if err := db.DropRefs("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Collect(nothing{}, everything); err != nil {
		t.Fatal(err)
	}
	if s.Removals() == before {
		t.Error("the removal of a view is not counted")
	}
}

// An object that is set aside is removed from the views that have it.
func TestDamagedObjectLeavesViews(t *testing.T) {
	s, db, root := empty(t)
	addViews(t, db, s, 2)
	objects, err := db.Objects("")
	if err != nil || len(objects) != 1 {
		t.Fatalf("%v: %v", objects, err)
	}
	d, before := objects[0].Digest, s.Removals()
	if err := root.WriteFile(object.Path(d), []byte("object 0 of -2"), object.Mode); err != nil {
		t.Fatal(err)
	}
	if bad, err := s.Check(t.Context(), "", nil); err != nil || len(bad) != 1 {
		t.Fatalf("%v: %v", bad, err)
	}
	for i := range 2 {
		if _, err := root.Lstat(object.ViewPath(fmt.Sprintf("snapshot/%d", i), d)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("view %d still has it: %v", i, err)
		}
	}
	if s.Removals() == before {
		t.Error("the removal from views is not counted")
	}
}

// A view is removed by its own name only: the name of a reference can contain anything.
func TestRemoveViews(t *testing.T) {
	s, db, root := empty(t)
	addViews(t, db, s, 2)
	there := func(name string) bool {
		_, err := root.Lstat(name)
		return err == nil
	}
	if err := s.RemoveViews("snapshot", "snapshot/0/sha256", "snapshot/../../objects", "../objects", "pin/../../objects", "snapshot/", "snapshot/9", ""); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"objects/sha256", "views/snapshot/0/sha256", "views/snapshot/1/sha256"} {
		if !there(name) {
			t.Errorf("%s is gone", name)
		}
	}
	before := s.Removals()
	if err := s.RemoveViews("snapshot/0"); err != nil || there("views/snapshot/0") || !there("views/snapshot/1") || s.Removals() == before {
		t.Errorf("%v; of two views: %t, %t; removals %d", err, there("views/snapshot/0"), there("views/snapshot/1"), s.Removals()-before)
	}
}
