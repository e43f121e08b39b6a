package meta

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestWays: a view has its own way of a file; tables of the common one share a way as long as they are
// referred to.
func TestWays(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	file, one, two := number(1), number(2), number(3)
	for name, table := range map[string]digest.Digest{"snapshot/1": number(11), "snapshot/2": number(12)} {
		if _, err := db.AddRef(name, table, time.Time{}); !errdefs.IsNotFound(err) { // the table is not known
			t.Fatal(err)
		}
	}
	shows := func(view string, want digest.Digest) {
		t.Helper()
		if got, err := db.Identity(view, file); got != want || errdefs.IsNotFound(err) != (want == "") {
			t.Errorf("view %q: %s, %v, want %s", view, got, err, want)
		}
	}
	put := func(view string, table, identity digest.Digest) error {
		_, err := db.PutWays(view, table, map[digest.Digest]digest.Digest{file: identity})
		return err
	}
	shows("", "")
	if err := put("", number(11), one); err != nil {
		t.Fatal(err)
	}
	shows("", one)
	for _, view := range []string{"snapshot/1", "snapshot/2"} {
		if err := put(view, number(12), two); err != nil {
			t.Error(err)
		}
		shows(view, two)
	}
	if err := put("", number(12), two); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another way in the common view: %v", err)
	}
	if err := db.DropRefs("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if err := put("", number(12), two); err != nil {
		t.Errorf("when nothing refers to the first table: %v", err)
	}

	// What was wrong has another identity each time, whatever way is recorded between.
	seen := map[digest.Digest]bool{two: true}
	for range 3 {
		id, err := db.ReplaceIdentity("snapshot/2", file)
		if err != nil || seen[id] {
			t.Errorf("identity %s again: %v", id, err)
		}
		seen[id] = true
		for _, way := range []digest.Digest{one, two} {
			if err := put("snapshot/2", number(12), way); err != nil {
				t.Error(err)
			}
		}
		shows("snapshot/2", id)
	}
	// Also when the chains of files are dropped.
	wait := func() {
		t.Helper()
		if err := db.update(func(tx *txn) error { return replaceWays(tx, map[digest.Digest]bool{file: true}) }); err != nil {
			t.Fatal(err)
		}
		if way, err := db.Way("snapshot/2", file); way != file || err != nil {
			t.Errorf("not waited for, %v", err)
		}
	}
	wait()
	if err := put("snapshot/2", number(12), two); err != nil {
		t.Error(err)
	}
	if id, err := db.Identity("snapshot/2", file); err != nil || !seen[id] || id == two {
		t.Errorf("identity %s, %v: of a way that was wrong", id, err)
	}
	if way, err := db.Way("snapshot/2", file); way != two || err != nil {
		t.Errorf("way %s, %v", way, err)
	}
	if _, err := db.ReplaceIdentity("snapshot/3", file); !errdefs.IsNotFound(err) {
		t.Errorf("a file without a way: %v", err)
	}
}
