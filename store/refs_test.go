package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// Each reference has its own sources, in order, as long as it refers to the same table.
func TestRefSources(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	one := storetest.NewBuilder("one").Inline("a", []byte("a"), 0o644).Put(t, s)
	two := storetest.NewBuilder("two").Inline("b", []byte("b"), 0o644).Put(t, s)
	if err := s.SetRefSources("snapshot/1", []string{"x"}); !errdefs.IsNotFound(err) {
		t.Errorf("no such reference: %v", err)
	}
	add := func(name string, expires time.Time) {
		t.Helper()
		if err := s.AddRef(name, one, expires); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, name string, want ...string) {
		t.Helper()
		r, err := s.Ref(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r.Sources, want); diff != "" {
			t.Errorf("%s: sources (-got +want):\n%s", what, diff)
		}
	}
	add("snapshot/1", time.Time{})
	add("snapshot/2", time.Time{})
	for name, sources := range map[string][]string{"snapshot/1": {"z", "a"}, "snapshot/2": {"evil"}} {
		if err := s.SetRefSources(name, sources); err != nil {
			t.Fatal(err)
		}
	}
	check("the first", "snapshot/1", "z", "a")
	check("the second", "snapshot/2", "evil")
	add("snapshot/1", time.Now().Add(time.Hour))
	check("made again", "snapshot/1", "z", "a")
	if err := s.AddRef("snapshot/1", two, time.Time{}); err != nil {
		t.Fatal(err)
	}
	check("of another table", "snapshot/1")
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprint(i))
	}
	if err := s.SetRefSources("snapshot/1", many); err != nil {
		t.Fatal(err)
	}
	check("very many", "snapshot/1", many[:16]...)
}
