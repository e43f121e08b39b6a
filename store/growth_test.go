package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// stageOthers leaves n staged files of other users in the store that is opened in dir later.
func stageOthers(t testing.TB, dir string, n int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		d := digest.FromString(fmt.Sprint("other", i)).Encoded()
		name := filepath.Join(dir, "partial", d+"-"+d[:32])
		err := os.Mkdir(name, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(name, "data"), []byte("staged"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A userStep is a step of a pull, or a query, by somebody else than the users who left files.
type userStep struct {
	name string
	do   func(t testing.TB, s *store.Store, n int) error
}

// userSteps returns the steps, on a store with a model that can be read and is not complete.
func userSteps(t testing.TB, s *store.Store) []userStep {
	t.Helper()
	p := storetest.Random(1, 64<<10)
	b := storetest.NewBuilder("x").RawChunks("w", p, 0o644, 16<<10)
	for i := range 30 {
		b.Raw(fmt.Sprint("f", i), []byte(fmt.Sprint("content ", i)), 0o644)
	}
	table := b.Put(t, s)
	if err := s.AddRef("snapshot/1", table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	exposure := store.ExposeOptions{View: "snapshot/1", Sources: good(storetest.NewFetcher(p)), Probe: true, Wait: true}
	return []userStep{
		{"state", func(t testing.TB, s *store.Store, _ int) error { _, err := s.State(t.Context(), table); return err }},
		{"usage", func(t testing.TB, s *store.Store, _ int) error { _, err := s.Usage(); return err }},
		{"expose", func(t testing.TB, s *store.Store, _ int) error { return s.Views.Expose(t.Context(), table, exposure) }},
		{"hydrate", func(t testing.TB, s *store.Store, n int) error {
			q := fmt.Appendf(nil, "another model %d", n)
			table := storetest.NewBuilder(string(q)).Raw("q", q, 0o644).Put(t, s)
			return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(storetest.NewFetcher(q))})
		}},
	}
}

// No step of a pull, and no query, looks at what other users left in the store.
func TestLeftoversOfOthers(t *testing.T) {
	const others = 50
	disk := storetest.NewSlowDisk(t)
	stageOthers(t, disk.Dir, others)
	disk.Slow(func(string, string) bool { return false })
	s := storetest.Open(t, disk.Dir, store.Options{Evict: store.EvictOptions{Quota: 1 << 40}})
	if u, err := s.Usage(); err != nil || u.Partial < others*6 {
		t.Fatalf("usage %+v, %v", u, err)
	}
	own := map[string]bool{}
	var theirs atomic.Int64
	for i := range others {
		d := digest.FromString(fmt.Sprint("other", i)).Encoded()
		own["partial/"+d+"-"+d[:32]] = true
	}
	disk.Slow(func(op, path string) bool {
		if op == "readdir" && (path == "partial" || own[path]) {
			theirs.Add(1)
		}
		return false
	})
	for _, step := range userSteps(t, s) {
		if err := step.do(t, s, 0); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if n := theirs.Swap(0); n > 0 {
			t.Errorf("%s reads entries of directories of others: %d", step.name, n)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(disk.Dir, "partial")); err != nil || len(entries) < others || theirs.Load() == 0 {
		t.Errorf("%d entries, %v, of which %d were seen", len(entries), err, theirs.Load())
	}
}

// BenchmarkLeftovers measures what a user pays beside 10 and 10,000 staged directories of others.
func BenchmarkLeftovers(b *testing.B) {
	for _, others := range []int{10, 10_000} {
		dir := b.TempDir()
		stageOthers(b, dir, others)
		s := storetest.Open(b, dir, store.Options{Evict: store.EvictOptions{Quota: 1 << 40}})
		if _, err := s.Usage(); err != nil { // the first reads all
			b.Fatal(err)
		}
		for _, step := range userSteps(b, s) {
			n := 0
			b.Run(fmt.Sprintf("%s/others=%d", step.name, others), func(b *testing.B) {
				start := processorTime(b)
				for b.Loop() {
					if err := step.do(b, s, n); err != nil {
						b.Fatal(err)
					}
					n++
				}
				b.ReportMetric(float64(processorTime(b)-start)/float64(b.N), "cpu-ns/op")
			})
		}
		s.Close()
	}
}

// BenchmarkParts measures what a part of a table costs, in a table of 10 and of 10,000 parts.
func BenchmarkParts(b *testing.B) {
	for _, parts := range []int{10, 10_000, 100_000} {
		for _, twice := range []bool{false, true} {
			name := "ranges"
			if twice { // each range is in two files
				name = "copies"
			}
			b.Run(fmt.Sprintf("%s/parts=%d", name, parts), func(b *testing.B) {
				s := storetest.Open(b, b.TempDir(), store.Options{})
				table := manyParts(parts, twice).Put(b, s)
				start := processorTime(b)
				for b.Loop() {
					if _, err := s.State(b.Context(), table); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(processorTime(b)-start)/float64(b.N)/float64(parts), "cpu-ns/part")
			})
		}
	}
}

// manyParts returns a table of a file of n parts of a blob or, if twice, of two files of the same n/2.
func manyParts(n int, twice bool) *storetest.Builder {
	b := storetest.NewBuilder("x")
	d := digest.FromString("blob")
	f := filetable.File{Path: "a", Type: filetable.TypeReg, Mode: 0o644, Source: &filetable.Source{}}
	if twice {
		n /= 2
	}
	for i := range n {
		f.Source.Parts = append(f.Source.Parts, filetable.Source{Blob: d, Offset: int64(n-i) * 2, Size: 1})
	}
	f.Size = int64(n)
	b.File(f)
	if twice {
		f.Path, f.Source = "b", &filetable.Source{Parts: append([]filetable.Source{{Inline: []byte(strings.Repeat("x", 10))}}, f.Source.Parts...)}
		f.Size += 10
		b.File(f)
	}
	b.Table().Blobs = []filetable.Blob{{Digest: d, Size: int64(2*n + 10), Archive: filetable.ArchiveFragments}}
	return b
}
