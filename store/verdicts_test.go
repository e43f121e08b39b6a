package store_test

import (
	"fmt"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// TestVerdicts checks that verdicts, several for each digest, survive a restart as long as their digest
// is known.
func TestVerdicts(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{Reserve: 1})
	table := storetest.NewBuilder("m").Inline("a", []byte("a"), 0o644).Put(t, s)
	gone := digest.FromString("unknown")
	policy := func(i int) digest.Digest { return digest.FromString(fmt.Sprint(i)) }
	for i := range 12 {
		if err := s.Catalog.PutVerdict(table, store.Verdict{Policy: policy(i), Signers: []string{"key"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []digest.Digest{table, gone} {
		if err := s.Catalog.PutVerdict(d, store.Verdict{Policy: policy(8), Signers: []string{"another"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{Reserve: 1})
	all, err := s.Catalog.Verdicts(table)
	if err != nil || len(all) != 8 || all[0].Policy != policy(4) || all[7].Policy != policy(8) || all[7].Signers[0] != "another" || all[7].Time.IsZero() {
		t.Errorf("after a restart: %+v, %v", all, err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{Keep: 1 << 60}); err != nil {
		t.Fatal(err)
	}
	if all, err = s.Catalog.Verdicts(table); err != nil || len(all) != 8 {
		t.Errorf("of a table that is known: %d verdicts, %v", len(all), err)
	}
	if all, err = s.Catalog.Verdicts(gone); err != nil || len(all) != 0 {
		t.Errorf("of an unknown digest: %d verdicts, %v", len(all), err)
	}
}
