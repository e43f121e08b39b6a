package object_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/opencontainers/go-digest"
)

// waits is an object.Root that blocks collections, and so publications, until it is released.
type waits struct{ asked, release chan struct{} }

func (w waits) Live() meta.Roots {
	close(w.asked)
	<-w.release
	return meta.Roots{}
}

// empty returns empty objects, their records and their directory.
func empty(t *testing.T) (*object.Objects, *meta.DB, *dirs.Root) {
	t.Helper()
	dir := t.TempDir()
	root, err := dirs.Open(dir, object.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	log := slog.New(slog.DiscardHandler)
	db, err := meta.Open(filepath.Join(dir, "store.db"), meta.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s, err := object.Open(object.Options{Root: root, Temp: "partial", DB: db, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, db, root
}

// TestPublishTogether publishes many files while a collection blocks them. A file that cannot be
// published does not affect the others, and sources that published the same file may both have it.
func TestPublishTogether(t *testing.T) {
	s, _, root := empty(t)
	const n = 50
	files, errs := make([]meta.File, n), make([]error, n)
	file := func(i int) meta.File {
		p := fmt.Appendf(nil, "file %d", max(i, 1)) // the first two are equal
		f := meta.File{Staged: fmt.Sprintf("partial/%d", i), Digest: digest.FromBytes(p), Size: int64(len(p))}
		if i < 2 {
			f.Private = []string{fmt.Sprintf("source %d", i)}
		}
		if i == 3 { // two fetches with the same staged file
			return files[2]
		}
		if i == n-1 { // its staged file is missing
			return f
		}
		if err := root.WriteFile(f.Staged, p, object.Mode); err != nil {
			t.Fatal(err)
		}
		return f
	}
	w := waits{asked: make(chan struct{}), release: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := s.Collect(w, object.CollectOptions{Want: func(int64) int64 { return 0 }}); err != nil {
			t.Error(err)
		}
	})
	<-w.asked
	for i := range n {
		files[i] = file(i)
		all.Go(func() { errs[i] = s.Publish(meta.Arrival{Files: files[i : i+1]}) })
	}
	close(w.release)
	all.Wait()
	for i, f := range files {
		switch there := s.Has(f.Digest); {
		case i == n-1:
			if !errors.Is(errs[i], fs.ErrNotExist) || there {
				t.Errorf("a file that is not there: %v, object %t", errs[i], there)
			}
		case errs[i] != nil || !there:
			t.Errorf("file %d: %v, object %t", i, errs[i], there)
		}
	}
	rec, _ := s.Record(files[0].Digest)
	if want := []string{"source 0", "source 1"}; !slices.Equal(rec.Private, want) {
		t.Errorf("got %q, want %q", rec.Private, want)
	}
}

// TestPutTogether checks that calls with the same bytes at the same time leave one object each, and no
// temporary file.
func TestPutTogether(t *testing.T) {
	s, _, root := empty(t)
	for i := range 100 {
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				p := fmt.Appendf(nil, "document %d", i)
				if _, err := s.Put(meta.Arrival{}, p, p); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if left, err := fs.ReadDir(root.FS(), "partial"); len(left) > 0 || err != nil {
		t.Errorf("%d temporary files of 100 documents, %v", len(left), err)
	}
}

// TestPublishWithoutRecord publishes a file whose record cannot be written. The file is below objects then, and
// is hashed before it is an object, as after a crash.
func TestPublishWithoutRecord(t *testing.T) {
	s, db, root := empty(t)
	p := []byte("hello")
	f := meta.File{Staged: "partial/x", Digest: digest.FromBytes(p), Size: int64(len(p))}
	if err := root.WriteFile(f.Staged, p, object.Mode); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil { // every transaction fails, as on a full disk
		t.Fatal(err)
	}
	if err := s.Publish(meta.Arrival{Files: []meta.File{f}}); err == nil {
		t.Fatal("published without a record")
	}
	if _, err := root.Lstat(object.Path(f.Digest)); err != nil {
		t.Fatal(err)
	}
	if got := s.Unrecorded(); len(got) != 1 || got[0].Digest != f.Digest || got[0].Size != f.Size {
		t.Errorf("got %v, want the published file", got)
	}
}

// TestRemoveFails collects an object whose file cannot be removed. The file has no record then, and is removed
// by the next collection, or becomes an object again.
func TestRemoveFails(t *testing.T) {
	s, _, root := empty(t)
	objects := put(t, s, 3, 0)
	bad := objects[1]
	busy := object.Path(bad) + "/file"
	for _, err := range []error{root.Remove(object.Path(bad)), root.Mkdir(object.Path(bad), 0o700), root.WriteFile(busy, nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Collect(nothing{}, everything); err == nil {
		t.Fatal("a directory with a file was removed")
	}
	left := s.Unrecorded()
	if !slices.ContainsFunc(left, func(f meta.Sized) bool { return f.Digest == bad }) {
		t.Errorf("got %v, want %s among them", left, bad)
	}
	for _, f := range left {
		if _, err := root.Lstat(object.Path(f.Digest)); err != nil {
			t.Errorf("listed, but not there: %v", err)
		}
	}
	if err := root.Remove(busy); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Collect(nothing{}, everything); err != nil || c.Objects != len(left) || len(s.Unrecorded()) != 0 {
		t.Errorf("%d of %d removed, %d left: %v", c.Objects, len(left), len(s.Unrecorded()), err)
	}
	for _, d := range objects {
		if _, err := root.Lstat(object.Path(d)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("still there: %v", err)
		}
	}
}
