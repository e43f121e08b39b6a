package hydrate

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
)

// TestCompareTargets shuffles targets, and sorts them into the order that loaders have.
func TestCompareTargets(t *testing.T) {
	const mib = 1 << 20
	file := func(name string, size int64) Target {
		return Target{Name: name, Blob: filetable.Blob{Digest: digest.FromString(name), Size: size}, Files: make([]ChunkedFile, 1)}
	}
	part := func(name string, size int64) Target {
		return Target{Name: name, Blob: filetable.Blob{Digest: digest.FromString("part"), Size: size, Archive: filetable.ArchiveFragments}}
	}
	want := []Target{
		{Name: "several small files.safetensors", Files: make([]ChunkedFile, 3), Blob: filetable.Blob{Size: 5 * mib}},
		file("config.json", 1000),
		file("generation_config.json", 2000),
		file("tokenizer.json", 33*mib),
		part("assembled.gguf", 100),
		file("consolidated.00.pth", 900*mib),
		file("corpus.txt", 65*mib),
		file("model-00001-of-00010.safetensors", 500*mib),
		file("model-00002-of-00010.safetensors", 5*mib),
		file("model-00010-of-00010.safetensors", 1),
		file("part-2.GGUF", 10*mib),
		file("part-10.gguf", mib),
		file("part-10b.gguf", mib),
	}
	order := map[digest.Digest]int64{}
	got := slices.Clone(want)
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		r.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortStableFunc(got, func(a, b Target) int { return a.compare(&b, order) })
		names := func(all []Target) (out []string) {
			for _, t := range all {
				out = append(out, t.Name)
			}
			return out
		}
		if diff := cmp.Diff(names(want), names(got)); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	}
}

// TestCompareFragments: fragments of a file come in the order in which it is hashed, whatever their size.
func TestCompareFragments(t *testing.T) {
	a, b := digest.FromString("a"), digest.FromString("b")
	order := fragmentOrder(table([]filetable.Source{{Blob: b, Size: 10}, {Blob: a, Size: 1}}))
	first := Target{Name: "f", Blob: filetable.Blob{Digest: b, Size: 10, Archive: filetable.ArchiveFragments}}
	second := Target{Name: "f", Blob: filetable.Blob{Digest: a, Size: 1, Archive: filetable.ArchiveFragments}}
	if got := first.compare(&second, order); got >= 0 {
		t.Errorf("got %d", got)
	}
}

func TestCompareNames(t *testing.T) {
	for _, tt := range [][2]string{
		{"", "a"}, {"a", "b"}, {"a", "ab"}, {"a2", "a10"}, {"a09", "a10"}, {"2/a", "10/a"}, {"a1", "a1b"}, {"a1b", "a2"},
		{"model-00002-of-00010", "model-00010-of-00010"}, {"a99999999999999999999998", "a99999999999999999999999"}, {"1", "a"}, {"a-1", "a1"},
	} {
		if got := compareNames(tt[0], tt[1]); got >= 0 {
			t.Errorf("%q, %q: got %d", tt[0], tt[1], got)
		}
		if got := compareNames(tt[1], tt[0]); got <= 0 {
			t.Errorf("%q, %q: got %d", tt[1], tt[0], got)
		}
	}
	if got := compareNames("a01", "a1"); got != 0 {
		t.Errorf("the same numbers: got %d", got)
	}
}

// TestUnderWay: the next file starts when this one needs no further buffers, when it has ended, or when it is hashed all
// the time, which is the work of one processor.
func TestUnderWay(t *testing.T) {
	for name, let := range map[string]func(b *blobFetch){
		"served": func(b *blobFetch) { b.flow.Part().Serve() },
		"ended":  func(b *blobFetch) { close(b.done) },
		"hashes": func(b *blobFetch) { b.flow.Part().Enter(transfer.InOrder) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := transfer.NewScheduler(transfer.Options{Connections: 1, Chunk: 1, Readers: 1, Unpackers: 1})
				b := &blobFetch{flow: s.NewFlow(transfer.Background), done: make(chan struct{})}
				over := make(chan struct{})
				go func() {
					defer close(over)
					b.underWay(t.Context())
				}()
				leave := b.flow.Enter(transfer.Network)
				for range 50 {
					synctest.Wait()
					select {
					case <-over:
						t.Fatal("over while it waits for bytes")
					default:
						time.Sleep(hashLook)
					}
				}
				leave()
				let(b)
				<-over
			})
		})
	}
}

// TestScatterTargets: targets that are fetched whole have another order on each engine, after the small ones; fragments of
// a file keep theirs. Files that are hashed whole take part up to a limit.
func TestScatterTargets(t *testing.T) {
	h := &hydration{}
	for i := range 3 {
		h.targets = append(h.targets, Target{Name: "config", Files: make([]ChunkedFile, 1), Blob: filetable.Blob{Size: int64(i)}})
	}
	for i := range 60 {
		b := filetable.Blob{Digest: digest.FromString(string(rune(i))), Size: 1 << 30, Archive: filetable.ArchiveFragments}
		h.targets = append(h.targets, Target{Name: string(rune('a' + i/3)), Blob: b})
	}
	orders := map[string]bool{}
	for range 4 {
		var missing []int
		for i := range h.targets {
			missing = append(missing, i)
		}
		(&Engine{own: maphash.MakeSeed()}).scatter(h, nil, 1, missing)
		for i := 0; i < len(missing); i += 3 {
			if first := missing[i]; first%3 != 0 || missing[i+1] != first+1 || missing[i+2] != first+2 || (i == 0) != (first == 0) {
				t.Fatalf("got %v", missing)
			}
		}
		orders[fmt.Sprint(missing)] = true
	}
	if len(orders) < 4 {
		t.Errorf("four engines have %d orders", len(orders))
	}
	room := int64(10 << 20)
	file := func(size int64, stated bool) *Target {
		return &Target{Blob: filetable.Blob{Size: size}, Files: []ChunkedFile{{Layout: &chunkfile.Layout{Stated: stated}}}}
	}
	for i, tt := range []struct {
		target *Target
		want   bool
	}{
		{file(6<<20, false), true}, {file(6<<20, false), false}, {file(1<<40, true), true}, {file(4<<20, true), false},
		{file(5<<20-1, false), false}, {file(4<<20+1, false), false}, {file(1<<62, false), false}, {&h.targets[5], false},
	} {
		if tt.target.scatters(&room) != tt.want {
			t.Errorf("%d: want %v", i, tt.want)
		}
	}
	if room != 4<<20 {
		t.Errorf("room for %d bytes is left", room)
	}
}
