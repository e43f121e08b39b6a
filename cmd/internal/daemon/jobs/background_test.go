package jobs

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// A restart is the Background of a store with tables that download one file in different ways, some of
// them malicious.
type restart struct {
	*Background
	want    []byte
	sources map[digest.Digest]*storetest.Fetcher
	pending map[string]bool // references of pulls that have not ended
}

func newRestart(t *testing.T) *restart {
	t.Helper()
	r := &restart{
		want: storetest.Random(11, 9<<20), pending: map[string]bool{}, sources: map[digest.Digest]*storetest.Fetcher{},
		Background: &Background{
			List: &List{}, Store: storetest.Open(t, t.TempDir(), store.Options{}), Log: slog.New(slog.DiscardHandler),
		},
	}
	r.View = func(store.Ref) string { return "" } // the tests concern only the common view
	r.Background.Sources = func(_ context.Context, _ string, table digest.Digest) ([]transfer.Source, error) {
		return storetest.From(r.sources[table]), nil
	}
	r.Shows = func(ref store.Ref) bool { return !r.pending[ref.Name] }
	return r
}

// add adds a reference to a table with the file in chunks of the given size. With lie, the
// chunk digests are those of other bytes, which its registry serves.
func (r *restart) add(t *testing.T, ref string, chunk int, lie bool) digest.Digest {
	t.Helper()
	p := r.want
	b := storetest.NewBuilder(ref).RawChunks("model.bin", r.want, 0o644, chunk)
	if lie {
		p = bytes.Clone(r.want)
		for i := range p {
			p[i] ^= 0x5a
		}
		src := b.Table().Files[0].Source
		for i, c := range src.Chunks {
			src.Chunks[i].Digest = digest.FromBytes(p[c.Offset : c.Offset+c.Size])
		}
	}
	f := storetest.NewFetcher(r.want)
	if lie {
		f = &storetest.Fetcher{Blobs: map[digest.Digest][]byte{digest.FromBytes(r.want): p}}
	}
	table := b.Put(t, r.Store)
	if err := r.Store.AddRef(ref, table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	r.sources[table] = f
	return table
}

// After a restart a model reads as before, whatever other tables contain about its files: a later
// pull downloads them in another way, and so does an unfinished one.
func TestRestartShowsTheSame(t *testing.T) {
	t.Parallel()
	r := newRestart(t)
	r.add(t, "snapshot/1", 2<<20, true)
	r.pending["snapshot/1"] = true
	victim := r.add(t, "snapshot/9", filetable.MaxChunk, false)
	attacker := r.add(t, "snapshot/10", 1<<20, true) // sorts before the other by name
	tables, err := r.Resume(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tables, []Shown{{table: victim}, {table: attacker}}, cmp.AllowUnexported(Shown{})); diff != "" {
		t.Errorf("tables to download (-got +want):\n%s", diff)
	}
	if v, a := r.Store.Views.Early(victim), r.Store.Views.Early(attacker); len(v) != 1 || len(a) != 0 {
		t.Errorf("exposed: victim in %v, attacker in %v", v, a)
	}
	p := make([]byte, 1000)
	for _, off := range []int64{0, 5 << 20, 9<<20 - 1000} {
		if n, err := r.Store.Views.View("").ReadAt(t.Context(), digest.FromBytes(r.want), p, off); err != nil || n != len(p) || !bytes.Equal(p, r.want[off:][:n]) {
			t.Fatalf("at %d: %d bytes, %v; or they are wrong", off, n, err)
		}
	}
}

// A model that was shown complete because only its files are signed is not read by chunks after a
// restart that finds one of them lost.
func TestRestartReadsWholeFiles(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		r := newRestart(t)
		r.Whole = func(digest.Digest) (bool, error) { return whole, nil }
		table := r.add(t, "snapshot/1", 1<<20, true)
		if _, err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if early, ok := r.Store.Views.Early(table)[""]; !ok || early.Whole != whole {
			t.Errorf("readable: %v, only whole files %v, want %v", ok, early.Whole, whole)
		}
	}
}

// A model is shown early until it is complete.
func TestShowsEarly(t *testing.T) {
	t.Parallel()
	r := newRestart(t)
	table := r.add(t, "snapshot/1", 1<<20, false)
	want := func(want bool) {
		t.Helper()
		if got := r.ShowsEarly(table); got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	r.pending["snapshot/1"] = true
	want(false)
	delete(r.pending, "snapshot/1")
	want(true)
	if err := r.Store.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(r.sources[table])}); err != nil {
		t.Fatal(err)
	}
	want(false)
}

// What a client with more rights requests is downloaded for a view that is not shown yet, and is
// not shown in it: only the view's own sources determine what is readable in it.
func TestViewShowsOnlyItsOwnSources(t *testing.T) {
	t.Parallel()
	r := newRestart(t)
	table := r.add(t, "snapshot/1", filetable.MaxChunk, false)
	others := storetest.From(r.sources[table])
	r.Background.Sources = func(context.Context, string, digest.Digest) ([]transfer.Source, error) { return nil, nil }
	if got := r.renew(t.Context(), Shown{"snapshot/1", table}, others); len(got) != len(others) {
		t.Errorf("downloaded from %d sources, want %d", len(got), len(others))
	}
	if early := r.Store.Views.Early(table); len(early) != 0 {
		t.Errorf("shown early: %v", early)
	}
}

// A model that was shown before a restart is completed after it, even if it cannot be read early
// because another table was first.
func TestRestartCompletesWhatIsNotReadable(t *testing.T) {
	t.Parallel()
	r := newRestart(t)
	first := r.add(t, "snapshot/1", filetable.MaxChunk, false)
	second := r.add(t, "snapshot/2", 1<<20, false)
	tables, err := r.Resume(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Store.Views.Early(second)) > 0 {
		t.Fatal("both can be read early: nothing is tested")
	}
	ctx, cancel := context.WithCancel(t.Context())
	wait := r.Begin(ctx)
	defer func() {
		cancel()
		if err := wait(); err != nil {
			t.Error(err)
		}
	}()
	// The first registry is gone: the second one must provide its own bytes.
	delete(r.sources[first].Blobs, digest.FromBytes(r.want))
	for _, table := range tables {
		r.Start(table.view, table.table, storetest.From(r.sources[table.table]))
	}
	if !slices.Contains(tables, Shown{table: second}) {
		t.Fatal("nobody brings the rest of the model")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := r.Store.Views.Files(second); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the model is not complete")
	}
}

// The order is looked for once where the sources are. A registry that has none, or a wrong one, changes nothing.
func TestOrderIsLookedFor(t *testing.T) {
	t.Parallel()
	r := newRestart(t)
	table := r.add(t, "snapshot/1", filetable.MaxChunk, false)
	sources := storetest.From(r.sources[table])
	asked := 0
	answer, fails := filetable.Order{Version: filetable.OrderVersion}, error(errdefs.ErrNotFound)
	r.Order = func(context.Context, digest.Digest, []transfer.Source) (filetable.Order, error) {
		asked++
		return answer, fails
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if r.awaitReader(ended, table, sources, 0) {
		t.Error("work that has ended goes on")
	}
	fails, answer.Ranges = nil, []filetable.Range{{Path: "elsewhere", Size: 1}}
	if r.awaitReader(ended, table, sources, 0) || r.Store.HasOrder(table, sources) {
		t.Error("an order of another model is used")
	}
	answer.Ranges = append(answer.Ranges, filetable.Range{Path: "model.bin", Offset: 4 << 20, Size: 1})
	for range 2 {
		if !r.awaitReader(t.Context(), table, sources, 0) || !r.Store.HasOrder(table, sources) {
			t.Error("the order is not used")
		}
	}
	if asked != 3 {
		t.Errorf("the registry was asked %d times, want 3: afterwards the node has the order", asked)
	}
}

// The rest of a model waits for the first read, so that it does not slow it down, whether or not it is known how the
// model is read.
func TestRestWaitsForTheFirstRead(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		r := newRestart(t)
		table := r.add(t, "snapshot/1", filetable.MaxChunk, false)
		sources := storetest.From(r.sources[table])
		if known {
			o := filetable.Order{Version: filetable.OrderVersion, Ranges: []filetable.Range{{Path: "model.bin", Size: 1}}}
			if err := r.Store.PutOrder(table, sources, o); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		settled := make(chan bool)
		go func() { settled <- r.awaitReader(t.Context(), table, sources, time.Hour) }()
		select {
		case <-settled:
			t.Errorf("order known: %t: the rest is fetched before a byte is read", known)
			continue
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := r.Store.Views.View("").ReadAt(t.Context(), digest.FromBytes(r.want), make([]byte, 1), 0); err != nil {
			t.Fatal(err)
		}
		if !<-settled {
			t.Errorf("order known: %t: the rest is not fetched after the first read", known)
		}
	}
}

// TestViewEnds: the rest of a model is not downloaded for a snapshot that is gone, although another one shows the model.
func TestViewEnds(t *testing.T) {
	r := newRestart(t)
	table := r.add(t, "snapshot/1", filetable.MaxChunk, false)
	for _, kept := range []string{"snapshot/2", "pin/x"} {
		if err := r.Store.AddRef(kept, table, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Store.RemoveRef("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		for view, goes := range map[string]bool{"snapshot/1": false, "snapshot/2": true, "": true} {
			ctx, cancel := context.WithCancel(t.Context())
			go r.watch(ctx, Shown{view, table}, cancel)
			time.Sleep(2 * referredEvery)
			if (ctx.Err() == nil) != goes {
				t.Errorf("in view %q: %v, want to go on %v", view, ctx.Err(), goes)
			}
			cancel()
		}
	})
}
