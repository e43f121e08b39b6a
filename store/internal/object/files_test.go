package object

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestFiles checks that every file below objects is compared with the records, and that other files are
// left alone.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	root, err := dirs.Open(dir, Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	db, err := meta.Open(filepath.Join(dir, "store.db"), meta.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	right, short, gone, unknown := digest.FromString("right"), digest.FromString("short"), digest.FromString("gone"), digest.FromString("unknown")
	if err := db.Arrive(meta.Arrival{Files: []meta.File{{Digest: right, Size: 4}, {Digest: short, Size: 5}, {Digest: gone, Size: 0}}}); err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("ab", 32)
	none := []string{
		"objects/stray", "objects/sha256/stray", "objects/sha256/ab/" + other[2:], "objects/sha256/cd/" + other,
		"objects/sha256/ab/" + strings.ToUpper(other), "objects/sha256/AB", "objects/sha512",
	}
	for _, name := range append([]string{Path(right), Path(short), Path(unknown)}, none...) {
		if err := errors.Join(root.MkdirAll(filepath.Dir(name), 0o700), root.WriteFile(name, []byte("1234"), Mode)); err != nil {
			t.Fatal(err)
		}
	}
	link, nested := "objects/sha256/ab/"+other, "objects/sha256/ab/directory"
	if err := errors.Join(root.Symlink("/etc/passwd", link), root.Mkdir(nested, 0o700)); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	top, err := root.Open(topPath)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	s := &Objects{top: top, o: Options{Root: root, DB: db, Log: slog.New(slog.NewTextHandler(&log, nil))}}
	if err := s.logStrays(); err != nil {
		t.Fatal(err)
	}
	for _, sizes := range []bool{false, true} {
		var got meta.Difference
		l := s.newLister()
		l.strays = sizes
		for first := range directories {
			diff, err := l.differences(byte(first), sizes)
			if err != nil {
				t.Fatal(err)
			}
			got.Unknown, got.Resized, got.Missing = append(got.Unknown, diff.Unknown...), append(got.Resized, diff.Resized...), append(got.Missing, diff.Missing...)
		}
		found := func(d digest.Digest, size int64) []meta.Found {
			id, _ := parseName([]byte(d.Encoded()))
			return []meta.Found{{Digest: id, Size: size}}
		}
		want := meta.Difference{Missing: []digest.Digest{gone}, Unknown: found(unknown, 4)}
		if sizes {
			want.Resized = found(short, 4)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("sizes %t (-want +got):\n%s", sizes, diff)
		}
	}
	for _, name := range append(none, link, nested) {
		if n := strings.Count(log.String(), "path="+name+"\n"); n != 1 {
			t.Errorf("%s is logged %d times", name, n)
		}
	}
}

// A directory is not recorded if it has changed since it was compared, or if the file of a removed record is still
// there.
func TestChangedMeanwhileIsNotRecorded(t *testing.T) {
	root, err := dirs.Open(t.TempDir(), Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	log := slog.New(slog.DiscardHandler)
	db, err := meta.Open(filepath.Join(root.Name(), "store.db"), meta.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := Open(Options{Root: root, Temp: "partial", DB: db, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.settleTime = 0
	var objects []digest.Digest
	for _, text := range []string{"changes", "is evicted", "stays"} {
		d, err := s.Put([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, d)
	}
	same := map[string]meta.DirState{}
	for first := range directories {
		if err := s.newLister().compareDir(byte(first), &Found{}, same); err != nil {
			t.Fatal(err)
		}
	}
	name := func(d digest.Digest) string { return d.Encoded()[:2] }
	if err := root.Chtimes(filepath.Join(topPath, name(objects[0])), time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := db.Lose(objects[1]); err != nil {
		t.Fatal(err)
	}
	s.unrecord(meta.Sized{Digest: objects[1], Size: 1}) // it could not be removed
	if len(same) != len(objects) {
		t.Fatalf("the same: %v", same)
	}
	if err := s.recordCompared(same); err != nil {
		t.Fatal(err)
	}
	got, err := db.Compared()
	if _, ok := got[name(objects[2])]; !ok || len(got) != 1 || err != nil {
		t.Errorf("recorded %v, %v", got, err)
	}
}
