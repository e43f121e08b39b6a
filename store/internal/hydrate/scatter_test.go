package hydrate_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

// A recorder is a Fetcher that records what it is asked for, and takes a tenth of a second to answer.
type recorder struct {
	*storetest.Fetcher
	names map[digest.Digest]string

	mu    sync.Mutex
	asked []string
}

func (f *recorder) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	f.mu.Lock()
	f.asked = append(f.asked, fmt.Sprint(f.names[d], " ", off/filetable.MaxChunk))
	f.mu.Unlock()
	time.Sleep(time.Second / 10)
	return f.Fetcher.Fetch(ctx, d, size, off, n)
}

// swarm is a mirror of which nodes share pieces.
func swarm() *transfer.Endpoint {
	return &transfer.Endpoint{Name: "http://swarm", Mirror: true, Patience: -1, Piece: filetable.MaxChunk, Counts: &transfer.Counts{}}
}

// inversions returns how many pairs are in another order in b than in a.
func inversions(a, b []string) (n int) {
	for i := range a {
		for j := range i {
			if slices.Index(b, a[j]) > slices.Index(b, a[i]) {
				n++
			}
		}
	}
	return n
}

// TestScatter: through a mirror of which nodes share pieces, each engine fetches large files in an order of its own,
// after the small ones and the heads; otherwise all have the order that loaders have.
func TestScatter(t *testing.T) {
	const shards, chunks = 8, 3
	for _, kind := range []string{"raw", "states"} {
		b, config := storetest.NewBuilder(kind), storetest.Random(100, 1000)
		b.Raw("config.json", config, 0o644)
		order := []string{"config 0"}
		names, all := map[digest.Digest]string{digest.FromBytes(config): "config"}, [][]byte{config}
		for i := range shards {
			p := storetest.Random(uint64(i), chunks*filetable.MaxChunk)
			names[digest.FromBytes(p)] = fmt.Sprint(i)
			all = append(all, p)
			for g := range chunks {
				order = append(order, fmt.Sprint(i, " ", g))
			}
			if path := fmt.Sprint(i, ".safetensors"); kind == "raw" {
				b.Raw(path, p, 0o644)
			} else {
				b.RawChunks(path, p, 0o644, filetable.MaxChunk).Stated(t, p)
			}
		}
		pull := func(t *testing.T, e *transfer.Endpoint) []string {
			f := &recorder{Fetcher: storetest.NewFetcher(all...), names: names}
			err := <-start(t).pull(t.Context(), b, hydrate.Options{Sources: []transfer.Source{{Name: "test/model", Endpoint: e, Fetcher: f}}})
			if err != nil {
				t.Fatal(err)
			}
			if len(f.asked) != shards*chunks+1 {
				t.Fatalf("%d requests, want %d", len(f.asked), shards*chunks+1)
			}
			return f.asked
		}
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const few = 30 // of 138, with a deviation of 20, in a random order; what runs together comes in any order
				if asked := pull(t, nil); kind == "raw" && inversions(order, asked) > few {
					t.Errorf("without a mirror: %q", asked)
				}
				one, two := pull(t, swarm()), pull(t, swarm())
				if n := inversions(one, two); n < few {
					t.Errorf("two engines differ in %d pairs only:\n%q\n%q", n, one, two)
				}
				for _, asked := range [][]string{one, two} {
					first := asked[:shards+1] // which run together
					for i := range shards {
						if kind == "states" && !slices.Contains(first, fmt.Sprint(i, " 0")) {
							t.Errorf("it begins without the head of %d: %q", i, first)
						}
					}
					if !slices.Contains(first, "config 0") {
						t.Errorf("it begins without the small file: %q", first)
					}
				}
			})
		})
	}
}

// TestScatteredLie: a file without chunk digests of which a mirror gives wrong bytes is fetched from there once.
func TestScatteredLie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := storetest.Random(1, 4*filetable.MaxChunk)
		lying, right := storetest.NewFetcher(p), storetest.NewFetcher(p)
		lying.Mangle = func(off int64, body []byte) { body[0] ^= 1 }
		from := []transfer.Source{{Name: "test/model", Endpoint: swarm(), Fetcher: lying}, {Name: "test/model", Fetcher: right}}
		err := <-start(t).pull(t.Context(), storetest.NewBuilder("m").Raw("model.gguf", p, 0o644), hydrate.Options{Sources: from})
		if err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(p)
		if n, m := lying.Sent(d), right.Sent(d); n != int64(len(p)) || m != int64(len(p)) {
			t.Errorf("the mirror sent %d bytes and the registry %d, want %d each", n, m, len(p))
		}
		if n := from[0].Endpoint.Counts.Wrong.Load(); n != 1 {
			t.Errorf("%d wrong files, want 1", n)
		}
	})
}

// TestScatterReaderFirst: what a reader waits for comes before the order of the node.
func TestScatterReaderFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards, chunks = 4, 4
		b, f := storetest.NewBuilder("m"), &recorder{Fetcher: storetest.NewFetcher(), names: map[digest.Digest]string{}}
		var last digest.Digest
		for i := range shards {
			p := storetest.Random(uint64(i), chunks*filetable.MaxChunk)
			last = digest.FromBytes(p)
			f.Blobs[last], f.names[last] = p, fmt.Sprint(i)
			b.Raw(fmt.Sprint(i, ".safetensors"), p, 0o644)
		}
		h := start(t)
		done := h.pull(t.Context(), b, hydrate.Options{Background: true, Sources: []transfer.Source{{Name: "test/model", Endpoint: swarm(), Fetcher: f}}})
		time.Sleep(time.Second / 20)
		h.Await(b.Table().Origin.Digest, last)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i := range chunks {
			if at := slices.Index(f.asked, fmt.Sprint(shards-1, " ", i)); at > chunks+4 {
				t.Errorf("chunk %d of the file that a reader waits for is request %d: %q", i, at, f.asked)
			}
		}
	})
}
