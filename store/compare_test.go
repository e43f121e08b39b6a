package store_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// TestCompareFiles checks that what changes while the store is open is found: a short file is set aside and reported
// with its tables, and a right file without a record becomes an object.
func TestCompareFiles(t *testing.T) {
	m, s := show(t)
	p := storetest.Random(5, 3<<20)
	unknown := filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(p)))
	if err := os.MkdirAll(filepath.Dir(unknown), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(unknown, p, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(m.path, 1<<20); err != nil {
		t.Fatal(err)
	}
	var bad []store.CheckResult
	err := s.CompareFiles(t.Context(), func(_ context.Context, found []store.CheckResult) { bad = append(bad, found...) })
	if len(bad) != 1 || bad[0].Digest != m.digest() || len(bad[0].Tables) != 1 || bad[0].Tables[0] != m.table || err != nil {
		t.Errorf("found %+v, %v", bad, err)
	}
	m.gone(t, s, "compared")
	f, err := s.OpenObject(digest.FromBytes(p), nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	m.heal(t, s)
}

// compareFiles is Store.CompareFiles as a daemon does after its start.
func compareFiles(t *testing.T, s *store.Store) *store.Store {
	t.Helper()
	if err := s.CompareFiles(t.Context(), func(context.Context, []store.CheckResult) {}); err != nil {
		t.Fatal(err)
	}
	return s
}
