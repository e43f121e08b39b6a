package store_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// A loaded is a file of a model: its first bytes, the rest is random.
type loaded struct {
	path, head string
	chunks     int // and a few bytes
}

// begins are the first bytes of a safetensors file whose header has n bytes.
func begins(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) + "{" }

// sized is a Sniffer of a header of a number of bytes.
type sized struct{ left int64 }

func (s *sized) Write(p []byte) (int, error) { s.left -= int64(len(p)); return len(p), nil }
func (s *sized) Done() bool                  { return s.left <= 0 }

// asks hydrates a model of files, and returns what the registry is asked for, as "model.gguf 3". The header of GGUF
// files has a size in chunks.
func asks(t *testing.T, converted, background bool, gguf int, files ...loaded) []string {
	t.Helper()
	return asksWith(t, nil, converted, background, gguf, files...)
}

// asksWith is asks with a recorded order.
func asksWith(t *testing.T, order []filetable.Range, converted, background bool, gguf int, files ...loaded) []string {
	t.Helper()
	b := storetest.NewBuilder("m")
	f := &asking{names: map[digest.Digest]string{}}
	var all [][]byte
	for i, x := range files {
		p := storetest.Random(uint64(90+i), x.chunks*chunk+5+i)
		copy(p, x.head)
		if converted {
			b.RawChunks(x.path, p, 0o644, chunk)
		} else {
			b.Raw(x.path, p, 0o644)
		}
		all = append(all, p)
		f.names[digest.FromBytes(p)] = x.path
	}
	if converted {
		b.Stated(t, all...)
	}
	f.Fetcher = storetest.NewFetcher(all...)
	s := storetest.Open(t, t.TempDir(), store.Options{
		Connections: 1, Reserve: 1, GGUF: func(int64) store.Sniffer { return &sized{int64(gguf) * chunk} },
	})
	table, from := b.Put(t, s), storetest.From(f)
	hold(t, s, table)
	if order != nil {
		if err := s.PutOrder(table, from, filetable.Order{Version: filetable.OrderVersion, Ranges: order}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from, Background: background}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Views.Files(table); err != nil {
		t.Error(err)
	}
	return f.asked
}

// list returns requests for chunks of a file.
func list(path string, chunks ...int) (all []string) {
	for _, c := range chunks {
		all = append(all, fmt.Sprint(path, " ", c))
	}
	return all
}

// inTurn checks that requests come in an order, each once. There is one connection with two buffers, and each request
// has a goroutine of its own, so neighbours may change places.
func inTurn(t *testing.T, got []string, want ...[]string) {
	t.Helper()
	all := slices.Concat(want...)
	if len(got) != len(all) {
		t.Errorf("%d requests, want %d", len(got), len(all))
	}
	for i, part := range all {
		if at := slices.Index(got, part); at < i-4 || at > i+4 {
			t.Errorf("%s is request %d, not %d", part, at, i)
		}
	}
	if t.Failed() {
		t.Logf("got:\n%s\nwant:\n%s", strings.Join(got, ", "), strings.Join(all, ", "))
	}
}

// TestLoaderOrder: without a recorded order, small files come first, then the heads of all weights, then the weights by
// name, each from its begin to its end. A shard does not come first because it is small. Of files that are verified only
// as a whole there is no head.
func TestLoaderOrder(t *testing.T) {
	files := []loaded{
		{"model-10.safetensors", begins(1000), 1},
		{"model-2.safetensors", begins(chunk), 3},
		{"model-1.safetensors", begins(100), 4},
		{"b.gguf", "GGUF", 5},
		{"a.bin", "PK\x03\x04", 4},
		{"tokenizer.json", "{", 2},
		{"config.json", "{", 0},
	}
	for _, background := range []bool{false, true} {
		t.Run(fmt.Sprintf("converted, background %v", background), func(t *testing.T) {
			inTurn(t, asks(t, true, background, 3, files...),
				list("config.json", 0), list("tokenizer.json", 0, 1, 2),
				list("a.bin", 0), list("b.gguf", 0), list("model-1.safetensors", 0), list("model-2.safetensors", 0), list("model-10.safetensors", 0),
				list("a.bin", 3, 4), list("b.gguf", 1), list("model-2.safetensors", 1), list("b.gguf", 2, 3),
				list("a.bin", 1, 2), list("b.gguf", 4, 5), list("model-1.safetensors", 1, 2, 3, 4),
				list("model-2.safetensors", 2, 3), list("model-10.safetensors", 1),
			)
		})
		t.Run(fmt.Sprintf("unconverted, background %v", background), func(t *testing.T) {
			inTurn(t, asks(t, false, background, 3, files...),
				list("config.json", 0), list("tokenizer.json", 0, 1, 2), list("a.bin", 0, 1, 2, 3, 4), list("b.gguf", 0, 1, 2, 3, 4, 5),
				list("model-1.safetensors", 0, 1, 2, 3, 4), list("model-2.safetensors", 0, 1, 2, 3), list("model-10.safetensors", 0, 1),
			)
		})
		t.Run(fmt.Sprintf("after a short recorded order, background %v", background), func(t *testing.T) {
			order := []filetable.Range{{Path: "tokenizer.json", Size: 5}, {Path: "model-2.safetensors", Offset: 2 * chunk, Size: 1}}
			inTurn(t, asksWith(t, order, true, background, 3, files...),
				list("tokenizer.json", 0, 1, 2), list("model-2.safetensors", 2), list("config.json", 0),
				list("a.bin", 0), list("b.gguf", 0), list("model-1.safetensors", 0), list("model-2.safetensors", 0), list("model-10.safetensors", 0),
				list("a.bin", 3, 4), list("b.gguf", 1), list("model-2.safetensors", 1), list("b.gguf", 2, 3),
				list("model-2.safetensors", 3), list("a.bin", 1, 2), list("b.gguf", 4, 5), list("model-1.safetensors", 1, 2, 3, 4),
				list("model-10.safetensors", 1),
			)
		})
	}
}

// TestHostileHeads: heads that lie about their length decide nothing, and each chunk is asked for once.
func TestHostileHeads(t *testing.T) {
	all := func(first, last int) (chunks []int) {
		for c := first; c <= last; c++ {
			chunks = append(chunks, c)
		}
		return chunks
	}
	for name, head := range map[string]string{
		"of no bytes":          begins(0),
		"beyond the file":      begins(8*chunk + 6 - 8 + 1),
		"beyond the format":    begins(100_000_001),
		"of a negative length": begins(math.MaxUint64),
		"that overflows":       begins(math.MaxInt64 - 3),
		"that is not JSON":     string(binary.LittleEndian.AppendUint64(nil, 8*chunk)) + "[",
	} {
		t.Run(name, func(t *testing.T) {
			inTurn(t, asks(t, true, false, 0, loaded{"a.safetensors", begins(10), 2}, loaded{"b.safetensors", head, 8}),
				list("a.safetensors", 0), list("b.safetensors", 0), list("a.safetensors", 1, 2), list("b.safetensors", all(1, 8)...))
		})
	}
	t.Run("as long as the file", func(t *testing.T) {
		inTurn(t, asks(t, true, false, 0, loaded{"a.safetensors", begins(10), 2}, loaded{"b.safetensors", begins(8*chunk + 6 - 8), 8}),
			list("a.safetensors", 0), list("b.safetensors", all(0, 8)...), list("a.safetensors", 1, 2))
	})
	t.Run("of a GGUF file without an end", func(t *testing.T) {
		inTurn(t, asks(t, true, false, 1<<20, loaded{"a.safetensors", begins(10), 2}, loaded{"b.gguf", "GGUF", 40}),
			list("a.safetensors", 0), list("b.gguf", all(0, 31)...), list("a.safetensors", 1, 2), list("b.gguf", all(32, 40)...))
	})
}

// TestReaderOfHeads: a reader of the first head makes those that follow arrive before it needs them, also while background
// work is paused and whether it reads before the download begins or afterwards, and its reads of other parts come at once.
func TestReaderOfHeads(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("before the download %v", early), func(t *testing.T) { readHeads(t, early) })
	}
}

func readHeads(t *testing.T, early bool) {
	s := storetest.Open(t, t.TempDir(), store.Options{Connections: 1, Reserve: 1})
	b, f := storetest.NewBuilder("m"), &asking{names: map[digest.Digest]string{}}
	var all [][]byte
	for i, name := range []string{"a.safetensors", "b.safetensors", "c.safetensors"} {
		p := storetest.Random(uint64(70+i), 3*chunk)
		copy(p, begins(100))
		b.RawChunks(name, p, 0o644, chunk)
		all = append(all, p)
		f.names[digest.FromBytes(p)] = name
	}
	f.Fetcher = storetest.NewFetcher(all...)
	from := storetest.From(f)
	v, table := viewed(t, s, "snapshot/1", b.Stated(t, all...), store.ExposeOptions{Sources: from})
	s.Pause()
	var g errgroup.Group
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); _ = g.Wait() }()
	begin := func() {
		g.Go(func() error { return s.Hydrate(ctx, table, store.HydrateOptions{Sources: from, Background: true}) })
	}
	if !early {
		begin()
	}
	read := func(i, c int) {
		t.Helper()
		if _, err := v.ReadAt(t.Context(), digest.FromBytes(all[i]), make([]byte, 100), int64(c)*chunk); err != nil {
			t.Fatal(err)
		}
	}
	read(2, 2) // the last part of the last file, while nothing else moves
	asked := func() []string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Clone(f.asked)
	}
	if diff := cmp.Diff(list("c.safetensors", 2), asked()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if early {
		read(0, 0)
		begin()
	}
	want := slices.Concat(list("c.safetensors", 2), list("a.safetensors", 0), list("b.safetensors", 0), list("c.safetensors", 0))
	for end := time.Now().Add(20 * time.Second); len(asked()) < len(want) && time.Now().Before(end); {
		read(0, 0) // again, until the download has begun
		time.Sleep(10 * time.Millisecond)
	}
	got := asked()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
