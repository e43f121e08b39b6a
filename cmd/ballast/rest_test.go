package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"golang.org/x/sys/unix"
)

// interrupted creates a model with few of its bytes: its prefetch was cut off by the end of the
// daemon, which runs again.
func interrupted(t *testing.T, s *site) (ref string) {
	t.Helper()
	ref = s.add("team/model", 31, 9<<20)
	spoil, asked, open := stalled()
	s.Before(spoil)
	go func() {
		<-asked
		s.stop()
	}()
	if code, _, stderr := s.ballast(t.Context(), "prefetch", ref); code != exitResumable {
		t.Fatalf("prefetch: code %d, %s", code, stderr)
	}
	s.stop() // waits for its end
	close(open)
	s.Before(nil)
	s.start(t, 1)
	return ref
}

// TestPrefetchDigest downloads the rest of a model by its digest, in a pause of background downloads: no registry is
// asked for its tag, and the pin is that of its reference.
func TestPrefetchDigest(t *testing.T) {
	s := newSite(t)
	ref := interrupted(t, s)
	if out := s.ok(t, "pause"); out != "paused: no background downloads; reads continue\n" {
		t.Errorf("pause: %q", out)
	}
	if _, out, _ := s.ballast(t.Context(), "doctor", "--containerd-config", "/nowhere/c.toml"); !strings.Contains(out, "fix: ballast resume") {
		t.Errorf("doctor:\n%s", out)
	}
	all := parse[[]wire.Image](t, s.ok(t, "ls", "-o", "json"))
	if len(all) != 1 || all[0].State == wire.StateComplete {
		t.Fatalf("ls: %+v", all)
	}
	id, sent := all[0].ID().String(), s.Sent()
	var resolved atomic.Int32
	s.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") && !strings.Contains(r.URL.Path, "/manifests/sha256:") {
			resolved.Add(1)
		}
		return false
	})
	if out := s.ok(t, "prefetch", "--dry-run", id); !strings.Contains(out, shortDigest(id)) || !strings.Contains(out, string(all[0].State)) {
		t.Errorf("--dry-run: %q", out)
	}
	if out := s.ok(t, "prefetch", "--detach", id); out != id+"  started; \"ballast status\" shows its progress\n" {
		t.Errorf("--detach: %q", out)
	}
	lines := strings.Split(strings.TrimSpace(s.ok(t, "prefetch", "-o", "json", shortDigest(id))), "\n")
	last := parse[wire.Event](t, lines[len(lines)-1])
	if last.Status != wire.StatusSuccess || last.Image == nil || last.Image.ID().String() != id {
		t.Errorf("%d lines, last %+v", len(lines), last)
	}
	if s.Sent()-sent < 9<<20 || resolved.Load() != 0 {
		t.Errorf("%d bytes came, and %d requests for tags", s.Sent()-sent, resolved.Load())
	}
	if pins := parse[[]wire.Pin](t, s.ok(t, "pin", "ls", "-o", "json")); len(pins) != 1 || pins[0].Name != ref {
		t.Errorf("pins: %+v", pins)
	}
	s.ok(t, "unpin", id)
	if out := s.ok(t, "pull", id); !strings.Contains(out, "9.4 MB") {
		t.Errorf("a model that is complete: %q", out)
	}
	if out := s.ok(t, "ls"); !strings.Contains(out, "complete") || strings.Contains(out, "pinned") {
		t.Errorf("ls at the end:\n%s", out)
	}
	if p := parse[wire.PauseRequest](t, s.ok(t, "resume", "-o", "json")); p.Paused {
		t.Error("still paused")
	}
	if code, _, stderr := s.ballast(t.Context(), "prefetch", "--referrer", id); code != exitUsage || !strings.Contains(stderr, "--referrer is for") {
		t.Errorf("--referrer: code %d, %q", code, stderr)
	}
}

// TestLazyUnmounted unmounts the lazy mount, which the daemon then mounts again.
func TestLazyUnmounted(t *testing.T) {
	s := newSite(t)
	dir := filepath.Join(s.dir, "root", "lazy")
	cl := wire.NewClient(s.address)
	defer cl.Close()
	h, err := cl.Health(t.Context())
	if err != nil || h.Lazy.Dir != dir || !h.Lazy.Mounted || h.Lazy.Keeper != "none" || h.Lazy.Kept {
		t.Fatalf("before: %+v, %v", h.Lazy, err)
	}
	open, err := os.Open(filepath.Join(dir, "sha256")) // keeps the mount alive, as an overlay on it does
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if h, err = cl.Health(t.Context()); err != nil || h.Lazy.Mounted {
		t.Errorf("without the mount: %+v, %v", h.Lazy, err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !h.Lazy.Mounted; time.Sleep(10 * time.Millisecond) {
		if h, err = cl.Health(t.Context()); err != nil || time.Now().After(deadline) {
			t.Fatalf("afterwards: %+v, %v", h.Lazy, err)
		}
	}
	if err := open.Close(); err != nil {
		t.Errorf("what was open: %v", err)
	}
	if err := unix.Unmount(dir, 0); err != nil { // now nothing keeps it alive
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "sha256")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not mounted a second time")
		}
	}
}
