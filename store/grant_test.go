package store_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// A complete file that could not be added to its view, for example on a full disk, is added by the next mount.
func TestFailedGrantIsRepeated(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	p := storetest.Random(1, 64<<10)
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, 16<<10).Put(t, s)
	view, from := "snapshot/1", good(storetest.NewFetcher(p))
	if err := s.AddRef(view, table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{View: view, Sources: from, Wait: true}); err != nil {
		t.Fatal(err)
	}
	obstacle := filepath.Join(s.Views.View(view).Dir(), "sha256")
	if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddRef(view, table, time.Time{}, from[0].Name); err != nil {
		t.Fatal(err)
	}
	if _, exposed := s.Views.Early(table)[view]; !exposed {
		t.Fatal("the file was added: this test proves nothing")
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // its bytes are compared before
		if err := s.Views.Present(view); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(filepath.Join(s.Views.View(view).Dir(), store.ObjectName(digest.FromBytes(p))))
		_, exposed := s.Views.Early(table)[view]
		if err == nil && !exposed {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the file in the view: %v; it counts as incomplete: %v", err, exposed)
		}
	}
}
