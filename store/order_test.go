package store_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// chunk is the size of the chunks, and therefore of the groups, of the models below.
const chunk = filetable.MaxChunk

// shards returns a model of two files of 8 chunks, and their contents.
func shards(name string) (b *storetest.Builder, one, two []byte) {
	one, two = storetest.Random(71, 8*chunk), storetest.Random(72, 8*chunk)
	return storetest.NewBuilder(name).RawChunks("one", one, 0o644, chunk).RawChunks("two", two, 0o644, chunk), one, two
}

// orderOf returns the order of a table for users of a repository, in chunks.
func orderOf(t *testing.T, s *store.Store, table digest.Digest, repository string) (ranges []filetable.Range) {
	t.Helper()
	o, err := s.Order(table, repository)
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	for _, r := range o.Ranges {
		ranges = append(ranges, filetable.Range{Path: r.Path, Offset: r.Offset / chunk, Size: r.Size / chunk})
	}
	return ranges
}

// TestOrderIsRecorded: the first reads of an incomplete model are recorded in their order, for the users of its sources
// only. The record survives a restart and a new pull, which add to it, and goes with the table.
func TestOrderIsRecorded(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{Reserve: 1})
	b, one, two := shards("m")
	f := storetest.NewFetcher(one, two)
	own, other := storetest.FromRepository("own/model", f), storetest.FromRepository("other/model", f)
	v, table := viewed(t, s, "snapshot/1", b, store.ExposeOptions{Sources: own})
	read := func(v store.View, p []byte, first, last int) {
		t.Helper()
		for g := first; g <= last; g++ {
			for _, off := range []int{g*chunk + 5, g * chunk} { // a chunk counts once
				if _, err := v.ReadAt(t.Context(), digest.FromBytes(p), make([]byte, 100), int64(off)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if got := orderOf(t, s, table, "own/model"); got != nil {
		t.Errorf("before a read: %v", got)
	}
	read(v, two, 6, 7)
	read(v, one, 3, 3)
	read(v, two, 0, 0)
	read(v, two, 6, 7)
	want := []filetable.Range{{Path: "two", Offset: 6, Size: 2}, {Path: "one", Offset: 3, Size: 1}, {Path: "two", Offset: 0, Size: 1}}
	check := func(when, repository string, want []filetable.Range) {
		t.Helper()
		if diff := cmp.Diff(want, orderOf(t, s, table, repository)); diff != "" {
			t.Errorf("%s: %s", when, diff)
		}
	}
	check("read", "own/model", want)

	// Another tenant has the model from elsewhere, and reads it in another order.
	stranger, _ := viewed(t, s, "snapshot/2", b, store.ExposeOptions{Sources: other})
	check("of another tenant", "other/model", nil)
	read(stranger, one, 0, 1)
	check("after reads of another tenant", "own/model", want)
	check("of another tenant", "other/model", []filetable.Range{{Path: "one", Offset: 0, Size: 2}})

	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{Reserve: 1})
	check("after a restart", "own/model", want)
	v, _ = viewed(t, s, "snapshot/1", b, store.ExposeOptions{Sources: own})
	read(v, one, 3, 4)
	want[1].Size = 2
	check("after another read", "own/model", want)

	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: own}); err != nil {
		t.Fatal(err)
	}
	check("complete", "own/model", want)
	if err := s.RemoveRef("snapshot/1", "snapshot/2"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // records of what the first one removes go with the second
		if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	check("collected", "own/model", nil)
}

// TestFirstRead: the first read of an incomplete model is known when it has its bytes, or when it waits for a whole
// file; those of users of other sources do not count.
func TestFirstRead(t *testing.T) {
	for _, whole := range []bool{false, true} {
		s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
		b, p, _ := shards("m")
		if whole {
			p = storetest.Random(7, chunk)
			b = storetest.NewBuilder("m").Raw("whole", p, 0o644)
		}
		f := storetest.NewFetcher(p)
		own, other := storetest.FromRepository("own/model", f), storetest.FromRepository("other/model", f)
		v, table := viewed(t, s, "snapshot/1", b, store.ExposeOptions{Sources: own, Wait: whole})
		if s.FirstRead(table, other) != nil {
			t.Error("a model that nobody has from a repository will be read from there")
		}
		viewed(t, s, "snapshot/2", b, store.ExposeOptions{Sources: other, Wait: whole})
		first := s.FirstRead(table, own)
		select {
		case <-first:
			t.Error("read before it is read")
		default:
		}
		ctx, cancel := context.WithCancel(t.Context())
		read := make(chan error)
		go func() {
			_, err := v.ReadAt(ctx, digest.FromBytes(p), make([]byte, 1), 0)
			read <- err
		}()
		if !whole {
			if err := <-read; err != nil {
				t.Error(err)
			}
		}
		<-first
		cancel()
		if whole {
			<-read
		}
		select {
		case <-s.FirstRead(table, other):
			t.Error("the read of another tenant counts")
		default:
		}
	}
}

// TestOrderOfWhatTheModelHas: an order from outside is kept as far as it fits.
func TestOrderOfWhatTheModelHas(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
	b, one, two := shards("m")
	table := b.Put(t, s)
	if err := s.AddRef("pin/m", table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	sources := storetest.FromRepository("own/model", storetest.NewFetcher(one, two))
	put := func(ranges ...filetable.Range) error {
		return s.PutOrder(table, sources, filetable.Order{Version: filetable.OrderVersion, Ranges: ranges})
	}
	if err := put(filetable.Range{Path: "three", Size: chunk}, filetable.Range{Path: "one", Offset: 9 * chunk, Size: 1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an order of another model: %v", err)
	}
	if s.HasOrder(table, sources) {
		t.Error("it is kept")
	}
	if err := put(filetable.Range{Path: "three", Size: chunk}, filetable.Range{Path: "two", Offset: 7 * chunk, Size: 5 * chunk}); err != nil {
		t.Fatal(err)
	}
	if got := orderOf(t, s, table, "own/model"); !cmp.Equal(got, []filetable.Range{{Path: "two", Offset: 7, Size: 1}}) {
		t.Errorf("kept: %v", got)
	}
	if !s.HasOrder(table, sources) || s.HasOrder(table, []transfer.Source{{Name: "other/model"}}) {
		t.Error("the order is not that of its sources")
	}

	// One that comes while the model is read replaces what was recorded, and grows by what it does not have.
	v, _ := viewed(t, s, "snapshot/1", b, store.ExposeOptions{Sources: sources})
	read := func(g int) {
		t.Helper()
		if _, err := v.ReadAt(t.Context(), digest.FromBytes(two), make([]byte, 10), int64(g*chunk)); err != nil {
			t.Fatal(err)
		}
	}
	read(1)
	if err := put(filetable.Range{Path: "two", Offset: 3 * chunk, Size: 2 * chunk}); err != nil {
		t.Fatal(err)
	}
	for _, g := range []int{0, 4, 3, 6} {
		read(g)
	}
	want := []filetable.Range{{Path: "two", Offset: 3, Size: 2}, {Path: "two", Offset: 0, Size: 1}, {Path: "two", Offset: 6, Size: 1}}
	if diff := cmp.Diff(want, orderOf(t, s, table, "own/model")); diff != "" {
		t.Error(diff)
	}
}

// asking is a Fetcher that records the chunks that it is asked for, as "one 3".
type asking struct {
	*storetest.Fetcher
	names map[digest.Digest]string

	mu    sync.Mutex
	asked []string
}

func (f *asking) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	f.mu.Lock()
	f.asked = append(f.asked, fmt.Sprint(f.names[d], " ", off/chunk))
	f.mu.Unlock()
	return f.Fetcher.Fetch(ctx, d, size, off, n)
}

// TestHydrateInOrder: what the order has comes first, across files and small files before, then the rest. The order is
// only a hint: the model becomes complete, also from a server without ranges.
func TestHydrateInOrder(t *testing.T) {
	b, one, two := shards("m")
	small, last := storetest.Random(73, 1000), storetest.Random(74, 900)
	b.RawChunks("small", small, 0o644, chunk).RawChunks("last", last, 0o644, chunk)
	order := filetable.Order{Version: filetable.OrderVersion, Ranges: []filetable.Range{
		{Path: "two", Offset: 6*chunk + 1, Size: chunk}, {Path: "small", Size: 1000}, {Path: "one", Offset: 7 * chunk, Size: chunk},
		{Path: "two", Offset: 0, Size: 3 * chunk}, {Path: "one", Offset: 7 * chunk, Size: 1}, {Path: "one", Offset: 2 * chunk, Size: 1},
	}}
	for _, background := range []bool{true, false} {
		for _, noRanges := range []bool{false, true} {
			t.Run(fmt.Sprintf("background %v, no ranges %v", background, noRanges), func(t *testing.T) {
				s := storetest.Open(t, t.TempDir(), store.Options{Connections: 1})
				f := &asking{Fetcher: storetest.NewFetcher(one, two, small, last), names: map[digest.Digest]string{
					digest.FromBytes(one): "one", digest.FromBytes(two): "two", digest.FromBytes(small): "small", digest.FromBytes(last): "last",
				}}
				f.NoRanges = noRanges
				table, from := b.Put(t, s), storetest.From(f)
				hold(t, s, table)
				if err := s.PutOrder(table, from, order); err != nil {
					t.Fatal(err)
				}
				var progress []store.Progress
				err := s.Hydrate(t.Context(), table, store.HydrateOptions{
					Sources: from, Background: background, Progress: func(p []store.Progress) { progress = p },
				})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Views.Files(table); err != nil {
					t.Error(err)
				}
				if noRanges {
					return
				}
				if len(f.asked) != 18 {
					t.Errorf("%d requests, not 18: %v", len(f.asked), f.asked)
				}
				want := []string{"small 0", "two 6", "two 7", "one 7", "two 0", "two 1", "two 2", "one 2"}
				for i, part := range want { // one connection, two buffers, and the small file has its own goroutine
					if at := slices.Index(f.asked, part); at < i-4 || at > i+4 {
						t.Errorf("%s is request %d, not %d: %v", part, at, i, f.asked)
					}
				}
				for _, p := range progress {
					if p.Registries != p.Total {
						t.Errorf("%s: %d of %d bytes came from registries", p.Name, p.Registries, p.Total)
					}
				}
			})
		}
	}
}

// allocated returns the bytes that do allocates.
func allocated(do func() error) (bytes uint64, err error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before := m.TotalAlloc
	err = do()
	runtime.ReadMemStats(&m)
	return m.TotalAlloc - before, err
}

// TestOrderOfWholeFiles: an order costs what the model has, not what its ranges name together. Strangers write
// orders, and nothing of the model need exist: here 8,192 ranges each name a file of 4,000 chunks that lie far apart.
func TestOrderOfWholeFiles(t *testing.T) {
	const chunks, part, limit = 4000, 1300, 64 << 20
	blob, content := digest.FromString("blob"), digest.FromString("content")
	model := func(paths int) *filetable.Table {
		b := storetest.NewBuilder("m")
		src := &filetable.Source{Blob: blob}
		for i := range int64(chunks) {
			src.Chunks = append(src.Chunks, filetable.Chunk{Offset: i * part, Size: part, At: i * 100_000, Len: part, Digest: digest.FromString(fmt.Sprint(i))})
		}
		f := filetable.File{Path: "0", Type: filetable.TypeReg, Mode: 0o644, Size: chunks * part, Digest: content, Source: src}
		b.File(f)
		tb := b.Table()
		tb.Blobs = append(tb.Blobs, filetable.Blob{Digest: blob, Size: chunks * 100_000, Archive: filetable.ArchiveChunks})
		if paths > 1 { // the same content once more, as a blob without chunks
			tb.Blobs = append(tb.Blobs, filetable.Blob{Digest: content, Size: f.Size, Layer: 1})
			f.Source = &filetable.Source{Blob: content, Size: f.Size}
		}
		for i := 1; i < paths; i++ {
			f.Path = fmt.Sprint(i)
			b.File(f)
		}
		return b.Table()
	}
	for name, paths := range map[string]int{"of one path": 1, "of paths of one content": filetable.MaxOrderRanges} {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1})
			p, err := model(paths).Encode()
			if err != nil {
				t.Fatal(err)
			}
			table, err := s.PutTable(p)
			if err != nil {
				t.Fatal(err)
			}
			hold(t, s, table)
			o := filetable.Order{Version: filetable.OrderVersion}
			for i := range filetable.MaxOrderRanges {
				o.Ranges = append(o.Ranges, filetable.Range{Path: fmt.Sprint(i % paths), Size: chunks * part})
			}
			from := storetest.From(storetest.NewFetcher())
			none, err := allocated(func() error { return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}) })
			if err == nil {
				t.Fatal("the model is complete")
			}
			if err := s.PutOrder(table, from, o); err != nil {
				t.Fatal(err)
			}
			n, err := allocated(func() error { return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}) })
			if err == nil {
				t.Fatal("the model is complete")
			}
			t.Logf("%d MiB are allocated, %d MiB without an order", n>>20, none>>20)
			if n > none+limit {
				t.Errorf("the order costs %d MiB", (n-none)>>20)
			}
		})
	}
}
