package store_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// Each reference has its own sources, in order, as long as it refers to the same table.
func TestRefSources(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	one := storetest.NewBuilder("one").Inline("a", []byte("a"), 0o644).Put(t, s)
	two := storetest.NewBuilder("two").Inline("b", []byte("b"), 0o644).Put(t, s)
	add := func(name string, expires time.Time) {
		t.Helper()
		if err := s.AddRef(name, one, expires); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, name string, want ...string) {
		t.Helper()
		r, err := s.Catalog.Ref(name)
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
		if err := s.AddRef(name, one, time.Time{}, sources...); err != nil {
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
	if err := s.AddRef("snapshot/1", two, time.Time{}, many...); err != nil {
		t.Fatal(err)
	}
	check("very many", "snapshot/1", many[:16]...)
}

// transactions returns the number of transactions of a store's database so far, from its meta pages.
// https://github.com/etcd-io/bbolt/blob/v1.5.0/internal/common/meta.go
func transactions(t *testing.T, s *store.Store) (n uint64) {
	t.Helper()
	f, err := os.Open(filepath.Join(s.Dir(), "store.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for page := range int64(2) {
		var id [8]byte
		if _, err := f.ReadAt(id[:], page*int64(os.Getpagesize())+64); err != nil {
			t.Fatal(err)
		}
		n = max(n, binary.NativeEndian.Uint64(id[:]))
	}
	return n
}

// Each transaction waits for the disk twice, on the way to the first byte of a model.
func TestTransactions(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	p := storetest.Random(1, 1<<20)
	b := storetest.NewBuilder("x").RawChunks("w", p, 0o644, 64<<10)
	var table digest.Digest
	sources := storetest.From(storetest.NewFetcher(p))
	for _, step := range []struct {
		what string
		do   func() error
		most uint64
	}{
		{"table", func() error { table = b.Put(t, s); return nil }, 1},
		{"the same table", func() error { b.Put(t, s); return nil }, 1},
		{"reference", func() error { return s.AddRef("snapshot/1", table, time.Time{}, sources[0].Name) }, 1},
		{"expose", func() error {
			return s.Views.Expose(t.Context(), table, store.ExposeOptions{View: "snapshot/1", Sources: sources, Wait: true})
		}, 1},
	} {
		before := transactions(t, s)
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if n := transactions(t, s) - before; n > step.most {
			t.Errorf("%s: %d transactions, want at most %d", step.what, n, step.most)
		}
	}
}
