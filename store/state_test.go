package store_test

import (
	"context"
	"testing"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// state returns the State of a table.
func state(t testing.TB, s *store.Store, table digest.Digest) store.State {
	t.Helper()
	st, err := s.State(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestModelPresence follows a model from absent over partly read to complete, across a restart.
func TestModelPresence(t *testing.T) {
	for _, c := range lazyCases(t) {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			s := storetest.Open(t, dir, store.Options{})
			f := storetest.NewFetcher(c.blob)
			table := c.table.Put(t, s)
			var total int64
			for _, b := range c.files {
				total += int64(len(b))
			}
			if got := state(t, s, table); got.Total != total || got.Done != 0 || got.Begun || !got.Incomplete() {
				t.Errorf("before: got %+v of %d", got, total)
			}
			hold(t, s, table)
			expose := func() {
				if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
					t.Fatal(err)
				}
			}
			expose()
			big := c.files["model/big.bin"]
			if _, err := s.Views.View("").ReadAt(t.Context(), digest.FromBytes(big), make([]byte, 100), int64(len(big)-100)); err != nil {
				t.Fatal(err)
			}
			some := state(t, s, table)
			if some.Total != total || some.Done <= 0 || some.Done >= total {
				t.Errorf("after a read: got %+v of %d", some, total)
			}
			s.Close()
			s = storetest.Open(t, dir, store.Options{})
			if got := state(t, s, table); got.Total != some.Total || got.Done != some.Done || !got.Begun {
				t.Errorf("after a restart: got %+v, want %+v", got, some)
			}
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Fatal(err)
			}
			if got := state(t, s, table); got.Incomplete() || len(got.Files) < len(c.files) {
				t.Errorf("at the end: got %+v", got)
			}
		})
	}
}

// TestAwaited distinguishes awaited work from other work, which stops during a pause.
func TestAwaited(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	p := storetest.Random(6, 9<<20)
	f := storetest.NewFetcher(p)
	table := storetest.NewBuilder("raw").RawChunks("model.bin", p, 0o644, filetable.MaxChunk).Put(t, s)
	s.Pause()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f), Background: true})
	}()
	for !state(t, s, table).Running {
	}
	if state(t, s, table).Awaited {
		t.Error("background work is reported as awaited")
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err) // although background work is paused
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	cancel()
}

// TestChunkUse checks which chunks of a model other models share, before and after it is complete.
func TestChunkUse(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	const mib = 1 << 20
	base := storetest.Random(7, 8*mib)
	tuned := append(append([]byte{}, base[:5*mib]...), storetest.Random(8, 3*mib)...)
	f := storetest.NewFetcher(base, tuned)
	one := storetest.NewBuilder("base").RawChunks("model.bin", base, 0o644, mib).Put(t, s)
	two := storetest.NewBuilder("tuned").RawChunks("model.bin", tuned, 0o644, mib).Put(t, s)
	check := func(when string, table digest.Digest, shared int64) {
		t.Helper()
		got, err := s.ChunkUse(t.Context(), table)
		if diff := cmp.Diff(got, store.ChunkUse{Chunks: 8, Bytes: 8 * mib, Shared: shared}); diff != "" || err != nil {
			t.Errorf("%s: %v (got, want):\n%s", when, err, diff)
		}
	}
	check("nothing is there", two, 0)
	for _, table := range []digest.Digest{one, two} {
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatal(err)
		}
		check("another is there", two, 5*mib)
	}
	check("both are there", one, 5*mib)
}

// TestStateOfNames: a model is complete for those who have given all of its files, also those that a later layer hides.
func TestStateOfNames(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	secret, own := storetest.Random(50, 1<<20), storetest.Random(51, 1<<20)
	model := storetest.NewBuilder("owner").Raw("w", secret, 0o644).Inline("LICENSE", []byte("secret"), 0o644).Raw("empty", nil, 0o644).Put(t, s)
	claim := storetest.NewBuilder("claim").Raw("w", secret, 0o644).Put(t, s)
	mine := storetest.NewBuilder("mine").Raw("w", own, 0o644).Put(t, s)
	hides := storetest.NewBuilder("hides").Raw("w", secret, 0o644).Raw("w", own, 0o644)
	hides.Table().Version, hides.Table().Stacked = filetable.StackedVersion, true
	hidden := hides.Put(t, s)
	for _, table := range []digest.Digest{model, mine} {
		hold(t, s, table)
		from := map[digest.Digest]string{model: "good.example/model", mine: "evil.example/m"}[table]
		f := storetest.Private{Fetcher: storetest.NewFetcher(secret, own, nil)}
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.FromRepository(from, f)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		table    digest.Digest
		names    []string
		complete bool
	}{
		{model, []string{"good.example/model"}, true},
		{model, []string{"evil.example/m", "good.example/model"}, true},
		{model, []string{"evil.example/m"}, false},
		{model, nil, true},
		{claim, []string{"evil.example/m"}, false},
		{mine, []string{"evil.example/m"}, true},
		{hidden, []string{"evil.example/m"}, false},
		{hidden, nil, true},
	} {
		st, err := s.State(t.Context(), tt.table, tt.names...)
		if err != nil || st.Incomplete() == tt.complete {
			t.Errorf("%s for %q: got %+v, %v, want complete %t", tt.table, tt.names, st, err, tt.complete)
		}
	}
}
