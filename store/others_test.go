package store_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// A neighbour is a store in which other users show models that are not complete, each in a view of its own.
type neighbour struct {
	*store.Store
	p     []byte
	table digest.Digest // of one more user, in the view "snapshot/own"
	next  int
}

const ownView = "snapshot/own"

func beside(t testing.TB, others int) *neighbour {
	t.Helper()
	n := &neighbour{Store: storetest.Open(t, t.TempDir(), store.Options{}), p: storetest.Random(1, 64<<10)}
	for i := range others {
		n.show(t, fmt.Sprint("snapshot/", i), i+1)
	}
	n.table = n.show(t, ownView, 0)
	return n
}

// show shows a model with a file of its own in a view.
func (n *neighbour) show(t testing.TB, view string, seed int) digest.Digest {
	t.Helper()
	p := storetest.Random(uint64(seed), 8<<10)
	table := storetest.NewBuilder(view).RawChunks("w", p, 0o644, 4<<10).Put(t, n.Store)
	if err := n.AddRef(view, table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := n.Views.Expose(t.Context(), table, store.ExposeOptions{View: view, Sources: good(storetest.NewFetcher(p)), Probe: true, Wait: true}); err != nil {
		t.Fatal(err)
	}
	return table
}

// An ownStep is something that one more user does.
type ownStep struct {
	name string
	do   func(testing.TB) error
}

// steps are what one more user does.
func (n *neighbour) steps() []ownStep {
	own := storetest.Random(0, 8<<10)
	file := digest.FromBytes(own)
	return []ownStep{
		{"lookup", func(testing.TB) error { _, _, err := n.Views.View(ownView).LazyFile(file); return err }},
		{"mount", func(t testing.TB) error { return n.Views.Present(ownView) }},
		{"status", func(t testing.TB) error {
			_, err := n.Usage()
			_, serr := n.State(t.Context(), n.table)
			return errors.Join(err, serr)
		}},
		{"show", func(t testing.TB) error {
			return n.Views.Expose(t.Context(), n.table, store.ExposeOptions{View: ownView, Sources: good(storetest.NewFetcher(own)), Probe: true, Wait: true})
		}},
		{"reference", func(t testing.TB) error {
			if err := n.AddRef("pin/own", n.table, time.Time{}); err != nil {
				return err
			}
			return n.RemoveRef("pin/own")
		}},
		{"pull", func(t testing.TB) error {
			n.next++
			q := fmt.Appendf(nil, "model %d", n.next)
			table := storetest.NewBuilder(string(q)).Raw("q", q, 0o644).Put(t, n.Store)
			return n.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(storetest.NewFetcher(q))})
		}},
	}
}

// BenchmarkBesideViews measures what a user pays beside 10 and 10,000 models of others that are shown before they
// are complete. Most of the set-up is syncing: use a TMPDIR in memory.
func BenchmarkBesideViews(b *testing.B) {
	for _, others := range []int{10, 10_000} {
		n := beside(b, others)
		for _, step := range n.steps() {
			b.Run(fmt.Sprintf("%s/others=%d", step.name, others), func(b *testing.B) {
				start := usedCPU(b)
				for b.Loop() {
					if err := step.do(b); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(usedCPU(b)-start)/float64(b.N), "cpu-ns/op")
			})
		}
		if err := n.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func usedCPU(t testing.TB) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
