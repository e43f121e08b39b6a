package main

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// TestScrub flips a bit of a stored file. The daemon finds it in the background, and downloads the file again.
// While its registry does not answer, ls and doctor name the damage.
func TestScrub(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 21, 9<<20)
	s.ok(t, "prefetch", ref)
	want := s.models["team/model"].Files["model.gguf"].Data
	object := filepath.Join(s.dir, "root/objects", store.ObjectName(digest.FromBytes(want)))
	flip := func() {
		t.Helper()
		f, err := os.OpenFile(object, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte{want[5<<20] ^ 1}, 5<<20); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()
	flip()
	s.Before(func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true })
	s.more = "[scrub]\ninterval = \"1s\"\nrate = \"1GB\"\n"
	s.start(t, 1)
	waitUntil(t, "the damage in ls", func() bool {
		out := s.ok(t, "ls")
		return strings.Contains(out, "damaged, pinned") && strings.Contains(out, `is damaged: 1 of its objects are damaged or missing, such as sha256:`)
	})
	if _, err := os.Stat(object); err == nil {
		t.Error("the damaged file can still be read")
	}
	waitUntil(t, "the failed repair in status", func() bool {
		out := s.ok(t, "status")
		return strings.Contains(out, "scrub "+ref) && strings.Contains(out, "and cannot be downloaded")
	})
	s.Before(nil)
	s.ok(t, "verify", "--repair")
	flip()
	waitUntil(t, "the repair", func() bool {
		got, err := os.ReadFile(object)
		return err == nil && bytes.Equal(got, want) && strings.Contains(s.ok(t, "ls"), "complete, pinned") // the record follows the file
	})
	s.ok(t, "verify")
}
