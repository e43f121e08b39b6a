package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
)

// TestPrefetchDetached starts two prefetches and waits for neither; the one that fails is found in
// the status.
func TestPrefetchDetached(t *testing.T) {
	s := newSite(t)
	one, two := s.add("team/one", 8, 9<<20), s.add("team/two", 9, 9<<20)
	spoil, _, open := stalled(1 << 20)
	s.setSpoil(spoil)
	// The failure is printed if it is known at once.
	code, out, stderr := s.ballast(t.Context(), "prefetch", "--detach", one, two, s.host+"/team/none:1")
	if strings.Count(out, "started")+strings.Count(stderr, "none:1") != 3 || code != 0 && code != exitNotFound {
		t.Errorf("code %d, %q, %q", code, out, stderr)
	}
	table, all := "", false
	for end := time.Now().Add(time.Minute); !all && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		table, all = s.ok(t, "status"), true
		for _, want := range []string{one, two, "last errors:", "team/none:1: "} {
			all = all && strings.Contains(table, want)
		}
	}
	if !all {
		t.Errorf("status:\n%s", table)
	}
	close(open)
	s.ok(t, "prefetch", one, two)
	if pins := parse[[]store.Ref](t, s.ok(t, "pin", "-o", "json")); len(pins) != 2 {
		t.Errorf("pins: %+v", pins)
	}
	if code, _, stderr := ballast(t, "prefetch", "--detach", "--referrer", one); code != exitUsage || !strings.Contains(stderr, "--referrer") {
		t.Errorf("--referrer: code %d, %q", code, stderr)
	}
}
