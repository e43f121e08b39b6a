package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// held makes a fetcher wait until the returned function is called.
func held(f *storetest.Fetcher) (release func()) {
	hold := make(chan struct{})
	f.Delay = func(ctx context.Context) {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	return sync.OnceFunc(func() { close(hold) })
}

func hydrateLater(t *testing.T, s *store.Store, table digest.Digest, f transfer.Fetcher) chan error {
	done := make(chan error, 1)
	go func() {
		done <- s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
	}()
	return done
}

func waitFor(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timeout: " + what)
		}
	}
}

// Two tables that share a blob and use it differently, hydrated concurrently.
func TestSharedBlobsOfRunningFetches(t *testing.T) {
	blobs := fragments(3, 1<<20)
	plain := modelTar(t, storetest.Random(1, 2<<20))
	parts := func(header string, extra bool) func(*storetest.Builder) {
		return func(b *storetest.Builder) {
			merged(b, "w", header, blobs)
			if extra {
				b.Inline("x", []byte("x"), 0o644)
			}
		}
	}
	for _, tc := range []struct {
		name string
		a, b func(*storetest.Builder)
		blob []byte // the blob that the first one has requested
	}{
		{"other recipe", parts("header of a", false), parts("longer header of b", false), blobs[2]},
		{"same recipe", parts("header", false), parts("header", true), blobs[2]},
		{"raw and archive", func(b *storetest.Builder) { b.Raw("model.tar", plain, 0o644) }, func(b *storetest.Builder) { b.Tar(t, plain) }, plain},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.Open(t, t.TempDir(), store.Options{})
				a, b := storetest.NewBuilder("a"), storetest.NewBuilder("b")
				tc.a(a)
				tc.b(b)
				f := storetest.NewFetcher(append(blobs, plain)...)
				release := held(f)
				defer release()
				tables := []digest.Digest{a.Put(t, s), b.Put(t, s)}
				first := hydrateLater(t, s, tables[0], f)
				waitFor(t, "the first asks", func() bool { return f.Calls(digest.FromBytes(tc.blob)) > 0 })
				second := hydrateLater(t, s, tables[1], f)
				synctest.Wait()
				release()
				for _, done := range []chan error{first, second} {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				for _, table := range tables {
					for path, got := range content(t, s, table) {
						if path == "w" && (!strings.HasSuffix(got, string(blobs[2][100:])) || !strings.Contains(got, string(blobs[0][100:]))) {
							t.Errorf("%s: wrong bytes", path)
						}
					}
				}
				if bad, err := s.Check(t.Context(), "", nil); err != nil || len(bad) > 0 {
					t.Errorf("check: %v %v", bad, err)
				}
			})
		})
	}
}

// Other callers' registries do not decide whether a pull succeeds.
func TestSourcesOfOtherCallers(t *testing.T) {
	w := storetest.Random(1, 2<<20)
	wrong := func() *storetest.Fetcher {
		f := storetest.NewFetcher(w)
		f.Mangle = func(_ int64, p []byte) { p[0] ^= 1 }
		return f
	}
	for _, tc := range []struct {
		name  string
		other *storetest.Fetcher
		same  bool // the same table
	}{
		{"not found, another table", storetest.NewFetcher(), false},
		{"not found, the same table", storetest.NewFetcher(), true},
		{"wrong bytes, the same table", wrong(), true},
		{"wrong bytes, another table", wrong(), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.Open(t, t.TempDir(), store.Options{})
				a := storetest.NewBuilder("a").Raw("model", w, 0o644).Put(t, s)
				b := a
				if !tc.same {
					b = storetest.NewBuilder("b").Raw("m", w, 0o644).Put(t, s)
				}
				hold := make(chan struct{})
				tc.other.Fail = func(int64) error { <-hold; return nil }
				if len(tc.other.Blobs) == 0 {
					tc.other.Blobs[digest.FromBytes(w)] = nil
					tc.other.Fail = func(int64) error { <-hold; return errdefs.ErrNotFound }
				}
				first := hydrateLater(t, s, a, tc.other)
				waitFor(t, "the first asks", func() bool { return tc.other.Calls(digest.FromBytes(w)) > 0 })
				second := hydrateLater(t, s, b, storetest.NewFetcher(w))
				synctest.Wait()
				close(hold)
				if err := <-second; err != nil {
					t.Errorf("with a good fetcher: %v", err)
				}
				<-first
			})
		})
	}
	t.Run("wrong bytes from our first", func(t *testing.T) {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		a := storetest.NewBuilder("a").Raw("model", w, 0o644).Put(t, s)
		if err := s.Hydrate(t.Context(), a, store.HydrateOptions{Sources: storetest.From(wrong(), storetest.NewFetcher(w))}); err != nil {
			t.Error(err)
		}
	})
	t.Run("no ranges, and nothing at the second", func(t *testing.T) {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		big := storetest.Random(2, 9<<20)
		a := storetest.NewBuilder("a").Raw("model", big, 0o644).Put(t, s)
		f := storetest.NewFetcher(big)
		f.NoRanges = true
		var mu sync.Mutex
		cuts := 0
		f.Cut = func(int64) int {
			mu.Lock()
			defer mu.Unlock()
			if cuts++; cuts == 3 {
				return 5 << 20
			}
			return -1
		}
		if err := s.Hydrate(t.Context(), a, store.HydrateOptions{Sources: storetest.From(f, storetest.NewFetcher())}); err != nil {
			t.Error(err)
		}
	})
}

// A server without ranges that sent a wrong chunk is not asked for the rest: its right chunks count,
// and the other source provides the wrong one.
func TestWholeWithWrongChunk(t *testing.T) {
	p := storetest.Random(3, 9<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("a").RawChunks("model", p, 0o644, filetable.MaxChunk).Put(t, s)
	wrong, right := storetest.NewFetcher(p), storetest.NewFetcher(p)
	wrong.NoRanges, right.NoRanges = true, true
	wrong.Mangle = func(_ int64, body []byte) { body[5<<20] ^= 1 } // in the second chunk
	sources := storetest.From(wrong, right)
	for i := range sources {
		sources[i].Endpoint = &transfer.Endpoint{Patience: -1} // the machine may be slow
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}); err != nil {
		t.Fatal(err)
	}
	if w, r := s.Counts().CorruptChunks, right.Calls(d); w != 1 || r != 1 {
		t.Errorf("%d chunks were wrong, the other was asked %d times, want 1 and 1", w, r)
	}
}

// After a target has failed, nothing of its hydration begins: neither targets that wait for a place nor
// the rest.
func TestNothingStartsAfterAFailure(t *testing.T) {
	const parallel, rest = 96, 8 // concurrent targets, and waiting ones
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{Connections: 2 * parallel})
	b, f := storetest.NewBuilder("many"), storetest.NewFetcher()
	var waits []string // largest last
	for i := range parallel + rest {
		p := storetest.Random(uint64(i), 1000+i)
		b.Raw(fmt.Sprintf("f%02d", i), p, 0o644)
		f.Blobs[digest.FromBytes(p)] = p
		if i >= parallel {
			waits = append(waits, digest.FromBytes(p).Encoded())
		}
	}
	table := b.Put(t, s)
	var asked atomic.Int64
	all := make(chan struct{})
	f.Allow = func(int64, int64) bool {
		n := asked.Add(1)
		if n == parallel {
			close(all)
		}
		return n == 1 // the others continue until they are canceled
	}
	f.Fail = func(int64) error {
		<-all
		return errdefs.ErrNotFound
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); !errdefs.IsNotFound(err) {
		t.Fatalf("got %v, want not found", err)
	}
	if err := s.Close(); err != nil { // waits for all work
		t.Fatal(err)
	}
	staged, err := os.ReadDir(filepath.Join(dir, "partial"))
	if err != nil || len(staged) == 0 {
		t.Fatalf("%d targets are staged, %v", len(staged), err)
	}
	for _, e := range staged {
		if d, _, _ := strings.Cut(e.Name(), "-"); slices.Contains(waits, d) {
			t.Errorf("target %s began after the failure", d)
		}
	}
	if n := asked.Load(); n != parallel {
		t.Errorf("%d requests, want %d", n, parallel)
	}
}

// A garbage collection at any moment removes no object that is about to be used.
func TestCollectBesideEverything(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var collector sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.GC(ctx, store.GCOptions{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer collector.Wait()
	defer cancel()
	shared := []byte(`{"a":1}`)
	for i := range 40 {
		w := storetest.Random(uint64(i), 1000)
		zipped := storetest.Compress(t, modelTar(t, w), filetable.CodecGzip)
		blobs := fragments(3, 100+i)
		b := storetest.NewBuilder(fmt.Sprint(i)).Raw("r", w, 0o644).Raw("shared", shared, 0o644).Unpack(zipped, filetable.CodecGzip, "")
		merged(b, "w", fmt.Sprint("header ", i), blobs)
		enc, err := b.Table().Encode()
		if err != nil {
			t.Fatal(err)
		}
		f := storetest.NewFetcher(append(blobs, w, zipped, shared)...)
		var others sync.WaitGroup
		stop := make(chan struct{})
		for range 4 { // other pulls of the same model
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if _, err := s.PutTable(enc); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		table := b.Put(t, s)
		name := fmt.Sprint("snapshot/", i)
		first := i%2 == 0 // as the differ does, or as a prefetch
		if first {
			if err := s.AddRef(name, table, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		close(stop)
		others.Wait()
		if !first {
			if err := s.AddRef(name, table, time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.GC(ctx, store.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Views.Files(table); err != nil {
			t.Fatalf("round %d: a complete table with a snapshot was collected: %v", i, err)
		}
		if err := s.RemoveRef(name); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLinksThroughLinksDoNotLeave(t *testing.T) {
	link := func(path, target string) filetable.File {
		return filetable.File{Path: path, Type: filetable.TypeSymlink, Target: target}
	}
	for name, tc := range map[string]struct {
		links []filetable.File
		ok    bool
	}{
		"up after a link": {[]filetable.File{link("a/b/c/root", "../../.."), link("out", "a/b/c/root/../../../etc")}, false},
		"through a link":  {[]filetable.File{link("current", "v1"), link("w", "current/w")}, true},
		"up and down":     {[]filetable.File{link("a/w", "../b/w"), link("b/w", "../c/w")}, true},
	} {
		b := storetest.NewBuilder("x")
		for _, l := range tc.links {
			b.File(l)
		}
		if err := b.Table().Validate(); tc.ok != (err == nil) || !tc.ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
		var headers []tar.Header
		for _, l := range tc.links {
			headers = append(headers, tar.Header{Typeflag: tar.TypeSymlink, Name: l.Path, Linkname: l.Target, Mode: 0o777})
		}
		archive := storetest.Compress(t, storetest.Tar(t, headers, make([][]byte, len(headers))), filetable.CodecGzip)
		s := storetest.Open(t, t.TempDir(), store.Options{})
		table := storetest.NewBuilder("archive").Unpack(archive, filetable.CodecGzip, "").Put(t, s)
		err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(archive))})
		if err == nil {
			_, err = s.Views.Files(table)
		}
		if tc.ok != (err == nil) || !tc.ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s, in an archive: %v", name, err)
		}
	}
}

func TestSizesThatCanNotBe(t *testing.T) {
	for _, size := range []int64{1<<63 - 1, 1<<62 + 1, 1<<50 + 1} {
		d := digest.FromString("x")
		b := storetest.NewBuilder("x").File(filetable.File{Path: "w", Type: filetable.TypeReg, Size: size, Digest: d, Source: &filetable.Source{Blob: d, Size: size}})
		b.Table().Blobs = []filetable.Blob{{Digest: d, Size: size}}
		if err := b.Table().Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d: %v", size, err)
		}
		b.Table().Files = nil
		if err := b.Table().Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d, of a blob without a file: %v", size, err)
		}
	}
}

// Four times as many hard links take about four times as long, not sixteen times.
func TestManyHardLinks(t *testing.T) {
	const few = 12_500
	first, second := hardLinks(t, few), hardLinks(t, 4*few)
	if limit := 8*first + 100*time.Millisecond; second > limit {
		t.Errorf("%d hard links took %v of the processor, %d took %v: more than %v", few, first, 4*few, second, limit)
	}
}

// hardLinks hydrates an archive of n hard links to one file, and returns the processor time, which does
// not depend on other programs.
func hardLinks(t *testing.T, n int) time.Duration {
	t.Helper()
	var buf bytes.Buffer
	zw, err := zstd.NewWriter(&buf)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zw)
	for i := range n {
		h := tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeLink, Linkname: "f0", Mode: 0o644}
		if i == 0 {
			h.Typeflag, h.Linkname, h.Size = tar.TypeReg, "", 1
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			w.Write([]byte("x"))
		}
	}
	w.Close()
	zw.Close()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").Unpack(buf.Bytes(), filetable.CodecZstd, "").Put(t, s)
	start := processorTime(t)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(buf.Bytes()))}); err != nil {
		t.Fatal(err)
	}
	files, err := s.Views.Files(table)
	if err != nil || len(files) != n {
		t.Fatalf("%d files, %v", len(files), err)
	}
	return processorTime(t) - start
}

// processorTime returns the processor time of this process.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestFileOfRunningFetch hydrates two tables with the same file. One has found that the file is missing,
// and fetches it when the other has just made it an object.
func TestFileOfRunningFetch(t *testing.T) {
	p := storetest.Random(1, 100_000)
	add := map[string]func(*storetest.Builder){
		"raw":    func(b *storetest.Builder) { b.Raw("config.json", p, 0o644) },
		"chunks": func(b *storetest.Builder) { b.RawChunks("config.json", p, 0o644, 30_000) },
	}
	for name, add := range add {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			var tables [2]digest.Digest
			for i := range tables {
				b := storetest.NewBuilder(fmt.Sprint(i))
				add(b)
				tables[i] = b.Put(t, s)
			}
			sources := storetest.From(storetest.NewFetcher(p))
			release, err := s.Use(t.Context(), tables[0], sources) // the other has not let go of it yet
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			s.BeforeFetching(func(table digest.Digest) {
				if table == tables[0] {
					if err := s.Hydrate(t.Context(), tables[1], store.HydrateOptions{Sources: sources}); err != nil {
						t.Error(err)
					}
				}
			})
			if err := s.Hydrate(t.Context(), tables[0], store.HydrateOptions{Sources: sources}); err != nil {
				t.Error(err)
			}
		})
	}
}
