package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/store"
	"github.com/opencontainers/go-digest"
)

// TestRemoveNow removes one model with its files, and what is said of it. The other model, which nothing protects, keeps
// its files, also those that both had.
func TestRemoveNow(t *testing.T) {
	s := newSite(t)
	one, two := s.add("one", 31, 2<<20), s.add("two", 32, 3<<20)
	s.ok(t, "prefetch", one)
	s.ok(t, "prefetch", two)
	s.ok(t, "unpin", two)
	used := func() wire.Usage { return parse[wire.Usage](t, s.ok(t, "df", "-o", "json")) }
	path := filepath.Join(s.dir, "root", "objects", store.ObjectName(digest.FromBytes(s.models["one"].Files["model.gguf"].Data)))
	var share *wire.Share
	for _, im := range parse[[]wire.Image](t, s.ok(t, "ls", "--size", "-o", "json")) {
		if im.Refs[0] == one {
			share = im.Share
		}
	}
	before := used().Unique
	if out := s.ok(t, "rm", "--now", "--dry-run", one); !strings.HasPrefix(out, "would remove "+one+" (") || !strings.HasSuffix(out, "\nwould remove "+size(share.Own)+" of files\n") {
		t.Errorf("rm --now --dry-run: %q", out)
	}
	if got := used().Unique; got != before || share.Shared == 0 {
		t.Fatalf("after a dry run: %d bytes of %d, shared %d", got, before, share.Shared)
	}
	code, stdout, stderr := s.ballast(t.Context(), "rm", "--now", one)
	if code != 0 || !strings.HasPrefix(stdout, "removed "+one+" (") || !strings.HasSuffix(stdout, "\nremoved "+size(share.Own)+" of files\n") ||
		!strings.Contains(stderr, size(share.Shared)+" stay: other models have them") {
		t.Errorf("rm --now: code %d, %q, %q", code, stdout, stderr)
	}
	if got := used(); got.Unique != before-share.Own {
		t.Errorf("%d bytes are left, want %d", got.Unique, before-share.Own)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("its weights are on the disk: %v", err)
	}
	if left := parse[[]wire.Image](t, s.ok(t, "ls", "-o", "json")); len(left) != 1 || left[0].Refs[0] != two || left[0].State != wire.StateComplete {
		t.Errorf("models that are left: %+v", left)
	}
	s.ok(t, "verify", two)
	unpinned := s.add("three", 34, 1<<20)
	s.ok(t, "prefetch", "--no-pin", unpinned)
	s.ok(t, "rm", "--now", unpinned) // also what has arrived in the last minute
	if got := used(); got.Unique != before-share.Own {
		t.Errorf("%d bytes are left after the third, want %d", got.Unique, before-share.Own)
	}

	// The collector names what it removes.
	if out := s.ok(t, "gc", "--yes"); !strings.Contains(out, "removed ") || !strings.Contains(out, "\n  "+two+"\n") {
		t.Errorf("gc: %q", out)
	}
	if out := s.ok(t, "-q", "rm", two); !strings.HasPrefix(out, "sha256:") || strings.Count(out, "\n") != 1 {
		t.Errorf("rm -q: %q", out)
	}
}

// TestRemoveNowWhilePulling removes what has been downloaded of a model.
func TestRemoveNowWhilePulling(t *testing.T) {
	s := newSite(t)
	ref := s.add("team/model", 33, 9<<20)
	spoil, asked, open := stalled()
	defer close(open)
	s.Before(spoil)
	s.ok(t, "prefetch", "--detach", ref)
	<-asked
	if code, stdout, stderr := s.ballast(t.Context(), "rm", "--now", ref); code != 0 || !strings.Contains(stdout, "removed "+ref+" (") || !strings.Contains(stderr, "1 download stopped") {
		t.Errorf("code %d, %q, %q", code, stdout, stderr)
	}
	if u := parse[wire.Usage](t, s.ok(t, "df", "-o", "json")); u.Partial != 0 {
		t.Errorf("%+v is left", u)
	}
	staged, err := os.ReadDir(filepath.Join(s.dir, "root", "partial"))
	if err != nil || len(staged) > 0 {
		t.Errorf("staged: %v, %v", staged, err)
	}
}
