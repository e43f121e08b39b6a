package object_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// Compare finds a missing file, one without a record, and one of another size, and nothing when they are settled. It
// leaves other files alone, and names them.
func TestCompare(t *testing.T) {
	first, db, root := empty(t)
	objects := map[string]digest.Digest{}
	for _, text := range []string{"missing", "short", "whole"} {
		if _, err := first.Put(meta.Arrival{}, []byte(text)); err != nil {
			t.Fatal(err)
		}
		objects[text] = digest.FromString(text)
	}
	missing, short := objects["missing"], objects["short"]
	unknown := digest.FromString("no record")
	other := strings.Repeat("ab", 32)
	strays := []string{
		"objects/stray", "objects/sha256/stray", "objects/sha256/cd", "objects/sha256/ab/" + other[2:], "objects/sha256/ef/" + other,
		"objects/sha256/ab/" + strings.ToUpper(other), "objects/sha256/AB", "objects/sha512",
	}
	for _, name := range append([]string{object.Path(unknown)}, strays...) {
		if err := errors.Join(root.MkdirAll(filepath.Dir(name), 0o700), root.WriteFile(name, []byte("no record"), object.Mode)); err != nil {
			t.Fatal(err)
		}
	}
	link, nested := "objects/sha256/ab/"+other, "objects/sha256/ab/directory"
	if err := errors.Join(
		root.Symlink("/etc/passwd", link), root.Mkdir(nested, 0o700),
		root.Remove(object.Path(missing)), root.WriteFile(object.Path(short), []byte("sh"), object.Mode),
	); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s, err := object.Open(object.Options{Root: root, Temp: "partial", DB: db, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Has(missing) || s.Has(short) || s.Has(unknown) || !s.Has(objects["whole"]) {
		t.Error("before the comparison: the wrong files are objects")
	}
	found, err := s.Compare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var bad []digest.Digest
	for _, b := range found.Bad {
		bad = append(bad, b.Digest)
	}
	slices.Sort(bad)
	if diff := cmp.Diff(slices.Sorted(slices.Values([]digest.Digest{missing, short})), bad); diff != "" || found.Unrecorded != 1 || s.Lost() != 2 {
		t.Errorf("found %+v, lost %d (-want +got):\n%s", found, s.Lost(), diff)
	}
	if _, err := root.Lstat(object.Path(short)); !os.IsNotExist(err) {
		t.Errorf("the short file is still below objects: %v", err)
	}
	if db.Has(missing) || db.Has(short) {
		t.Error("an object without its file is still recorded")
	}
	if got := s.Unrecorded(); len(got) != 1 || got[0] != (meta.Sized{Digest: unknown, Size: 9}) || s.Has(unknown) {
		t.Errorf("without a record: %v", got)
	}
	for _, name := range append(strays, link, nested) {
		if n := strings.Count(log.String(), "path="+name+"\n"); n != 1 {
			t.Errorf("%s is logged %d times", name, n)
		}
		if _, err := root.Lstat(name); err != nil {
			t.Error(err)
		}
	}
	if got := s.RecoverAll(t.Context()); !slices.Equal(got, []digest.Digest{unknown}) || !s.Has(unknown) {
		t.Errorf("recovered: %v", got)
	}
	if found, err := s.Compare(t.Context()); len(found.Bad)+found.Unrecorded > 0 || err != nil {
		t.Errorf("found again: %+v, %v", found, err)
	}
}

// A file without a record that no comparison has found yet is hashed when it is used.
func TestWithoutRecordOnDemand(t *testing.T) {
	for name, use := range map[string]func(s *object.Objects, d digest.Digest, p []byte) error{
		"opened": func(s *object.Objects, d digest.Digest, _ []byte) error {
			f, err := s.Open(d)
			if err == nil {
				err = f.Close()
			}
			return err
		},
		"allowed": func(s *object.Objects, d digest.Digest, _ []byte) error { return s.Allow(d, nil) },
		"claimed": func(s *object.Objects, _ digest.Digest, p []byte) error {
			_, err := s.Put(meta.Arrival{}, p)
			return err
		},
		"recovered": func(s *object.Objects, d digest.Digest, _ []byte) error {
			if got := s.Recover(t.Context(), d); len(got) != 1 {
				return errors.New("not recovered")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, root := empty(t)
			p := bytes.Repeat([]byte("without a record"), 1<<17)
			d := digest.FromBytes(p)
			path := filepath.Join(root.Name(), object.Path(d))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, p, object.Mode)); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := use(s, d, p); err != nil || !s.Has(d) {
				t.Errorf("object: %t, %v", s.Has(d), err)
			}
			if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it was replaced: %v", err)
			}
		})
	}
	s, _, root := empty(t)
	d := digest.FromString("right")
	if err := errors.Join(root.MkdirAll(filepath.Dir(object.Path(d)), 0o700), root.WriteFile(object.Path(d), []byte("wrong"), object.Mode)); err != nil {
		t.Fatal(err)
	}
	if f, err := s.Open(d); err == nil {
		f.Close()
		t.Error("wrong bytes are an object")
	}
	if f, err := s.Open("../" + d); err == nil { // is no name of a file
		f.Close()
		t.Error("opened")
	}
}
