package store_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Tests of isolation: one user of the node, the attacker, must not affect or read what another one, the
// victim, fetches.

// hung serves blobs, but no byte of them.
func hung(blobs ...[]byte) *storetest.Fetcher {
	f := storetest.NewFetcher(blobs...)
	f.Allow = func(int64, int64) bool { return false }
	return f
}

// evil returns the sources of the attacker, and good those of the victim.
func evil(f transfer.Fetcher) []transfer.Source {
	return storetest.FromRepository("aaa.evil/model", f)
}

func good(f transfer.Fetcher) []transfer.Source {
	return storetest.FromRepository("good.example/model", f)
}

// soon fails if f is stuck.
func soon(t *testing.T, what string, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stuck)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// attack hydrates a table in the background until the end of the test.
func attack(t *testing.T, s *store.Store, b *storetest.Builder, f transfer.Fetcher) {
	t.Helper()
	table := b.Put(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := later(func() error { return s.Hydrate(ctx, table, store.HydrateOptions{Sources: evil(f)}) })
	t.Cleanup(func() { cancel(); <-done })
	waitFor(t, "the fetch begins", func() bool { return !waiting(t, s, table) })
}

func oneFileTar(t testing.TB, seed uint64, size int) []byte {
	return storetest.Tar(t, []tar.Header{{Name: fmt.Sprint("f", seed), Mode: 0o644}}, [][]byte{storetest.Random(seed, size)})
}

// TestHungStranger: every request of the attacker hangs. Pulls of the victim end nevertheless: of other
// blobs, of the same blob, of archives and of assembled files.
func TestHungStranger(t *testing.T) {
	big := storetest.Random(1, 200<<20)
	raw := func(p []byte) *storetest.Builder {
		return storetest.NewBuilder(digest.FromBytes(p).String()).Raw("w", p, 0o644)
	}
	zipped := [][]byte{storetest.Compress(t, oneFileTar(t, 2, 9<<20), filetable.CodecGzip), storetest.Compress(t, oneFileTar(t, 3, 9<<20), filetable.CodecGzip), storetest.Compress(t, oneFileTar(t, 4, 1<<20), filetable.CodecGzip)}
	parts, others := fragments(3, 1<<20), fragments(2, 2<<20)
	for name, tc := range map[string]struct {
		attack func(t *testing.T, s *store.Store)
		victim *storetest.Builder
		blobs  [][]byte
	}{
		"buffers": {
			attack: func(t *testing.T, s *store.Store) { attack(t, s, raw(big), hung(big)) },
			victim: raw(storetest.Random(5, 30<<20)), blobs: [][]byte{storetest.Random(5, 30<<20)},
		},
		"the same blob": {
			attack: func(t *testing.T, s *store.Store) {
				attack(t, s, raw(storetest.Random(6, 9<<20)), hung(storetest.Random(6, 9<<20)))
			},
			victim: storetest.NewBuilder("other").Raw("y", storetest.Random(6, 9<<20), 0o644), blobs: [][]byte{storetest.Random(6, 9<<20)},
		},
		"the same model": {
			attack: func(t *testing.T, s *store.Store) {
				attack(t, s, raw(storetest.Random(6, 9<<20)), hung(storetest.Random(6, 9<<20)))
			},
			victim: raw(storetest.Random(6, 9<<20)), blobs: [][]byte{storetest.Random(6, 9<<20)},
		},
		"unpackers": {
			attack: func(t *testing.T, s *store.Store) {
				for i := range 2 {
					attack(t, s, storetest.NewBuilder(fmt.Sprint("a", i)).Unpack(zipped[i], filetable.CodecGzip, ""), hung(zipped[i]))
				}
			},
			victim: storetest.NewBuilder("v").Unpack(zipped[2], filetable.CodecGzip, ""), blobs: zipped[2:],
		},
		"files that are put together": {
			attack: func(t *testing.T, s *store.Store) {
				b := storetest.NewBuilder("a")
				merged(b, "w", "header a", parts)
				attack(t, s, b, hung(parts...))
			},
			victim: func() *storetest.Builder {
				b := storetest.NewBuilder("v")
				merged(b, "w", "header b", others)
				return b
			}(), blobs: others,
		},
		"the same file that is put together": {
			attack: func(t *testing.T, s *store.Store) {
				b := storetest.NewBuilder("a")
				merged(b, "w", "header", parts)
				attack(t, s, b, hung(parts...))
			},
			victim: func() *storetest.Builder {
				b := storetest.NewBuilder("v")
				merged(b, "w", "header", parts)
				return b
			}(), blobs: parts,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			tc.attack(t, s)
			table := tc.victim.Put(t, s)
			soon(t, "pull", func(ctx context.Context) error {
				return s.Hydrate(ctx, table, store.HydrateOptions{Sources: good(storetest.NewFetcher(tc.blobs...))})
			})
		})
	}
}

// TestHungReaders: reads of files from a registry that hangs hold no resource that other readers wait
// for.
func TestHungReaders(t *testing.T) {
	alive := storetest.Random(72, 3<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for i := range 4 {
		p := storetest.Random(uint64(80+i), 40<<20)
		f := hung(p)
		exposed(t, s, storetest.NewBuilder(fmt.Sprint(i)).RawChunks("a", p, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: evil(f)})
		for j := range 4 {
			readers.Go(func() { _, _ = s.Views.View("").ReadAt(ctx, digest.FromBytes(p), make([]byte, 1), int64(j)*(8<<20)) })
		}
		waitFor(t, "the fetch begins", func() bool { return i >= 2 || f.Calls(digest.FromBytes(p)) > 0 })
	}
	exposed(t, s, storetest.NewBuilder("y").RawChunks("w", alive, 0o644, filetable.MaxChunk), store.ExposeOptions{Sources: good(storetest.NewFetcher(alive))})
	soon(t, "read", func(ctx context.Context) error {
		_, err := s.Views.View("").ReadAt(ctx, digest.FromBytes(alive), make([]byte, 1), 1<<20)
		return err
	})
}

// TestLyingStranger: a pull of the victim does not use bytes staged by the attacker, right or wrong.
func TestLyingStranger(t *testing.T) {
	p := storetest.Random(7, 20<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	lies := storetest.NewFetcher(p)
	lies.Mangle = func(_ int64, b []byte) { clear(b) }
	lies.Allow = func(off, _ int64) bool { return off < 16<<20 } // all but the end
	attack(t, s, storetest.NewBuilder("a").Raw("x", p, 0o644), lies)
	waitFor(t, "the fetch begins", func() bool { return lies.Sent(digest.FromBytes(p)) >= 16<<20 })
	f := storetest.NewFetcher(p)
	table := storetest.NewBuilder("v").Raw("y", p, 0o644).Put(t, s)
	soon(t, "pull", func(ctx context.Context) error {
		return s.Hydrate(ctx, table, store.HydrateOptions{Sources: good(f)})
	})
	if n := f.Sent(digest.FromBytes(p)); n != int64(len(p)) {
		t.Errorf("%d bytes were fetched for %d", n, len(p))
	}
}

// TestWayIsDurable: neither restarts, nor the order of tables, nor running pulls change the way in
// which an exposed file is fetched.
func TestWayIsDurable(t *testing.T) {
	p, dir := storetest.Random(8, 9<<20), t.TempDir()
	victim := storetest.NewBuilder("victim").RawChunks("w", p, 0o644, filetable.MaxChunk)
	lie := storetest.NewBuilder("stranger")
	wrong := storetest.Random(9, 9<<20)
	lie.RawChunks("w", wrong, 0o644, 1<<20)
	forged := lie.Table()
	forged.Blobs[0].Digest, forged.Files[0].Digest, forged.Files[0].Source.Blob = digest.FromBytes(p), digest.FromBytes(p), digest.FromBytes(p)
	serve := storetest.NewFetcher()
	serve.Blobs[digest.FromBytes(p)] = wrong

	s, err := store.Open(dir, store.Options{Reserve: 1})
	if err != nil {
		t.Fatal(err)
	}
	table := exposed(t, s, victim, store.ExposeOptions{Sources: good(storetest.NewFetcher(p))})
	_, before, err := s.Views.View("").LazyFile(digest.FromBytes(p))
	if err != nil {
		t.Fatal(err)
	}
	other := lie.Put(t, s)
	hold(t, s, other)
	for range 2 {
		if err := s.Views.Expose(t.Context(), other, store.ExposeOptions{Sources: evil(serve), Wait: true}); !errdefs.IsFailedPrecondition(err) {
			t.Fatalf("the stranger's way: %v", err)
		}
		if err := s.Close(); err != nil { // after the restart the attacker is first
			t.Fatal(err)
		}
		if s, err = store.Open(dir, store.Options{Reserve: 1}); err != nil {
			t.Fatal(err)
		}
	}
	defer s.Close()
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: good(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	if _, after, err := s.Views.View("").LazyFile(digest.FromBytes(p)); after != before || err != nil {
		t.Errorf("identity %s, was %s: %v", after, before, err)
	}
	readRandomly(t, s, digest.FromBytes(p), p, 10)

	// When no reference needs the victim's table any more, another way can be recorded.
	if err := s.RemoveRef("snapshot/" + table.Encoded()); err != nil {
		t.Fatal(err)
	}
	if err := s.Views.Expose(t.Context(), other, store.ExposeOptions{Sources: evil(serve), Wait: true}); err != nil {
		t.Errorf("alone: %v", err)
	}
}

// TestPrivateBytes: raw files, members of archives and chunks fetched with credentials exist only for
// sources that provided all of them; public ones exist for all.
func TestPrivateBytes(t *testing.T) {
	p := storetest.Random(10, 9<<20)
	zipped := storetest.Compress(t, oneFileTar(t, 11, 3<<20), filetable.CodecGzip)
	tuned := bytes.Clone(p)
	copy(tuned[5<<20:], storetest.Random(12, 1<<20))
	builders := map[string]func(name string) (*storetest.Builder, []byte){
		"raw": func(name string) (*storetest.Builder, []byte) {
			return storetest.NewBuilder(name).Raw("w", p, 0o644), p
		},
		"chunks": func(name string) (*storetest.Builder, []byte) {
			return storetest.NewBuilder(name).RawChunks("w", p, 0o644, 1<<20), p
		},
		"archive": func(name string) (*storetest.Builder, []byte) {
			return storetest.NewBuilder(name).Unpack(zipped, filetable.CodecGzip, ""), zipped
		},
	}
	for name, build := range builders {
		for _, secret := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s private %v", name, secret), func(t *testing.T) {
				s := storetest.Open(t, t.TempDir(), store.Options{})
				b, blob := build("owner")
				f := storetest.NewFetcher(blob)
				var from transfer.Fetcher = f
				if secret {
					from = storetest.Private{Fetcher: f}
				}
				hydrate := func(b *storetest.Builder, sources []transfer.Source) error {
					table := b.Put(t, s)
					hold(t, s, table)
					return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources})
				}
				if err := hydrate(b, good(from)); err != nil {
					t.Fatal(err)
				}
				thief, _ := build("thief")
				err := hydrate(thief, evil(storetest.NewFetcher()))
				if secret != errdefs.IsNotFound(err) || !secret && err != nil {
					t.Errorf("who has nothing: %v", err)
				}
				liar, _ := build("liar")
				lies := storetest.NewFetcher()
				lies.Blobs[digest.FromBytes(blob)] = make([]byte, len(blob))
				if err := hydrate(liar, storetest.FromRepository("liar.evil/x", lies)); secret != (err != nil) {
					t.Errorf("who lies: %v", err)
				}
				friend, _ := build("friend")
				again := storetest.NewFetcher(blob)
				if err := hydrate(friend, storetest.FromRepository("mirror.example/x", again)); err != nil {
					t.Errorf("who has it too: %v", err)
				}
				if n := again.Sent(digest.FromBytes(blob)); secret != (n == int64(len(blob))) || !secret && n > 0 {
					t.Errorf("%d of %d bytes were fetched again", n, len(blob))
				}
				same, _ := build("same")
				if err := hydrate(same, good(storetest.NewFetcher())); err != nil {
					t.Errorf("the same source: %v", err)
				}
			})
		}
	}
	t.Run("copies of chunks", func(t *testing.T) {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		for _, step := range []struct {
			p       []byte
			sources []transfer.Source
			want    int64
		}{
			{p, good(storetest.Private{Fetcher: storetest.NewFetcher(p)}), 0},
			{tuned, evil(storetest.NewFetcher(tuned)), 0},
		} {
			table := storetest.NewBuilder(digest.FromBytes(step.p).String()).RawChunks("w", step.p, 0o644, 1<<20).Put(t, s)
			hold(t, s, table)
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: step.sources}); err != nil {
				t.Fatal(err)
			}
			if n := s.Counts().CopiedBytes; n != step.want {
				t.Errorf("%d bytes were copied from private objects", n)
			}
		}
	})
}

// TestPrivateIsNotShown: a table that names the digest of a private object, and is exposed before
// anything is fetched for it, does not make the object readable.
func TestPrivateIsNotShown(t *testing.T) {
	p, own := storetest.Random(13, 5<<20), storetest.Random(14, 5<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("owner").Raw("w", p, 0o644).Put(t, s)
	hold(t, s, table)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(storetest.Private{Fetcher: storetest.NewFetcher(p)})}); err != nil {
		t.Fatal(err)
	}
	thief := storetest.NewBuilder("thief").RawChunks("own", own, 0o644, 1<<20).RawChunks("w", p, 0o644, 1<<20).Put(t, s)
	hold(t, s, thief)
	err := s.Views.Expose(t.Context(), thief, store.ExposeOptions{Sources: evil(storetest.NewFetcher(own)), Wait: true})
	if !errdefs.IsFailedPrecondition(err) || isExposed(s, thief) {
		t.Errorf("got %v", err)
	}
}

// TestPrivateArchiveIsNotListed: the contents of a private archive are not revealed to a table that
// names its digest.
func TestPrivateArchiveIsNotListed(t *testing.T) {
	zipped, own := storetest.Compress(t, oneFileTar(t, 21, 1<<20), filetable.CodecGzip), storetest.Random(22, 5<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("owner").Unpack(zipped, filetable.CodecGzip, "").Put(t, s)
	hold(t, s, table)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(storetest.Private{Fetcher: storetest.NewFetcher(zipped)})}); err != nil {
		t.Fatal(err)
	}
	thief := storetest.NewBuilder("thief").RawChunks("own", own, 0o644, 1<<20).Unpack(zipped, filetable.CodecGzip, "").Put(t, s)
	for _, view := range []string{"", "snapshot/2"} {
		if err := s.AddRef("snapshot/2", thief, time.Time{}); err != nil {
			t.Fatal(err)
		}
		err := s.Views.Expose(t.Context(), thief, store.ExposeOptions{View: view, Sources: evil(storetest.NewFetcher(own)), Wait: true})
		if !errdefs.IsFailedPrecondition(err) || isExposed(s, thief) {
			t.Errorf("view %q: %v", view, err)
		}
	}
}

// TestReservations: two concurrent pulls do not exceed the quota together.
func TestReservations(t *testing.T) {
	const quota = 40 << 20
	s := storetest.Open(t, t.TempDir(), store.Options{Evict: store.EvictOptions{Quota: quota}})
	release := make(chan struct{})
	var tables [2]digest.Digest
	jobs := make([]<-chan error, 2)
	begun := func(i int) (yes bool) {
		for _, p := range state(t, s, tables[i]).Blobs {
			yes = yes || p.State == "downloading"
		}
		return yes
	}
	for i := range jobs {
		b := storetest.NewBuilder(fmt.Sprint(i))
		f := storetest.NewFetcher()
		f.Delay = func(ctx context.Context) {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		for j := range 100 { // 25 MiB
			p := storetest.Random(uint64(1000*i+j), 256<<10)
			f.Blobs[digest.FromBytes(p)] = p
			b.Raw(fmt.Sprintf("f%04d", j), p, 0o644)
		}
		tables[i] = b.Put(t, s)
		hold(t, s, tables[i])
		jobs[i] = later(func() error {
			return s.Hydrate(t.Context(), tables[i], store.HydrateOptions{Sources: storetest.From(f)})
		})
		for i == 0 && !begun(i) {
			time.Sleep(time.Millisecond)
		}
	}
	for ended := false; !ended; time.Sleep(time.Millisecond) {
		select {
		case err := <-jobs[1]:
			ended = true
			if !errdefs.IsResourceExhausted(err) {
				t.Errorf("the second: %v", err)
			}
		default:
			if begun(1) {
				close(release)
				t.Fatal("both are downloaded")
			}
		}
	}
	close(release)
	if err := <-jobs[0]; err != nil {
		t.Errorf("the first: %v", err)
	}
	if u, err := s.Usage(); err != nil || u.Unique+u.Partial > quota {
		t.Errorf("%d bytes are used: %v", u.Unique+u.Partial, err)
	}
}

// TestExposedReservations: if two models are exposed concurrently and do not fit together, one is
// refused. The other is hydrated into its reserved space; when it is removed, so is the reservation.
func TestExposedReservations(t *testing.T) {
	const quota = 40 << 20
	s := storetest.Open(t, t.TempDir(), store.Options{Evict: store.EvictOptions{Quota: quota}})
	var tables [2]digest.Digest
	var sources [2][]transfer.Source
	expose := func(i int) error {
		return s.Views.Expose(t.Context(), tables[i], store.ExposeOptions{View: fmt.Sprint("snapshot/", i), Sources: sources[i], Probe: true})
	}
	shown := make([]<-chan error, 2)
	for i := range tables {
		p := storetest.Random(uint64(50+i), 25<<20)
		tables[i] = storetest.NewBuilder(fmt.Sprint(i)).RawChunks("w", p, 0o644, filetable.MaxChunk).Put(t, s)
		sources[i] = storetest.FromRepository(fmt.Sprint("registry.example/", i), storetest.NewFetcher(p))
		if err := s.AddRef(fmt.Sprint("snapshot/", i), tables[i], time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range tables {
		shown[i] = later(func() error { return expose(i) })
	}
	first := 0
	for i := range tables {
		switch err := ends(t, "expose", shown[i]); {
		case err == nil:
			first = i
		case !errdefs.IsResourceExhausted(err):
			t.Fatal(err)
		case len(s.Views.Early(tables[i])) > 0:
			t.Error("what does not fit is shown")
		}
	}
	other := 1 - first
	if err := expose(first); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := expose(other); !errdefs.IsResourceExhausted(err) {
		t.Fatalf("both are shown: %v", err)
	}
	if err := s.Hydrate(t.Context(), tables[other], store.HydrateOptions{Sources: sources[other]}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("the other is hydrated: %v", err)
	}
	if err := s.Hydrate(t.Context(), tables[first], store.HydrateOptions{Sources: sources[first]}); err != nil {
		t.Errorf("the first: %v", err)
	}
	for _, i := range []int{first, other} { // removes the one that was hydrated, and the other
		if err := s.RemoveRef(fmt.Sprint("snapshot/", i)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.GC(t.Context(), store.GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := expose(1 - i); err != nil {
			t.Errorf("when the other is gone: %v", err)
		}
	}
}

// TestZerosAreHoles: a file of zeros takes no disk space, whatever its size.
func TestZerosAreHoles(t *testing.T) {
	const size = 1 << 30
	s := storetest.Open(t, t.TempDir(), store.Options{})
	c := &storetest.Compressed{Codec: filetable.CodecZstd, Size: 1 << 20}
	c.Add("small", storetest.Random(15, 1<<20))
	table := storetest.NewBuilder("x").Compressed(t, c).Table()
	zeros := filetable.File{Path: "zeros", Type: filetable.TypeReg, Mode: 0o644, Size: size, Digest: digest.FromString("not known"), Source: &filetable.Source{Blob: table.Blobs[0].Digest, Codec: filetable.CodecZstd}}
	for at := int64(0); at < size; at += filetable.MaxChunk {
		zeros.Source.Chunks = append(zeros.Source.Chunks, filetable.Chunk{Offset: at, Size: filetable.MaxChunk})
	}
	b := storetest.NewBuilder("zeros").Compressed(t, c).File(zeros)
	d := exposed(t, s, b, store.ExposeOptions{Sources: storetest.From(storetest.NewFetcher(c.Blob))})
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; off += 64 << 20 {
		if _, err := s.Views.View("").ReadAt(t.Context(), zeros.Digest, buf, off); err != nil || !bytes.Equal(buf, make([]byte, len(buf))) {
			t.Fatalf("at %d: %v", off, err)
		}
	}
	if u, err := s.Usage(); err != nil || u.Partial > 16<<20 {
		t.Errorf("%d bytes for %s: %v", u.Partial, d, err)
	}
}

// canceled is an error of a source that wraps context.Canceled, although no context of the store has
// ended.
type canceled struct{}

func (canceled) Error() string { return "rpc: the client connection is closing" }
func (canceled) Unwrap() error { return context.Canceled }

// TestForeignCancellation: such errors do not make Hydrate repeat forever.
func TestForeignCancellation(t *testing.T) { synctest.Test(t, testForeignCancellation) }

func testForeignCancellation(t *testing.T) {
	p := storetest.Random(16, 1<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p)
	f.Fail = func(int64) error { return canceled{} }
	table := storetest.NewBuilder("x").Raw("w", p, 0o644).Put(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)}); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestOneContentTwoWays: a table whose archive has the digest of a file with chunks is hydrated, and
// does not end the daemon.
func TestOneContentTwoWays(t *testing.T) {
	p := oneFileTar(t, 17, 1<<20)
	c := (&storetest.Compressed{Codec: filetable.CodecZstd, Size: 1 << 20}).Add("the.tar", p)
	b := storetest.NewBuilder("x").Tar(t, p).Compressed(t, c)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	if err := s.Hydrate(t.Context(), b.Put(t, s), store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p, c.Blob))}); err != nil {
		t.Error(err)
	}
}

// TestReaderOfWholeFile: a reader of a file without chunks does not wait while the hydration is paused,
// or behind an awaited pull of another model.
func TestReaderOfWholeFile(t *testing.T) {
	for name, hinder := range map[string]func(t *testing.T, s *store.Store){
		"paused": func(t *testing.T, s *store.Store) { s.Pause() },
		"behind a pull": func(t *testing.T, s *store.Store) {
			big := storetest.Random(18, 200<<20)
			slow := storetest.NewFetcher(big)
			slow.Delay = func(ctx context.Context) {
				select {
				case <-time.After(300 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			attack(t, s, storetest.NewBuilder("o").Raw("big", big, 0o644), slow)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := storetest.Random(19, 1<<20)
			s := storetest.Open(t, t.TempDir(), store.Options{})
			hinder(t, s)
			f := storetest.NewFetcher(p)
			table := exposed(t, s, storetest.NewBuilder("x").Raw("w", p, 0o644), store.ExposeOptions{Sources: good(f), Wait: true})
			job := later(func() error {
				return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(f), Background: true})
			})
			soon(t, "read", func(ctx context.Context) error {
				_, err := s.Views.View("").ReadAt(ctx, digest.FromBytes(p), make([]byte, 1), 0)
				return err
			})
			soon(t, "wait for small files", func(ctx context.Context) error { return s.Views.AwaitSmall(ctx, "", table) })
			if err := <-job; err != nil {
				t.Error(err)
			}
		})
	}
}
