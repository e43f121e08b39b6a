package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// half returns bytes of which half do not compress.
func half(seed uint64, n int) []byte {
	p := storetest.Random(seed, n)
	clear(p[n/4 : n/4+n/2])
	return p
}

// A lazyCase is a model that can be read before it is complete.
type lazyCase struct {
	name  string
	table *storetest.Builder
	blob  []byte
	files map[string][]byte
}

func lazyCases(t *testing.T) []lazyCase {
	big, small := half(1, 19<<20+333), storetest.Random(2, 70_000)
	files := map[string][]byte{"model/big.bin": big, "model/small.bin": small}
	p := storetest.Tar(t, []tar.Header{
		{Name: "model/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "model/big.bin", Mode: 0o644}, {Name: "model/small.bin", Mode: 0o644}, {Name: "model/empty", Mode: 0o644},
	}, [][]byte{nil, big, small, nil})
	cases := []lazyCase{
		{"raw", storetest.NewBuilder("raw").RawChunks("model/big.bin", big, 0o644, filetable.MaxChunk), big, map[string][]byte{"model/big.bin": big}},
		{"raw, odd chunks", storetest.NewBuilder("odd").RawChunks("model/big.bin", big, 0o644, 1_000_003), big, map[string][]byte{"model/big.bin": big}},
		{"tar", storetest.NewBuilder("tar").TarChunks(t, p, 3<<20), p, files},
		{"raw, states", storetest.NewBuilder("states").RawChunks("model/big.bin", big, 0o644, 1_000_003).Stated(t, big), big, map[string][]byte{"model/big.bin": big}},
		{"tar, states", storetest.NewBuilder("tar states").TarChunks(t, p, 3<<20).Stated(t, big, small), p, files},
	}
	for _, codec := range []filetable.Codec{filetable.CodecNone, filetable.CodecZstd, filetable.CodecGzip} {
		c := &storetest.Compressed{Codec: codec, Size: 64 << 10}
		for name, b := range map[string][]byte{"model/big.bin": big} {
			c.Add(name, b)
		}
		c.Add("model/small.bin", small)
		b := storetest.NewBuilder("chunks"+string(codec)).Compressed(t, c)
		cases = append(cases, lazyCase{"chunks " + string(codec), b, c.Blob, files})
		b = storetest.NewBuilder("states"+string(codec)).Compressed(t, c).Stated(t, big, small)
		cases = append(cases, lazyCase{"states " + string(codec), b, c.Blob, files})
	}
	return cases
}

// Every kind of file with chunks can be read at any offset at once, and becomes an object.
func TestReadBeforeComplete(t *testing.T) {
	for _, tc := range lazyCases(t) {
		t.Run(tc.name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			f := storetest.NewFetcher(tc.blob)
			table := tc.table.Put(t, s)
			hold(t, s, table)
			if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f), Probe: true}); err != nil {
				t.Fatal(err)
			}
			if !isExposed(s, table) {
				t.Error("the table is not exposed")
			}
			for name, want := range tc.files {
				d := digest.FromBytes(want)
				if size, err := s.Views.View("").Size(d); err != nil || size != int64(len(want)) {
					t.Errorf("%s: size %d, %v", name, size, err)
				}
				// The end is read first: otherwise a test that fetches the whole object would pass.
				tail := make([]byte, 1000)
				if n, err := s.Views.View("").ReadAt(t.Context(), d, tail, int64(len(want))-900); n != 900 || err != io.EOF || !bytes.Equal(tail[:n], want[len(want)-900:]) {
					t.Errorf("%s: end: %d bytes, %v", name, n, err)
				}
				readRandomly(t, s, d, want, 40)
				if s.Has(d) {
					t.Errorf("%s: is an object already", name)
				}
			}
			sent := f.Sent(digest.FromBytes(tc.blob))
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f), Background: true}); err != nil {
				t.Fatal(err)
			}
			for name, want := range tc.files {
				got, err := s.ReadBytes(digest.FromBytes(want), int64(len(want)), nil)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: object: %v", name, err)
				}
			}
			if isExposed(s, table) {
				t.Error("a complete table is still exposed")
			}
			if total := f.Sent(digest.FromBytes(tc.blob)); total > int64(len(tc.blob))+2<<20 {
				t.Errorf("%d bytes crossed the wire for %d, %d of them for readers", total, len(tc.blob), sent)
			}
			if got := leftovers(t, s); len(got) > 0 {
				t.Errorf("left over: %v", got)
			}
		})
	}
}

// hold adds the reference of a snapshot to a table.
func hold(t testing.TB, s *store.Store, table digest.Digest) {
	t.Helper()
	if err := s.AddRef("snapshot/1", table, time.Time{}); err != nil {
		t.Fatal(err)
	}
}

func readRandomly(t testing.TB, s *store.Store, d digest.Digest, want []byte, n int) {
	t.Helper()
	for range n {
		off := rand.IntN(len(want))
		p := make([]byte, min(1+rand.IntN(300_000), len(want)-off))
		if n, err := s.Views.View("").ReadAt(t.Context(), d, p, int64(off)); err != nil || !bytes.Equal(p[:n], want[off:off+len(p)]) {
			t.Fatalf("%d bytes at %d: %d, %v", len(p), off, n, err)
		}
	}
}

// Concurrent readers, a sequential reader and a job get right bytes, and each byte is fetched once.
func TestReadWhileHydrating(t *testing.T) {
	p := storetest.Random(3, 60<<20+5)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p)
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk).Put(t, s)
	hold(t, s, table)
	o := store.ExposeOptions{Sources: storetest.From(f)}
	if err := s.Views.Expose(t.Context(), table, o); err != nil {
		t.Fatal(err)
	}
	var g sync.WaitGroup
	d := digest.FromBytes(p)
	for range 8 {
		g.Go(func() { readRandomly(t, s, d, p, 60) })
	}
	g.Go(func() {
		buf := make([]byte, 1<<20)
		for off := 0; off < len(p); off += len(buf) {
			n, err := s.Views.View("").ReadAt(t.Context(), d, buf, int64(off))
			if err != nil && err != io.EOF || !bytes.Equal(buf[:n], p[off:min(len(p), off+len(buf))]) {
				t.Errorf("at %d: %d, %v", off, n, err)
				return
			}
		}
	})
	g.Go(func() {
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources, Background: true}); err != nil {
			t.Error(err)
		}
	})
	g.Wait()
	if sent := f.Sent(d); sent != int64(len(p)) {
		t.Errorf("%d bytes crossed the wire for %d", sent, len(p))
	}
}

// Wrong bytes never reach a reader: another source is tried, and without one the read fails.
func TestReadCorruptChunk(t *testing.T) {
	p := storetest.Random(4, 9<<20)
	d := digest.FromBytes(p)
	bad := storetest.NewFetcher(p)
	bad.Mangle = func(off int64, b []byte) {
		if len(b) > 0 && off >= 4<<20 && off < 8<<20 {
			b[0] ^= 1
		}
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk).Put(t, s)
	hold(t, s, table)
	expose := func(fs ...transfer.Fetcher) {
		t.Helper()
		if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(fs...)}); err != nil {
			t.Fatal(err)
		}
	}
	expose(bad)
	one := make([]byte, 10)
	if _, err := s.Views.View("").ReadAt(t.Context(), d, one, 0); err != nil {
		t.Errorf("a chunk that is right: %v", err)
	}
	var wrong *verify.Error
	if _, err := s.Views.View("").ReadAt(t.Context(), d, one, 5<<20); !errors.As(err, &wrong) || !errdefs.IsDataLoss(err) {
		t.Errorf("got %v, want a verify.Error", err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(bad)}); !errdefs.IsDataLoss(err) {
		t.Errorf("hydrate: got %v, want data loss", err)
	}
	if c := s.Counts(); c.CorruptChunks == 0 || c.FailedReads != 1 {
		t.Errorf("counts: %+v", c)
	}
	expose(bad, storetest.NewFetcher(p))
	readRandomly(t, s, d, p, 50)
}

// A table can give a file any chunks, but cannot make it an object of another digest, or change the
// bytes that readers of another table get.
func TestTableThatLies(t *testing.T) {
	p, other := storetest.Random(5, 5<<20), storetest.Random(6, 5<<20)
	lie := &storetest.Compressed{Size: 1 << 20}
	lie.Add("w", other)
	b := storetest.NewBuilder("lie").Compressed(t, lie)
	b.Table().Files[0].Digest = digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p, lie.Blob)
	o := store.ExposeOptions{Sources: storetest.From(f)}
	honest := storetest.NewBuilder("honest").RawChunks("w", p, 0o644, 1<<20).Put(t, s)
	liar := b.Put(t, s)
	hold(t, s, honest)
	if err := s.Views.Expose(t.Context(), honest, o); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Expose(t.Context(), liar, o); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want failed precondition", err)
	}
	if err := s.Hydrate(t.Context(), liar, store.HydrateOptions{Sources: o.Sources}); !errdefs.IsDataLoss(err) {
		t.Errorf("hydrate of the lie: got %v, want data loss", err)
	}
	readRandomly(t, s, digest.FromBytes(p), p, 20)
	if err := s.Hydrate(t.Context(), honest, store.HydrateOptions{Sources: o.Sources}); err != nil {
		t.Error(err)
	}
	if got, err := s.ReadBytes(digest.FromBytes(p), 5<<20, nil); err != nil || !bytes.Equal(got, p) {
		t.Errorf("object: %v", err)
	}
}

// Bytes that were read before a restart are not fetched again.
func TestReadResumes(t *testing.T) {
	p := storetest.Random(7, 21<<20)
	d := digest.FromBytes(p)
	dir := t.TempDir()
	f := storetest.NewFetcher(p)
	b := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk)
	for i := range 3 {
		s, err := store.Open(dir, store.Options{Reserve: 1})
		if err != nil {
			t.Fatal(err)
		}
		table := b.Put(t, s)
		hold(t, s, table)
		if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatal(err)
		}
		one := make([]byte, 1)
		for _, at := range []int64{0, 20 << 20, 9 << 20}[:i+1] {
			if _, err := s.Views.View("").ReadAt(t.Context(), d, one, at); err != nil || one[0] != p[at] {
				t.Errorf("round %d: at %d: %v", i, at, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Calls(d); n != 3 {
		t.Errorf("%d ranges were asked for, want 3", n)
	}
}

// Expose finds that a server does not support ranges; if that changes later, readers wait.
func TestReadWithoutRanges(t *testing.T) {
	p := storetest.Random(8, 9<<20)
	d := digest.FromBytes(p)
	f := storetest.NewFetcher(p)
	f.NoRanges = true
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk).Put(t, s)
	hold(t, s, table)
	o := store.ExposeOptions{Sources: storetest.From(f), Probe: true}
	if err := s.Views.Expose(t.Context(), table, o); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want failed precondition", err)
	}
	o.Probe = false
	if err := s.Views.Expose(t.Context(), table, o); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	one := make([]byte, 1)
	go func() {
		_, err := s.Views.View("").ReadAt(t.Context(), d, one, 8<<20)
		got <- err
	}()
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil || one[0] != p[8<<20] {
		t.Errorf("read: %v", err)
	}
}

// Readers of files without chunks wait, and get the error if the file cannot be fetched.
func TestReadWaits(t *testing.T) { synctest.Test(t, testReadWaits) }

func testReadWaits(t *testing.T) {
	p := storetest.Random(9, 6<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").Raw("w", p, 0o644).Put(t, s)
	hold(t, s, table)
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want failed precondition", err)
	}
	f := storetest.NewFetcher(p)
	o := store.ExposeOptions{Sources: storetest.From(f), Wait: true}
	if err := s.Views.Expose(t.Context(), table, o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	one := make([]byte, 1)
	if _, err := s.Views.View("").ReadAt(ctx, d, one, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled read: %v", err)
	}
	none := storetest.NewFetcher()
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(none)}); !errdefs.IsNotFound(err) {
		t.Errorf("hydrate from nowhere: %v", err)
	}
	if _, err := s.Views.View("").ReadAt(t.Context(), d, one, 0); !errdefs.IsNotFound(err) {
		t.Errorf("read after the failure: got %v, want not found", err)
	}
	f.Delay = func(context.Context) { time.Sleep(50 * time.Millisecond) }
	done := make(chan error, 1)
	go func() { done <- s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources}) }()
	for { // reads fail until the next attempt has begun
		if _, err := s.Views.View("").ReadAt(t.Context(), d, one, 5<<20); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if one[0] != p[5<<20] {
		t.Error("wrong byte")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Chunks of existing objects are copied: for a model that shares most chunks with another one, only the
// others are fetched.
func TestChunksAreShared(t *testing.T) {
	p := storetest.Random(11, 40<<20)
	tuned := bytes.Clone(p)
	copy(tuned[13<<20:], storetest.Random(12, 1<<20))
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p, tuned)
	for _, b := range [][]byte{p, tuned} {
		table := storetest.NewBuilder(digest.FromBytes(b).String()).RawChunks("w", b, 0o644, 1<<20).Put(t, s)
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddRef(fmt.Sprint("pin/", len(b), b[13<<20]), table, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if sent := f.Sent(digest.FromBytes(tuned)); sent != 1<<20 {
		t.Errorf("%d bytes crossed the wire, want those of one chunk", sent)
	}
	if c := s.Counts(); c.CopiedBytes != 39<<20 {
		t.Errorf("%d bytes were copied", c.CopiedBytes)
	}
	if got, err := s.ReadBytes(digest.FromBytes(tuned), 40<<20, nil); err != nil || !bytes.Equal(got, tuned) {
		t.Errorf("object: %v", err)
	}
}

// Readers have priority: they do not wait for a paused background job, which continues later.
func TestReadersHavePriority(t *testing.T) {
	p := storetest.Random(13, 30<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk).Put(t, s)
	hold(t, s, table)
	f := storetest.NewFetcher(p)
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	var ended atomic.Bool
	done := make(chan error, 1)
	go func() {
		err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f), Background: true})
		ended.Store(true)
		done <- err
	}()
	readRandomly(t, s, d, p[:20<<20], 30)
	if ended.Load() {
		t.Error("the job ended although it is paused")
	}
	s.Resume()
	s.SetRate(200 << 20)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	readRandomly(t, s, d, p, 30)
}

// When the last reference to a table is removed, its files can no longer be read, and their staged
// bytes can be collected.
func TestWithdraw(t *testing.T) {
	p := storetest.Random(14, 9<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk).Put(t, s)
	hold(t, s, table)
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	readRandomly(t, s, d, p, 1)
	if err := s.RemoveRef("snapshot/1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Views.View("").Size(d); !errdefs.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
	left, err := filepath.Glob(filepath.Join(s.Dir(), "partial", "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("staged: %v, %v", left, err)
	}
}

// Adjacent small files are fetched together, in any order.
func TestSmallFilesTogether(t *testing.T) {
	var headers []tar.Header
	var contents [][]byte
	for i := range 300 {
		headers = append(headers, tar.Header{Name: fmt.Sprintf("f%03d", i), Mode: 0o644})
		contents = append(contents, storetest.Random(uint64(100+i), 1000+i*37))
	}
	headers = append(headers, tar.Header{Name: "weights", Mode: 0o644})
	contents = append(contents, storetest.Random(99, 9<<20))
	p := storetest.Tar(t, headers, contents)
	f := storetest.NewFetcher(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("x").TarChunks(t, p, filetable.MaxChunk).Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if n := f.Calls(digest.FromBytes(p)); n > 6 {
		t.Errorf("%d requests for 300 small files of 2 MiB together and one of 9 MiB", n)
	}
	for i, want := range contents {
		if got, err := s.ReadBytes(digest.FromBytes(want), int64(len(want)), nil); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %v", headers[i].Name, err)
		}
	}
}

// On file systems with reflinks, chunks copied from an object take no space.
func TestChunksShareBlocks(t *testing.T) {
	dir := xfs(t)
	s, err := store.Open(filepath.Join(dir, "store"), store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := storetest.Random(15, 48<<20)
	tuned := bytes.Clone(p)
	copy(tuned[13<<20:], storetest.Random(16, 2<<20))
	f := storetest.NewFetcher(p, tuned)
	var free [3]uint64
	for i, b := range [][]byte{p, tuned} {
		free[i] = freeBytes(t, dir)
		// Chunk boundaries at arbitrary offsets, the same in both files.
		table := storetest.NewBuilder(fmt.Sprint(i)).RawChunks("w", b, 0o644, 1_000_003).Put(t, s)
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Fatal(err)
		}
		if err := s.AddRef(fmt.Sprint("pin/", i), table, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if got, err := s.ReadBytes(digest.FromBytes(b), int64(len(b)), nil); err != nil || !bytes.Equal(got, b) {
			t.Fatalf("object: %v", err)
		}
	}
	free[2] = freeBytes(t, dir)
	first, second := free[0]-free[1], free[1]-free[2]
	if first < 48<<20 || second > 8<<20 {
		t.Errorf("the first model took %d bytes, the second %d", first, second)
	}
}

func freeBytes(t *testing.T, dir string) uint64 {
	t.Helper()
	unix.Sync()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bfree * uint64(st.Bsize)
}

// Options.Connections limits the concurrent ranges of an awaited pull, with and without chunks.
func TestConnectionsAreBounded(t *testing.T) { synctest.Test(t, testConnectionsAreBounded) }

func testConnectionsAreBounded(t *testing.T) {
	p, q := storetest.Random(17, 40<<20), storetest.Random(18, 40<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{Connections: 3})
	f := storetest.NewFetcher(p, q)
	var now, most atomic.Int64
	f.Delay = func(context.Context) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
	}
	table := storetest.NewBuilder("x").RawChunks("chunks", p, 0o644, filetable.MaxChunk).Raw("whole", q, 0o644).Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if most.Load() > 3 {
		t.Errorf("%d ranges at the same time, want 3 at most", most.Load())
	}
}
