package object_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

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

// empty returns empty objects, and their directory.
func empty(t *testing.T) (*object.Objects, *os.Root) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
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
	s, err := object.Open(object.Options{Root: root, Temp: "partial", DB: db, Files: object.Scan(t.Context(), root, log), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, root
}

// TestPublishTogether publishes many files while a collection blocks them. A file that cannot be
// published does not affect the others, and sources that published the same file may both have it.
func TestPublishTogether(t *testing.T) {
	s, root := empty(t)
	const n = 50
	files, errs := make([]object.File, n), make([]error, n)
	file := func(i int) object.File {
		p := fmt.Appendf(nil, "file %d", max(i, 1)) // the first two are equal
		f := object.File{From: fmt.Sprintf("partial/%d", i), Digest: digest.FromBytes(p), Size: int64(len(p))}
		if i < 2 {
			f.Private = []string{fmt.Sprintf("source %d", i)}
		}
		if i == 3 { // two fetches with the same staged file
			return files[2]
		}
		if i == n-1 { // its staged file is missing
			return f
		}
		if err := root.WriteFile(f.From, p, object.Mode); err != nil {
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
		all.Go(func() { errs[i] = s.Publish(files[i:i+1], meta.Arrival{}) })
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
	s, root := empty(t)
	for i := range 100 {
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				if _, err := s.Put(fmt.Appendf(nil, "document %d", i)); err != nil {
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
