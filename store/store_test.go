package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

func modelTar(t *testing.T, weights []byte) []byte {
	return storetest.Tar(t, []tar.Header{
		{Name: "model/", Typeflag: tar.TypeDir, Mode: 0o750},
		{Name: "model/weights.bin", Mode: 0o640},
		{Name: "model/config.json", Mode: 0o644},
		{Name: "model/empty", Mode: 0o600},
		{Name: "model/hard", Typeflag: tar.TypeLink, Linkname: "model/config.json"},
		{Name: "model/link", Typeflag: tar.TypeSymlink, Linkname: "weights.bin"},
	}, [][]byte{nil, weights, []byte(`{"a":1}`), {}, nil, nil})
}

// content reads all files of a complete table: path → content.
func content(t *testing.T, s *store.Store, table digest.Digest) map[string]string {
	t.Helper()
	files, err := s.Views.Files(table)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range files {
		if f.Type != filetable.TypeReg {
			out[f.Path] = f.Type + ":" + f.Target
			continue
		}
		r, err := s.OpenObject(f.Digest, nil)
		if err != nil {
			t.Fatal(err)
		}
		p, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[f.Path] = string(p)
	}
	return out
}

// leftovers lists what is below partial.
func leftovers(t *testing.T, s *store.Store) (out []string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // removed after Hydrate has returned
		out = nil
		filepath.WalkDir(filepath.Join(s.Dir(), "partial"), func(p string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				out = append(out, p)
			}
			return nil
		})
		if len(out) == 0 || time.Now().After(end) {
			return out
		}
	}
}

func TestHydrateEveryKindOfBlob(t *testing.T) {
	weights := storetest.Random(1, 9<<20+17) // crosses chunks
	plain := modelTar(t, weights)
	want := map[string]string{
		"model": "dir:", "model/weights.bin": string(weights), "model/config.json": `{"a":1}`,
		"model/empty": "", "model/hard": `{"a":1}`, "model/link": "symlink:weights.bin",
	}
	for _, tc := range []struct {
		name  string
		blob  []byte
		build func(b *storetest.Builder, blob []byte)
		want  map[string]string
	}{
		{"raw", weights, func(b *storetest.Builder, p []byte) { b.Raw("w.bin", p, 0o644) }, map[string]string{"w.bin": string(weights)}},
		{"raw empty", nil, func(b *storetest.Builder, p []byte) { b.Raw("e", p, 0o644) }, map[string]string{"e": ""}},
		{"tar", plain, func(b *storetest.Builder, p []byte) { b.Tar(t, p) }, want},
		{"tar gzip", storetest.Compress(t, plain, filetable.CodecGzip), func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecGzip, "") }, want},
		{"tar zstd", storetest.Compress(t, plain, filetable.CodecZstd), func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecZstd, "") }, want},
	} {
		for _, ranges := range []string{"ranges", "no ranges"} {
			t.Run(tc.name+" "+ranges, func(t *testing.T) {
				s := storetest.Open(t, t.TempDir(), store.Options{})
				b := storetest.NewBuilder(tc.name)
				tc.build(b, tc.blob)
				table := b.Inline("README", []byte("hi"), 0o644).Put(t, s)
				f := storetest.NewFetcher(tc.blob)
				f.NoRanges = ranges == "no ranges"
				var last []store.Progress
				err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f), Progress: func(p []store.Progress) { last = p }})
				if err != nil {
					t.Fatal(err)
				}
				wanted := map[string]string{"README": "hi"}
				for k, v := range tc.want {
					wanted[k] = v
				}
				if got := content(t, s, table); !cmp.Equal(got, wanted) {
					for k := range wanted {
						if got[k] != wanted[k] {
							t.Errorf("%s: %d bytes, want %d, or other bytes", k, len(got[k]), len(wanted[k]))
						}
					}
					t.Fatalf("files differ: %d, want %d", len(got), len(wanted))
				}
				if got := leftovers(t, s); len(got) > 0 {
					t.Errorf("left over: %v", got)
				}
				want := "complete"
				if len(tc.blob) == 0 { // an empty file is not requested
					want = "present"
				}
				if len(last) != 1 || last[0].State != want || last[0].Done != int64(len(tc.blob)) {
					t.Errorf("progress %+v, want %s", last, want)
				}
				sent := f.Sent(digest.FromBytes(tc.blob))
				if sent > int64(len(tc.blob)) && !f.NoRanges {
					t.Errorf("%d bytes fetched of %d", sent, len(tc.blob))
				}
				// A second Hydrate fetches nothing.
				if err := s.Hydrate(t.Context(), table, store.HydrateOptions{}); err != nil {
					t.Fatal(err)
				}
				bad, err := s.Check(t.Context(), "", nil)
				if err != nil || len(bad) > 0 {
					t.Errorf("check: %v %v", bad, err)
				}
			})
		}
	}
}

func TestSameFileInManyFormatsIsOneObject(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	weights := storetest.Random(2, 5<<20)
	one := func(name string) []byte {
		return storetest.Tar(t, []tar.Header{{Name: name, Mode: 0o644}}, [][]byte{weights})
	}
	for i, b := range []*storetest.Builder{
		storetest.NewBuilder("a").Raw("model.gguf", weights, 0o644),
		storetest.NewBuilder("b").Tar(t, one("b.gguf")),
		storetest.NewBuilder("c").Unpack(storetest.Compress(t, one("c.gguf"), filetable.CodecGzip), filetable.CodecGzip, ""),
		storetest.NewBuilder("d").Unpack(storetest.Compress(t, one("d.gguf"), filetable.CodecZstd), filetable.CodecZstd, "sub/d.gguf"),
	} {
		f := storetest.NewFetcher(weights, one("b.gguf"), storetest.Compress(t, one("c.gguf"), filetable.CodecGzip), storetest.Compress(t, one("d.gguf"), filetable.CodecZstd))
		table := b.Put(t, s)
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddRef("pin/"+string(rune('a'+i)), table, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	u, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	// The weights once, and four tables.
	tables := u.Unique - int64(len(weights))
	want := store.Usage{Logical: 4 * int64(len(weights)), Unique: u.Unique, Saved: 3*int64(len(weights)) - tables, Objects: 5, Free: u.Free, Capacity: u.Capacity}
	if diff := cmp.Diff(u, want); diff != "" || tables <= 0 || tables > 8<<10 {
		t.Errorf("usage, with %d bytes of tables (-got +want):\n%s", tables, diff)
	}
	refs := s.Catalog.Refs("pin/")
	var total int64
	for _, r := range refs {
		total += r.Size
	}
	if total != u.Unique {
		t.Errorf("references count %d bytes, objects have %d", total, u.Unique)
	}
	// The first table is removed; the second one keeps the weights.
	if err := s.RemoveRef("pin/a"); err != nil {
		t.Fatal(err)
	}
	r, err := s.Catalog.Ref("pin/b")
	if err != nil || r.Size < int64(len(weights)) {
		t.Errorf("after removal: %+v, %v", r, err)
	}
}

// interrupted fetches the first n bytes of the blob of a table, and closes the store.
func interrupted(t *testing.T, s *store.Store, table digest.Digest, blob []byte, n int64) *storetest.Fetcher {
	t.Helper()
	f := storetest.NewFetcher(blob)
	f.Allow = func(off, _ int64) bool { return off < n }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := later(func() error { return s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)}) })
	waitFor(t, "the first part is staged", func() bool { return state(t, s, table).Done >= n })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestResumeFetchesOnlyWhatIsMissing(t *testing.T) {
	weights := storetest.Random(3, 40<<20)
	plain := modelTar(t, weights)
	for _, tc := range []struct {
		name  string
		blob  []byte
		build func(*storetest.Builder, []byte)
	}{
		{"raw", weights, func(b *storetest.Builder, p []byte) { b.Raw("w", p, 0o644) }},
		{"tar", plain, func(b *storetest.Builder, p []byte) { b.Tar(t, p) }},
		{"tar gzip", storetest.Compress(t, plain, filetable.CodecGzip), func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecGzip, "") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			s := storetest.Open(t, dir, store.Options{})
			b := storetest.NewBuilder(tc.name)
			tc.build(b, tc.blob)
			table := b.Put(t, s)
			d := digest.FromBytes(tc.blob)
			f := interrupted(t, s, table, tc.blob, 20<<20)

			s = storetest.Open(t, dir, store.Options{})
			g := storetest.NewFetcher(tc.blob)
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(g)}); err != nil {
				t.Fatal(err)
			}
			if total := f.Sent(d) + g.Sent(d); total != int64(len(tc.blob)) {
				t.Errorf("%d + %d bytes crossed the wire for a blob of %d", f.Sent(d), g.Sent(d), len(tc.blob))
			}
			if bad, err := s.Check(t.Context(), "", nil); err != nil || len(bad) > 0 {
				t.Errorf("check: %v %v", bad, err)
			}
		})
	}
}

func TestAfterARebootOnlySyncedChunksCount(t *testing.T) {
	weights := storetest.Random(4, 16<<20)
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	d := digest.FromBytes(weights)
	interrupted(t, s, table, weights, 8<<20)
	heads, _ := filepath.Glob(filepath.Join(dir, "partial", "*"))
	if len(heads) != 1 {
		t.Fatalf("partials: %v", heads)
	}
	const attribute = "trusted.ballast.staged"
	head := make([]byte, 1<<10)
	size, err := unix.Getxattr(heads[0], attribute, head)
	if err != nil {
		t.Fatal(err)
	}
	head = head[:size]
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	old := bytes.Replace(head, bytes.TrimSpace(boot), []byte("00000000-0000-0000-0000-000000000000"), 1)
	if bytes.Equal(old, head) {
		t.Fatal("the head does not name the boot")
	}
	if err := unix.Setxattr(heads[0], attribute, old, 0); err != nil {
		t.Fatal(err)
	}
	// A power failure before the bytes were synced.
	if err := os.WriteFile(filepath.Join(heads[0], "data"), make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	g := storetest.NewFetcher(weights)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(g)}); err != nil {
		t.Fatal(err)
	}
	if g.Sent(d) != int64(len(weights)) {
		t.Errorf("%d bytes fetched, want all %d: what was not synced does not count", g.Sent(d), len(weights))
	}
}

func TestDamagedPartialIsFetchedAgain(t *testing.T) {
	weights := storetest.Random(5, 16<<20)
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	interrupted(t, s, table, weights, 8<<20)
	data, _ := filepath.Glob(filepath.Join(dir, "partial", "*", "data"))
	w, err := os.OpenFile(data[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.WriteAt([]byte("damage"), 1000)
	w.Close()
	s = storetest.Open(t, dir, store.Options{})
	g := storetest.NewFetcher(weights)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(g)}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, table)["w"]; got != string(weights) {
		t.Error("wrong bytes")
	}
}

func TestWrongBytesAreNeverReadable(t *testing.T) {
	weights := storetest.Random(6, 6<<20)
	plain := modelTar(t, weights)
	for _, tc := range []struct {
		name  string
		blob  []byte
		build func(*storetest.Builder, []byte)
	}{
		{"raw", weights, func(b *storetest.Builder, p []byte) { b.Raw("w", p, 0o644) }},
		{"tar", plain, func(b *storetest.Builder, p []byte) { b.Tar(t, p) }},
		{"tar gzip", storetest.Compress(t, plain, filetable.CodecGzip), func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecGzip, "") }},
		{"tar zstd", storetest.Compress(t, plain, filetable.CodecZstd), func(b *storetest.Builder, p []byte) { b.Unpack(p, filetable.CodecZstd, "") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			b := storetest.NewBuilder(tc.name)
			tc.build(b, tc.blob)
			table := b.Put(t, s)
			f := storetest.NewFetcher(tc.blob)
			f.Mangle = func(off int64, p []byte) {
				if off > 0 {
					p[len(p)/2] ^= 1
				}
			}
			err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
			var wrong *verify.Error
			if !errors.As(err, &wrong) || !errors.Is(err, errdefs.ErrDataLoss) {
				t.Fatalf("got %v, want a verify.Error", err)
			}
			if _, err := s.Views.Files(table); !errdefs.IsUnavailable(err) {
				t.Errorf("Files: %v, want unavailable", err)
			}
			if got := leftovers(t, s); len(got) > 0 {
				t.Errorf("left over: %v", got)
			}
			f.Mangle = nil
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Fatalf("the next try: %v", err)
			}
		})
	}
}

func TestDiffIDIsChecked(t *testing.T) {
	plain := modelTar(t, storetest.Random(7, 1<<20))
	for _, good := range []bool{true, false} {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		blob := storetest.Compress(t, plain, filetable.CodecGzip)
		b := storetest.NewBuilder("x").Unpack(blob, filetable.CodecGzip, "")
		tab := b.Table()
		tab.Blobs[0].DiffID = digest.FromBytes(plain)
		if !good {
			tab.Blobs[0].DiffID = digest.FromString("other")
		}
		table := b.Put(t, s)
		err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blob))})
		if good != (err == nil) || !good && !strings.Contains(err.Error(), "diffID") {
			t.Errorf("good %v: %v", good, err)
		}
	}
}

func TestRetriesAndFailover(t *testing.T) {
	weights := storetest.Random(8, 10<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	var mu sync.Mutex
	tries := map[int64]int{}
	flaky := storetest.NewFetcher(weights)
	flaky.Fail = func(off int64) error {
		mu.Lock()
		defer mu.Unlock()
		if tries[off]++; tries[off] == 1 {
			return &transfer.RetryAfterError{After: time.Millisecond, Err: errors.New("503")}
		}
		return nil
	}
	flaky.Cut = func(off int64) int { return 1 << 20 }
	elsewhere := storetest.NewFetcher()
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(elsewhere, flaky)}); err != nil {
		t.Fatal(err)
	}
	if got := flaky.Sent(digest.FromBytes(weights)); got != int64(len(weights)) {
		t.Errorf("%d bytes sent, want %d: what arrived before a cut counts", got, len(weights))
	}
}

func TestFinalErrorsSayWhich(t *testing.T) {
	weights := storetest.Random(9, 1<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	denied, empty := storetest.NewFetcher(weights), storetest.NewFetcher()
	denied.Fail = func(int64) error { return errdefs.ErrUnauthenticated }
	d := digest.FromBytes(weights)
	for _, tc := range []struct {
		name     string
		fetchers []transfer.Source
		want     func(error) bool
	}{
		{"no sources", nil, errdefs.IsNotFound},
		{"not there", storetest.From(empty), errdefs.IsNotFound},
		{"denied beats not there", storetest.From(denied, empty), errdefs.IsUnauthorized},
	} {
		err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: tc.fetchers})
		if !tc.want(err) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	if denied.Calls(d) != 1 || empty.Calls(d) != 2 {
		t.Errorf("%d and %d requests, want 1 and 2: a final error is not retried", denied.Calls(d), empty.Calls(d))
	}
}

func TestOneFetchForManyWaitersAndLinger(t *testing.T) {
	weights := storetest.Random(10, 12<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{Linger: time.Minute})
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	other := storetest.NewBuilder("y").Raw("other", weights, 0o644).Put(t, s)
	f := storetest.NewFetcher(weights)
	release := make(chan struct{})
	f.Delay = func(ctx context.Context) { <-release }
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() { gone <- s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)}) }()
	waitFor(t, "the fetch begins", func() bool { return f.Calls(digest.FromBytes(weights)) > 0 })
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			d := table
			if i%2 == 0 {
				d = other
			}
			if err := s.Hydrate(t.Context(), d, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the one that went away: %v", err)
	}
	close(release)
	wg.Wait()
	if got := f.Sent(digest.FromBytes(weights)); got != int64(len(weights)) {
		t.Errorf("%d bytes sent, want %d", got, len(weights))
	}
}

func TestNoSpaceIsRefusedBeforeTheFirstByte(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{Reserve: 1 << 60})
	weights := storetest.Random(11, 1<<20)
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	f := storetest.NewFetcher(weights)
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
	if !errdefs.IsResourceExhausted(err) || f.Calls(digest.FromBytes(weights)) > 0 {
		t.Errorf("got %v after %d calls, want resource exhausted after none", err, f.Calls(digest.FromBytes(weights)))
	}
}

func TestQuota(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{Evict: store.EvictOptions{Quota: 5 << 20}})
	hydrate := func(name string, seed uint64) error {
		t.Helper()
		weights := storetest.Random(seed, 3<<20)
		table := storetest.NewBuilder(name).Raw("w", weights, 0o644).Put(t, s)
		if err := s.AddRef("pin/"+name, table, time.Time{}); err != nil {
			t.Fatal(err)
		}
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(weights))})
	}
	if err := hydrate("a", 20); err != nil {
		t.Fatal(err)
	}
	if err := hydrate("b", 21); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "quota") {
		t.Errorf("beyond the quota: %v", err)
	}
	if err := s.RemoveRef("pin/a"); err != nil {
		t.Fatal(err)
	}
	if err := hydrate("b", 21); err != nil {
		t.Errorf("with something to evict: %v", err)
	}
}

func TestTwoLayersOnePath(t *testing.T) {
	a := storetest.Tar(t, []tar.Header{{Name: "f", Mode: 0o644}}, [][]byte{[]byte("one")})
	b := storetest.Tar(t, []tar.Header{{Name: "f", Mode: 0o644}}, [][]byte{[]byte("two")})
	c := storetest.Tar(t, []tar.Header{{Name: "f", Mode: 0o644}, {Name: "g", Mode: 0o644}}, [][]byte{[]byte("one"), []byte("x")})
	for _, tc := range []struct {
		name string
		two  []byte
		ok   bool
	}{{"different content", b, false}, {"same content", c, true}} {
		t.Run(tc.name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			table := storetest.NewBuilder("x").Tar(t, a).Tar(t, tc.two).Put(t, s)
			err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(a, tc.two))})
			if err == nil {
				_, err = s.Views.Files(table)
			}
			if tc.ok != (err == nil) || !tc.ok && !errdefs.IsInvalidArgument(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTarHeadersThatChangeAreCaught(t *testing.T) {
	blob := storetest.Tar(t, []tar.Header{{Name: "a", Mode: 0o644}, {Name: "b", Mode: 0o644}}, [][]byte{bytes.Repeat([]byte("a"), 700), bytes.Repeat([]byte("b"), 700)})
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("x").Tar(t, blob)
	b.Table().Files[1].Source.Offset -= 10 // as if a header were wrong
	table := b.Put(t, s)
	err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(blob))})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("got %v, want invalid argument", err)
	}
	if _, err := s.Views.Files(table); err == nil {
		t.Error("files are shown")
	}
}

// TestTarNames has a tar whose headers were others when the table was made, with the contents at the same places.
func TestTarNames(t *testing.T) {
	body := [][]byte{bytes.Repeat([]byte("a"), 700), bytes.Repeat([]byte("b"), 700), nil, nil}
	headers := []tar.Header{{Name: "a", Mode: 0o644}, {Name: "b", Mode: 0o644}, {Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "link", Typeflag: tar.TypeSymlink, Linkname: "a"}}
	for name, lie := range map[string]func([]tar.Header){
		"names exchanged":  func(h []tar.Header) { h[0].Name, h[1].Name = h[1].Name, h[0].Name },
		"mode":             func(h []tar.Header) { h[0].Mode = 0o755 },
		"target of a link": func(h []tar.Header) { h[3].Linkname = "b" },
		"directory":        func(h []tar.Header) { h[2].Name = "other/" },
	} {
		for what, n := range map[string]int{"files": 0, "no files": 2} {
			told := slices.Clone(headers)
			if lie(told); slices.EqualFunc(told[n:], headers[n:], func(a, b tar.Header) bool {
				return a.Name == b.Name && a.Mode == b.Mode && a.Linkname == b.Linkname
			}) {
				continue
			}
			t.Run(name+", "+what, func(t *testing.T) {
				honest, lying := storetest.Tar(t, headers[n:], body[n:]), storetest.Tar(t, told[n:], body[n:])
				s := storetest.Open(t, t.TempDir(), store.Options{})
				b := storetest.NewBuilder("x").Tar(t, lying)
				b.Table().Blobs[0].Digest = digest.FromBytes(honest)
				for _, f := range b.Table().Files {
					if f.Source != nil {
						f.Source.Blob = digest.FromBytes(honest)
					}
				}
				table := b.Put(t, s)
				if known, err := s.HeadersVerified(table); known || err != nil {
					t.Errorf("before: verified %v, %v", known, err)
				}
				if _, err := s.Views.Files(table); !errdefs.IsUnavailable(err) {
					t.Errorf("files before: %v", err)
				}
				from := store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(honest))}
				if err := s.Hydrate(t.Context(), table, from); !errdefs.IsInvalidArgument(err) {
					t.Errorf("got %v, want invalid argument", err)
				}
				if _, err := s.Views.Files(table); !errdefs.IsInvalidArgument(err) {
					t.Errorf("files: %v", err)
				}
				if _, err := s.HeadersVerified(table); !errdefs.IsInvalidArgument(err) {
					t.Errorf("after: %v", err)
				}
				right := storetest.NewBuilder("y").Tar(t, honest).Put(t, s)
				if err := s.Hydrate(t.Context(), right, from); err != nil {
					t.Error(err)
				}
				if known, err := s.HeadersVerified(right); !known || err != nil {
					t.Errorf("the right table: verified %v, %v", known, err)
				}
			})
		}
	}
}

func TestCollect(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	shared, own := storetest.Random(12, 1<<20), storetest.Random(13, 2<<20)
	a := storetest.NewBuilder("a").Raw("shared", shared, 0o644).Raw("own", own, 0o644).Put(t, s)
	b := storetest.NewBuilder("b").Raw("s", shared, 0o644).Put(t, s)
	f := storetest.NewFetcher(shared, own)
	for name, table := range map[string]digest.Digest{"snapshot/1": a, "pin/b": b} {
		if err := s.AddRef(name, table, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatal(err)
		}
	}
	gc := func(o store.GCOptions) store.GCResult {
		t.Helper()
		r, err := s.GC(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := gc(store.GCOptions{}); r.Objects != 0 {
		t.Errorf("with references: %+v", r)
	}
	if err := s.RemoveRef("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if r := gc(store.GCOptions{DryRun: true}); r.Bytes < int64(len(own)) || r.Bytes >= int64(len(own)+len(shared)) {
		t.Errorf("dry run: %+v, want the object that only the first had", r)
	}
	if r := gc(store.GCOptions{Keep: 10 << 20}); r.Objects != 0 {
		t.Errorf("with room: %+v", r)
	}
	if r := gc(store.GCOptions{}); r.Bytes < int64(len(own)) {
		t.Errorf("collected: %+v", r)
	}
	if _, err := s.Views.Files(b); err != nil {
		t.Errorf("the pinned one: %v", err)
	}
	if err := s.AddRef("pin/b", b, time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if r := gc(store.GCOptions{}); r.Bytes < int64(len(shared)) {
		t.Errorf("expired: %+v", r)
	}
	u, err := s.Usage()
	if err != nil || u.Unique != 0 {
		t.Errorf("usage %+v, %v", u, err)
	}
}

func TestCheckFindsDamageAndHydrateRepairsIt(t *testing.T) {
	weights := storetest.Random(14, 5<<20)
	plain := modelTar(t, weights)
	d := digest.FromBytes(weights)
	for _, how := range []struct {
		name   string
		damage func(t *testing.T, name string)
	}{
		{"other bytes", func(t *testing.T, name string) {
			w, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if _, err := w.WriteAt([]byte("x"), 4<<20); err != nil {
				t.Fatal(err)
			}
		}},
		{"cut", func(t *testing.T, name string) {
			if err := os.Truncate(name, 1<<20); err != nil {
				t.Fatal(err)
			}
		}},
		{"gone", func(t *testing.T, name string) {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s restart=%v", how.name, restart), func(t *testing.T) {
				dir := t.TempDir()
				s := storetest.Open(t, dir, store.Options{})
				table := storetest.NewBuilder("x").Tar(t, plain).Put(t, s)
				f := storetest.NewFetcher(plain)
				o := store.HydrateOptions{Sources: storetest.From(f)}
				if err := s.AddRef("pin/x", table, time.Time{}); err != nil {
					t.Fatal(err)
				}
				if err := s.Hydrate(t.Context(), table, o); err != nil {
					t.Fatal(err)
				}
				how.damage(t, filepath.Join(s.ObjectsDir(), store.ObjectName(d)))
				if restart {
					s.Close()
					s = storetest.Open(t, dir, store.Options{})
				}
				for range 2 { // a second check has the same result
					bad, err := s.Check(t.Context(), "", nil)
					if err != nil || len(bad) != 1 || bad[0].Digest != d || len(bad[0].Tables) != 1 || bad[0].Tables[0] != table {
						t.Fatalf("check: %+v, %v", bad, err)
					}
				}
				if s.Has(d) {
					t.Error("the damaged object is there")
				}
				if missing, err := s.Missing(""); err != nil || len(missing) != 1 {
					t.Errorf("missing: %+v, %v", missing, err)
				}
				if err := s.Hydrate(t.Context(), table, o); err != nil {
					t.Fatal(err)
				}
				if got := content(t, s, table)["model/weights.bin"]; got != string(weights) {
					t.Error("not repaired")
				}
				if bad, err := s.Check(t.Context(), "", nil); err != nil || len(bad) > 0 {
					t.Errorf("after mending: %+v, %v", bad, err)
				}
			})
		}
	}
}

func TestOpenAdoptsRightFilesAndSetsOthersAside(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	weights := storetest.Random(15, 1<<20)
	table := storetest.NewBuilder("x").Raw("w", weights, 0o644).Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(weights))}); err != nil {
		t.Fatal(err)
	}
	// A second process cannot open the store.
	if _, err := store.Open(dir, store.Options{}); !errdefs.IsUnavailable(err) {
		t.Errorf("second open: %v", err)
	}
	s.Close()
	name := filepath.Join(dir, "objects", store.ObjectName(digest.FromBytes(weights)))
	if err := os.Rename(name, name+".away"); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	if _, err := s.Views.Files(table); !errdefs.IsUnavailable(err) {
		t.Errorf("file is gone: %v", err)
	}
	s.Close()
	if err := os.Rename(name+".away", name); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	if _, err := s.Views.Files(table); err != nil {
		t.Errorf("file is back: %v", err)
	}
}
