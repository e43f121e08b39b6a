package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
)

// TestPrefetchDetached starts two prefetches and waits for neither; the one that fails is found in
// the status.
func TestPrefetchDetached(t *testing.T) {
	s := newSite(t)
	one, two := s.add("team/one", 8, 9<<20), s.add("team/two", 9, 9<<20)
	spoil, _, open := stalled()
	s.Before(spoil)
	// The failure is printed if it is known at once.
	code, out, stderr := s.ballast(t.Context(), "prefetch", "--detach", one, two, s.Host()+"/team/none:1")
	want := 3
	if strings.Contains(stderr, "none:1") {
		want = 2
	}
	if strings.Count(out, "started") != want || code != 0 && code != exitNotFound {
		t.Errorf("code %d, %q, %q", code, out, stderr)
	}
	table, all := "", false
	for end := time.Now().Add(4 * time.Minute); !all && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
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
	if pins := parse[[]wire.Ref](t, s.ok(t, "pin", "ls", "-o", "json")); len(pins) != 2 {
		t.Errorf("pins: %+v", pins)
	}
	if code, _, stderr := ballast(t, "prefetch", "--detach", "--referrer", one); code != exitUsage || !strings.Contains(stderr, "--referrer") {
		t.Errorf("--referrer: code %d, %q", code, stderr)
	}
}

// TestPrefetchListInterrupted interrupts the prefetch of six models: the daemon, which downloads four
// at the same time, has all of them and downloads them.
func TestPrefetchListInterrupted(t *testing.T) {
	s := newSite(t)
	var refs []string
	for i := range 6 {
		refs = append(refs, s.add(fmt.Sprint("team/model", i), uint64(20+i), 5<<20))
	}
	spoil, _, open := stalled()
	s.Before(spoil)
	ctx, interrupt := context.WithCancel(t.Context())
	type result struct {
		code   int
		stderr string
	}
	ended := make(chan result, 1)
	stderr := &telling{told: make(chan struct{})}
	go func() {
		code := run(ctx, append([]string{"--config", s.config, "--address", s.address, "prefetch"}, refs...), io.Discard, stderr)
		ended <- result{code, stderr.String()}
	}()
	status := func() (running, queued, waiting int) {
		for _, j := range parse[wire.Status](t, s.ok(t, "status", "-o", "json")).Jobs {
			if j.Ended.IsZero() {
				running++
				waiting += j.Waiting
			}
			if j.Queued {
				queued++
			}
		}
		return running, queued, waiting
	}
	waitUntil(t, "six jobs, two of which are queued", func() bool {
		running, queued, waiting := status()
		return running == 6 && queued == 2 && waiting == 6
	})
	if table := s.ok(t, "status"); strings.Count(table, "  waiting ") != 2 {
		t.Errorf("status:\n%s", table)
	}
	<-stderr.told
	interrupt()
	got := <-ended
	// ballastd has all, and the command may not have been told of the last ones.
	_, notes, _ := strings.Cut(got.stderr, "ballast: ")
	for _, ref := range refs {
		if got.code != exitInterrupted || !strings.Contains(notes, "detached from ") || !strings.Contains(notes, ref) {
			t.Errorf("interrupted: code %d, stderr %q lacks %s", got.code, got.stderr, ref)
		}
	}
	close(open)
	waitUntil(t, "all models", func() bool { return len(parse[[]wire.Ref](t, s.ok(t, "pin", "ls", "-o", "json"))) == 6 })
	waitUntil(t, "no job", func() bool { running, _, _ := status(); return running == 0 })
}

// A telling is what a command has printed. told is closed when there is something.
type telling struct {
	strings.Builder
	once sync.Once
	told chan struct{}
}

func (w *telling) Write(p []byte) (int, error) {
	defer w.once.Do(func() { close(w.told) })
	return w.Builder.Write(p)
}

// TestStopOfQueuedPrefetch removes a model that waits for others of its list.
func TestStopOfQueuedPrefetch(t *testing.T) {
	s := newSite(t)
	var refs []string
	for i := range 5 {
		refs = append(refs, s.add(fmt.Sprint("team/model", i), uint64(30+i), 5<<20))
	}
	spoil, _, open := stalled()
	s.Before(spoil)
	s.ok(t, append([]string{"prefetch", "--detach"}, refs...)...)
	var queued []string
	waitUntil(t, "four jobs and a queued one, which nobody waits for", func() bool {
		queued = nil
		jobs := parse[wire.Status](t, s.ok(t, "status", "-o", "json")).Jobs
		for _, j := range jobs {
			if j.Queued && j.Waiting == 0 {
				queued = append(queued, j.Ref)
			}
		}
		return len(jobs) == 5 && len(queued) == 1
	})
	if code, _, stderr := s.ballast(t.Context(), "rm", queued[0]); code != 0 || !strings.Contains(stderr, "1 download stopped") {
		t.Errorf("rm: code %d, %q", code, stderr)
	}
	close(open)
	waitUntil(t, "the other models", func() bool { return len(parse[[]wire.Ref](t, s.ok(t, "pin", "ls", "-o", "json"))) == 4 })
	if out := s.ok(t, "ls"); strings.Contains(out, queued[0]) {
		t.Errorf("the model is there:\n%s", out)
	}
}

// waitUntil waits for a fact.
func waitUntil(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); !fact(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}
