package object_test

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/object"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// nothing is an object.Root without live objects.
type nothing struct{}

func (nothing) Live() meta.Roots { return meta.Roots{} }

// TestSyncBeforeLocks checks that while an fsync of an object takes long, other objects are published,
// found and collected.
func TestSyncBeforeLocks(t *testing.T) {
	disk := storetest.NewSlowDisk(t)
	root, err := dirs.Open(disk.Dir, object.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	log := slog.New(slog.DiscardHandler)
	db, err := meta.Open(filepath.Join(t.TempDir(), "store.db"), meta.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, err := object.Open(object.Options{Root: root, Temp: "partial", DB: db, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	linked := []byte("a foreign file")
	if err := root.WriteFile("partial/linked", linked, object.Mode); err != nil {
		t.Fatal(err)
	}
	slow := map[string]func() error{
		"put": func() error { _, err := s.Put(meta.Arrival{}, []byte("put")); return err },
		"link": func() error {
			f, err := root.Open("partial/linked")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = s.Link(t.Context(), f, digest.FromBytes(linked), int64(len(linked)), nil, nil)
			return err
		},
	}
	done := make(chan error, len(slow))
	for what, do := range slow {
		go func() { done <- do() }()
		if path := <-disk.Syncing; !strings.HasPrefix(path, "partial/") {
			t.Errorf("%s: fsync of %s", what, path)
		}
	}
	p := bytes.Repeat([]byte("x"), 100)
	d := digest.FromBytes(p)
	if err := root.WriteFile("partial/ready", p, object.Mode); err != nil {
		t.Fatal(err)
	}
	storetest.WithinLimit(t, "publishing", func() error {
		return s.Publish(meta.Arrival{Files: []meta.File{{Staged: "partial/ready", Digest: d, Size: int64(len(p))}}})
	})
	storetest.WithinLimit(t, "opening", func() error {
		f, err := s.Open(d)
		if err != nil {
			return err
		}
		return f.Close()
	})
	storetest.WithinLimit(t, "collecting", func() error {
		s.Unprotect(d)
		c, err := s.Collect(nothing{}, object.CollectOptions{Want: func(total int64) int64 { return total }})
		if c.Objects != 1 {
			t.Errorf("%d objects were collected, want 1", c.Objects)
		}
		return err
	})
	disk.Release()
	for range slow {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if !s.Has(digest.FromString("put")) || !s.Has(digest.FromBytes(linked)) {
		t.Error("what was slow is no object")
	}
}
