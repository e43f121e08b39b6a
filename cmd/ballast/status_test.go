package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

// TestStatusTable shows what is running, how long it takes, and what failed last.
func TestStatusTable(t *testing.T) {
	var out strings.Builder
	a := &app{stdout: &out}
	now := time.Now()
	err := a.status(wire.Status{Paused: true, WaitingReads: 3, Jobs: []wire.Job{
		{Kind: "prefetch", Ref: "a.b/c:1", Started: now.Add(-20 * time.Second), Total: 1e9, Completed: 25e7, Rate: 5e7, Waiting: 2, Limit: "network"},
		{Kind: "background", Ref: "a.b/d:1", Started: now.Add(-time.Minute), Total: 100, Completed: 10, Reads: 3, Error: &wire.Error{Message: "registry down"}},
		{Kind: "verify", Started: now.Add(-time.Second)},
		{Kind: "prefetch", Ref: "a.b/g:1", Started: now.Add(-time.Second), Queued: true},
		{Kind: "prefetch", Ref: "hf.co/a/b:main", Started: now.Add(-time.Second), LimitedBy: "hf.co", Until: now.Add(40*time.Second + 300*time.Millisecond)},
		{Kind: "abandoned", Ref: "a.b/h:1", Started: now.Add(-time.Minute), Total: 100, Completed: 20, Ends: now.Add(4*time.Minute + 10400*time.Millisecond)},
		{Kind: "import", Ref: "a.b/e:1", Started: now.Add(-time.Hour), Ended: now.Add(-2 * time.Minute), Error: wire.Wrap(errdefs.ErrNotFound)},
		{Kind: "prefetch", Ref: "a.b/f:1", Started: now.Add(-time.Hour), Ended: now},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := `KIND        MODEL           DONE                              RATE     LEFT  LIMIT    WAITING  READS  SINCE
prefetch    a.b/c:1         25% of 1.0 GB                     50 MB/s  16s   network  2               20s
background  a.b/d:1         10% of 100 B                                     paused            3      1m0s
verify      all models      starting                                                                  1s
prefetch    a.b/g:1         waiting                                                                   1s
prefetch    hf.co/a/b:main  waits 40s for the limit of hf.co                                          1s
abandoned   a.b/h:1         20% of 100 B                                                              1m0s

no client waits for abandoned downloads; they stop in 4m10s, or with "ballast rm REF" or "ballast gc"

3 reads of models that are not complete wait for bytes

background downloads are paused; "ballast resume" resumes them

last errors:
  trying again: background a.b/d:1: registry down
  2 minutes ago: import a.b/e:1: not found
`
	if diff := cmp.Diff(out.String(), want); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
}

// TestErrorsUntilSuccess shows errors of models and verifications that have not succeeded since.
func TestErrorsUntilSuccess(t *testing.T) {
	now, failed := time.Now(), wire.Wrap(errdefs.ErrUnavailable)
	var got []string
	for _, j := range failures([]wire.Job{
		{Kind: "background", Ref: "a", Table: "sha256:a", Error: failed}, // runs
		{Kind: "prefetch", Ref: "new", Ended: now, Error: failed},
		{Kind: "containerd", Ref: "b", Table: "sha256:b", Ended: now},
		{Kind: "prefetch", Ref: "new", Ended: now},
		{Kind: "prefetch", Ref: "b", Ended: now, Error: failed},
		{Kind: "containerd", Ref: "c", Table: "sha256:b", Ended: now, Error: failed},
		{Kind: "verify", Ref: "b", Ended: now, Error: failed},
		{Kind: "verify", Ended: now},
		{Kind: "verify", Ended: now, Error: failed},
		{Kind: "prefetch", Ref: "a", Ended: now, Error: failed},
	}) {
		got = append(got, string(j.Kind)+" "+j.Ref)
	}
	if diff := cmp.Diff(got, []string{"background a", "prefetch new", "verify b", "prefetch a"}); diff != "" {
		t.Errorf("got, want:\n%s", diff)
	}
}

// TestFiltersMustAllMatch passes models that match all filters.
func TestFiltersMustAllMatch(t *testing.T) {
	im := wire.Image{Record: wire.Record{Refs: []string{"ghcr.io/team/model:v1"}}, State: wire.StateLazy, Snapshots: 1}
	im.Origin.Format = "modelpack"
	for _, tt := range []struct {
		filters []string
		want    bool
	}{
		{nil, true},
		{[]string{"state=lazy", "format=modelpack", "ref=team/", "pinned=false", "used=true"}, true},
		{[]string{"state=complete"}, false},
		{[]string{"state=lazy", "pinned=true"}, false},
		{[]string{"ref=other"}, false},
		{[]string{"format=ollama"}, false},
	} {
		keep, err := parseFilters(tt.filters)
		if err != nil || keep(im) != tt.want {
			t.Errorf("%q: %v, want %t", tt.filters, err, tt.want)
		}
	}
	for _, wrong := range []string{"state", "state=", "colour=red", "pinned=yes"} {
		if code, _, stderr := ballast(t, "ls", "--filter", wrong); code != exitUsage || !strings.Contains(stderr, "--filter") {
			t.Errorf("%q: code %d, %q", wrong, code, stderr)
		}
	}
}

// TestStateText shows how long the rest takes, and how long a pin lasts.
func TestStateText(t *testing.T) {
	const ref = "ghcr.io/team/model:v1"
	im := wire.Image{
		Record: wire.Record{Refs: []string{ref}}, State: wire.StatePulling, Total: 1000, Completed: 250, Rate: 10,
		Pins: []wire.Ref{{Name: ref, Expires: time.Now().Add(3*time.Hour + time.Minute)}},
	}
	if got, want := state(im, ref), "pulling 25% (1m16s left), pinned (3 hours left)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	im = wire.Image{State: wire.StateLazy, Total: 1000, Completed: 400, Error: &wire.Error{Message: "registry down"}}
	if got, want := state(im, ref), "lazy 40%, stalled"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	im = wire.Image{State: wire.StatePulling, Total: 1000, Completed: 400, Rate: 600, Ends: time.Now().Add(4 * time.Minute)}
	if got, want := state(im, ref), "pulling 40% (2s left), stops in 4 minutes"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCauseOfStall shows why the rest of a model does not arrive, in "ls" and in "why".
func TestCauseOfStall(t *testing.T) {
	const cause = "layer 0 (\"w\"): unpack zstd archive: a window of more than 128 MiB"
	im := wire.Image{
		Record: wire.Record{Refs: []string{"ghcr.io/team/model:v1"}}, State: wire.StateLazy, Total: 1000, Completed: 400,
		Error: &wire.Error{Message: cause}, Share: &wire.Share{},
	}
	for name, print := range map[string]func(a *app) error{
		"ls":  func(a *app) error { return a.list([]wire.Image{im}, outTable) },
		"why": func(a *app) error { return a.why(wire.Why{Image: im}) },
	} {
		var out strings.Builder
		if err := print(&app{stdout: &out}); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, "lazy 40%, stalled") || !strings.Contains(got, cause) {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}
