package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/wire"
	"golang.org/x/sys/unix"
)

// Flags that contradict each other are usage errors.
func TestHydrateUsage(t *testing.T) {
	const ref = "ghcr.io/a/b:v1"
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{}, "no model given"},
		{[]string{"llama"}, "does not name a registry"},
		{[]string{"--pause", "--resume"}, "cannot be used together"},
		{[]string{"--pause", ref}, "do not name any"},
		{[]string{"--resume", "--detach"}, "--detach needs models"},
	} {
		code, stdout, stderr := ballast(t, append([]string{"hydrate"}, tt.args...)...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, tt.want) || !strings.Contains(stderr, "usage: ballast hydrate REF|DIGEST...") {
			t.Errorf("%q: code %d, stdout %q, stderr %q", tt.args, code, stdout, stderr)
		}
	}
}

// interrupted creates a model with few of its bytes: its prefetch was cut off by the end of the
// daemon, which runs again.
func interrupted(t *testing.T, s *site) (ref string) {
	t.Helper()
	ref = s.add("team/model", 31, 9<<20)
	spoil, asked, open := stalled()
	s.setSpoil(spoil)
	go func() {
		<-asked
		s.stop()
	}()
	if code, _, stderr := s.ballast(t.Context(), "prefetch", ref); code != exitResumable {
		t.Fatalf("prefetch: code %d, %s", code, stderr)
	}
	s.stop() // waits for its end
	close(open)
	s.setSpoil(nil)
	s.start(t, 1)
	return ref
}

// TestHydrate downloads the rest of a model; without a waiting client, a pause holds it up.
func TestHydrate(t *testing.T) {
	s := newSite(t)
	ref := interrupted(t, s)
	if code, _, stderr := s.ballast(t.Context(), "hydrate", s.host+"/none:v1"); code != exitNotFound || !strings.Contains(stderr, "ballast prefetch") {
		t.Errorf("a model that is not known: code %d, %q", code, stderr)
	}
	if out := s.ok(t, "hydrate", "--pause"); !strings.Contains(out, "paused") {
		t.Errorf("--pause: %q", out)
	}
	if _, out, _ := s.ballast(t.Context(), "doctor", "--containerd-config", "/nowhere/c.toml"); !strings.Contains(out, "fix: ballast hydrate --resume") {
		t.Errorf("doctor:\n%s", out)
	}
	sent := s.bytes()
	if out := s.ok(t, "hydrate", "--detach", ref); !strings.Contains(out, "starts after \"ballast hydrate --resume\"") {
		t.Errorf("in the pause: %q", out)
	}
	s.awaitState(t, "pulling 0%, paused")
	lines := strings.Split(strings.TrimSpace(s.ok(t, "hydrate", "-o", "json", ref)), "\n")
	last := parse[wire.Event](t, lines[len(lines)-1])
	if last.Status != wire.StatusSuccess || last.Image == nil || last.Ref != ref || len(lines) < 3 {
		t.Errorf("%d lines, last %+v", len(lines), last)
	}
	if s.bytes()-sent < 9<<20 {
		t.Errorf("only %d bytes came", s.bytes()-sent)
	}
	if out := s.ok(t, "ls"); !strings.Contains(out, "complete") || strings.Contains(out, "pinned") {
		t.Errorf("ls at the end:\n%s", out)
	}
	if out := s.ok(t, "hydrate", ref); !strings.Contains(out, "9.4 MB") {
		t.Errorf("a model that is complete: %q", out)
	}
	if p := parse[wire.PauseRequest](t, s.ok(t, "hydrate", "--resume", "-o", "json")); p.Paused {
		t.Error("still paused")
	}
}

// TestHydrateStarts leaves the download to the daemon.
func TestHydrateStarts(t *testing.T) {
	s := newSite(t)
	ref := interrupted(t, s)
	e := parse[wire.Event](t, s.ok(t, "hydrate", "--detach", "-o", "json", ref))
	if e.Status != wire.StatusStarted || e.Image == nil {
		t.Errorf("got %+v", e)
	}
	s.awaitState(t, "complete")
}

// awaitState waits until ls prints words.
func (s *site) awaitState(t *testing.T, words string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(s.ok(t, "ls"), words); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %q in ls:\n%s", words, s.ok(t, "ls"))
		}
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
