package meta

import (
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Expire reads all records of archives while another write runs, and keeps those that the other write needs.
func TestExpireBesideWrites(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	arrive := func(archive, member digest.Digest) {
		t.Helper()
		if err := db.Arrive(Arrival{
			Files:    []File{{Digest: member, Size: 1}},
			Contents: map[digest.Digest][]filetable.Member{archive: {{Type: filetable.TypeReg, Size: 1, Digest: member}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	arrive(number(1), number(11))
	arrive(number(2), number(12))
	if err := db.Lose(number(11), number(12)); err != nil {
		t.Fatal(err)
	}
	writing, end, ended := make(chan bool), make(chan bool), make(chan error, 2)
	go func() {
		ended <- db.update(func(tx *txn) error {
			close(writing)
			<-end
			return put(tx, bucketObjects, number(12), Object{Size: 1}) // it is there again
		})
	}()
	<-writing
	go func() {
		_, err := db.Expire(false)
		ended <- err
	}()
	for limit := time.Now().Add(time.Minute); db.index.swept(true); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Error("the records are not read while another write runs")
			break
		}
	}
	close(end)
	for range 2 {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Contents(number(1)); !errdefs.IsNotFound(err) {
		t.Errorf("an archive without members: got %v, want not found", err)
	}
	if _, err := db.Contents(number(2)); err != nil {
		t.Errorf("an archive that is needed again: %v", err)
	}
}

// TestExpireKeepsDirectories checks that what is known of an archive without regular files stays: no object shows that
// it is needed. One with many directories goes.
func TestExpireKeepsDirectories(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	members := []filetable.Member{{Path: "dir", Type: filetable.TypeDir}, {Path: "link", Type: filetable.TypeSymlink, Target: "dir"}}
	many := slices.Repeat([]filetable.Member{{Path: "dir", Type: filetable.TypeDir}}, maxEmpty+1)
	if err := db.Arrive(Arrival{Contents: map[digest.Digest][]filetable.Member{number(1): members, number(2): nil, number(3): many}}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Expire(false); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]int{1: 2, 2: 0} {
		if got, err := db.Contents(number(i)); err != nil || len(got) != want {
			t.Errorf("archive %d: %d members, want %d: %v", i, len(got), want, err)
		}
	}
	if _, err := db.Contents(number(3)); !errdefs.IsNotFound(err) {
		t.Errorf("an archive of %d directories: got %v, want not found", len(many), err)
	}
}

// TestCollectionReadsNoTable checks that searching for what nothing needs looks up neither tables nor their objects
// in the database, of which each lookup maps a part into memory.
func TestCollectionReadsNoTable(t *testing.T) {
	lookups := func(tables int) int64 {
		db, err := Open(filepath.Join(t.TempDir(), "store.db"), Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for i := range tables {
			d := number(2 * i)
			if err := db.Arrive(Arrival{Files: []File{{Digest: d, Size: 1}, {Digest: number(2*i + 1), Size: 1}}}); err != nil {
				t.Fatal(err)
			}
			if _, err := db.CompleteTable(d, Table{Objects: []digest.Digest{number(2*i + 1)}}); err != nil {
				t.Fatal(err)
			}
		}
		stats := db.bolt.Stats()
		before := stats.TxStats.GetCursorCount()
		if _, err := db.Expire(false); err != nil {
			t.Fatal(err)
		}
		if got := db.Tables(); len(got) != tables || len(db.Broken()) > 0 {
			t.Errorf("%d tables, and broken ones: %v; want %d", len(got), db.Broken(), tables)
		}
		stats = db.bolt.Stats()
		return stats.TxStats.GetCursorCount() - before
	}
	if one, many := lookups(1), lookups(20); one != many {
		t.Errorf("%d lookups with 20 tables, %d with one", many, one)
	}
}
