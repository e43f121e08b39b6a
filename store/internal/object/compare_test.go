package object_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// A comparing node is a store directory whose reads of directories of objects are seen.
type comparing struct {
	*testing.T
	root *dirs.Root
	db   *meta.DB

	mu   sync.Mutex // guards dirs
	dirs []string   // that were read
}

func newComparing(t *testing.T) *comparing {
	t.Helper()
	disk := storetest.NewSlowDisk(t)
	c := &comparing{T: t}
	disk.Slow(func(op, path string) bool {
		if dir, name := filepath.Split(path); op == "readdir" && dir == "objects/sha256/" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.dirs = append(c.dirs, name)
		}
		return false
	})
	var err error
	if c.root, err = dirs.Open(disk.Dir, object.Keeps); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.root.Close() })
	if c.db, err = meta.Open(filepath.Join(t.TempDir(), "store.db"), meta.Options{Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.db.Close() })
	return c
}

// open opens the objects, for which a directory has settled after a time without changes.
func (c *comparing) open(settle time.Duration) *object.Objects {
	c.Helper()
	s, err := object.Open(object.Options{Root: c.root, Temp: "partial", DB: c.db, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(s.Close)
	s.SetSettleTime(settle)
	return s
}

// read returns the directories that were read since the last call.
func (c *comparing) read() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	dirs := c.dirs
	c.dirs = nil
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

func (c *comparing) put(s *object.Objects, text string) digest.Digest {
	c.Helper()
	d, err := s.Put([]byte(text))
	if err != nil {
		c.Fatal(err)
	}
	return d
}

func (c *comparing) compare(s *object.Objects, all bool) object.Found {
	c.Helper()
	found, err := s.Compare(c.Context(), all)
	if err != nil {
		c.Fatal(err)
	}
	return found
}

// recorded returns the names of the directories whose states are recorded.
func (c *comparing) recorded() (names []string) {
	c.Helper()
	dirs, err := c.db.Compared()
	if err != nil {
		c.Fatal(err)
	}
	for name := range dirs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// touch makes sure that the state of a directory is another one.
func (c *comparing) touch(dir string) {
	c.Helper()
	if err := c.root.Chtimes("objects/sha256/"+dir, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		c.Fatal(err)
	}
}

// dirsOf returns the names of the directories of objects.
func dirsOf(objects ...digest.Digest) (names []string) {
	for _, d := range objects {
		names = append(names, d.Encoded()[:2])
	}
	slices.Sort(names)
	return names
}

// Open reads the directories that have changed since they were compared, and no others.
func TestOpenReadsWhatChanged(t *testing.T) {
	c := newComparing(t)
	s := c.open(0)
	a, b, same := c.put(s, "a"), c.put(s, "b"), c.put(s, "c")
	c.compare(s, false)
	if diff := cmp.Diff(dirsOf(a, b, same), c.recorded()); diff != "" {
		t.Fatalf("recorded (-want +got):\n%s", diff)
	}
	c.read()
	c.compare(s, false)
	s.Close()
	s = c.open(0)
	if got := c.read(); got != nil {
		t.Errorf("nothing has changed; read: %s", got)
	}
	s.Close()

	unknown := digest.FromString("no record")
	if err := errors.Join(c.root.Remove(object.Path(a)), c.root.Mkdir(filepath.Dir(object.Path(unknown)), 0o700), c.root.WriteFile(object.Path(unknown), []byte("no record"), object.Mode)); err != nil {
		t.Fatal(err)
	}
	c.touch(dirsOf(a)[0])
	c.touch(dirsOf(b)[0])
	s = c.open(0)
	if diff := cmp.Diff(dirsOf(a, b, unknown), c.read()); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if s.Has(a) || !s.Has(b) || !s.Has(same) || !s.Has(unknown) {
		t.Errorf("objects: %t %t %t %t, want false true true true", s.Has(a), s.Has(b), s.Has(same), s.Has(unknown))
	}
}

// A directory that has just changed is not recorded, since another change may not change its state.
func TestJustChangedIsNotRecorded(t *testing.T) {
	c := newComparing(t)
	s := c.open(time.Hour)
	d := c.put(s, "a")
	if found := c.compare(s, true); found.Changing != 1 || len(c.recorded()) > 0 {
		t.Errorf("%+v, recorded: %s", found, c.recorded())
	}
	s.SetSettleTime(0)
	c.touch(dirsOf(d)[0]) // to the future
	if found := c.compare(s, true); found.Changing != 1 || len(c.recorded()) > 0 {
		t.Errorf("in the future: %+v, recorded: %s", found, c.recorded())
	}
}

// What Open does not see, because the state of a directory is the recorded one, Compare finds: a missing file, one
// without a record, and one of another size.
func TestCompareFindsWhatOpenDoesNot(t *testing.T) {
	c := newComparing(t)
	s := c.open(0)
	missing, short, whole := c.put(s, "missing"), c.put(s, "short"), c.put(s, "whole")
	s.Close()
	content := strings.Repeat("no record", 1<<18) // larger than what Open hashes
	unknown := digest.FromString(content)
	if err := errors.Join(
		c.root.Remove(object.Path(missing)), c.root.WriteFile(object.Path(short), []byte("sh"), object.Mode),
		c.root.MkdirAll(filepath.Dir(object.Path(unknown)), 0o700), c.root.WriteFile(object.Path(unknown), []byte(content), object.Mode),
	); err != nil {
		t.Fatal(err)
	}
	states := map[string]meta.DirState{}
	for _, name := range dirsOf(missing, short, whole, unknown) {
		states[name] = object.State(t, c.root, name)
	}
	if err := c.db.PutCompared(states); err != nil {
		t.Fatal(err)
	}
	c.read()
	s = c.open(0)
	if got := c.read(); got != nil || len(s.Unrecorded()) > 0 {
		t.Fatalf("Open has read %s", got)
	}
	found := c.compare(s, true)
	if diff := cmp.Diff(dirsOf(whole), c.recorded()); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	var bad []digest.Digest
	for _, b := range found.Bad {
		bad = append(bad, b.Digest)
	}
	slices.Sort(bad)
	if diff := cmp.Diff(slices.Sorted(slices.Values([]digest.Digest{missing, short})), bad); diff != "" || found.Unrecorded != 1 || s.Lost() != 2 {
		t.Errorf("found %+v, lost %d (-want +got):\n%s", found, s.Lost(), diff)
	}
	if _, err := c.root.Lstat(object.Path(short)); !os.IsNotExist(err) {
		t.Errorf("the short file is still below objects: %v", err)
	}
	if _, err := s.Size(missing); err == nil {
		t.Error("the missing object is still recorded")
	}
	if got := s.Unrecorded(); len(got) != 1 || got[0].Digest != unknown || s.Has(unknown) {
		t.Errorf("without a record: %v", got)
	}
	c.read()
	c.compare(s, false)
	if got := c.read(); slices.Contains(got, dirsOf(unknown)[0]) {
		t.Errorf("read again although its file has not been hashed: %s", got)
	}
	if got := s.RecoverAll(t.Context()); !slices.Contains(got, unknown) || !s.Has(unknown) {
		t.Errorf("recovered: %v", got)
	}
	if found := c.compare(s, true); len(found.Bad)+found.Unrecorded > 0 {
		t.Errorf("found again: %+v", found)
	}
	c.read()
	s.Close()
	s = c.open(0)
	if got := c.read(); got != nil || !s.Has(whole) || !s.Has(unknown) {
		t.Errorf("Open has read %s", got)
	}
}

// A directory is recorded only while no record of it can be removed and no file of it is without a record: after a
// power cut, files that were removed may be there again, with the state that the directory had then.
func TestRemovedIsNotRecorded(t *testing.T) {
	c := newComparing(t)
	s := c.open(0)
	gone, stays := c.put(s, "gone"), c.put(s, "stays")
	if err := c.db.PutImage(meta.Image{Manifest: stays, Config: stays, Table: stays}); err != nil {
		t.Fatal(err)
	}
	s.Unprotect(gone)
	c.compare(s, false)
	if diff := cmp.Diff(dirsOf(gone, stays), c.recorded()); diff != "" {
		t.Fatalf("recorded (-want +got):\n%s", diff)
	}
	if _, err := s.Collect(nothing{}, object.CollectOptions{Want: func(int64) int64 { return 1 << 40 }}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(dirsOf(stays), c.recorded()); diff != "" || s.Has(gone) {
		t.Errorf("after a collection (-want +got):\n%s", diff)
	}
}
