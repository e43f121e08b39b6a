package hydrate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/internal/chunkfile"
	"github.com/ballast-dev/ballast/store/internal/dirs"
	"github.com/ballast-dev/ballast/store/internal/hydrate"
	"github.com/ballast-dev/ballast/store/internal/meta"
	"github.com/ballast-dev/ballast/store/internal/staging"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// linger is Engine.Linger in the tests, all of which run in a bubble.
const linger = time.Hour

// host is an engine with the objects in a directory.
type host struct {
	*hydrate.Engine
	t *testing.T

	mu        sync.Mutex // guards the following
	assembled map[digest.Digest]digest.Digest
	began     int
	ended     []error
}

// start starts an engine until the end of the test.
func start(t *testing.T) *host {
	t.Helper()
	root, err := dirs.Open(t.TempDir(), staging.Keeps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	area, err := staging.New(root)
	if err == nil {
		err = root.Mkdir("objects", 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, assembled: map[digest.Digest]digest.Digest{}}
	log := slog.New(slog.DiscardHandler)
	s := transfer.NewScheduler(transfer.Options{Connections: 4, Chunk: filetable.MaxChunkLen, Readers: 2, Unpackers: 1})
	files := &chunkfile.Set{Scheduler: s, Area: area, Finder: h, Log: log}
	h.Engine = &hydrate.Engine{Scheduler: s, Files: files, Area: area, Root: root, Objects: h, Linger: linger, Log: log}
	h.Begin()
	t.Cleanup(func() {
		h.Close()
		files.Close()
		area.Close()
	})
	return h
}

func object(d digest.Digest) string { return filepath.Join("objects", d.Encoded()) }

func (h *host) Has(b filetable.Blob, _ *transfer.Sources) (bool, error) {
	_, err := h.Root.Stat(object(b.Digest))
	return err == nil, nil
}

func (h *host) Assembled(f filetable.File) (digest.Digest, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.assembled[hydrate.RecipeOf(f.Source)], nil
}

func (h *host) Publish(a meta.Arrival) error {
	for _, f := range a.Files {
		if err := h.Root.Rename(f.Staged, object(f.Digest)); err != nil {
			return err
		}
		h.Arrived(f.Digest, func(*transfer.Sources) bool { return true })
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for recipe, d := range a.Assembled {
		h.assembled[recipe] = d
	}
	return nil
}

func (h *host) PutBytes(p []byte) (digest.Digest, error) {
	d := digest.FromBytes(p)
	return d, h.Root.WriteFile(object(d), p, 0o600)
}

func (h *host) Began(digest.Digest, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began++
}

func (h *host) Ended(_ digest.Digest, _ *filetable.Table, _ string, err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = append(h.ended, err)
	return err
}

func (h *host) Reserve(digest.Digest, string, int64, func() int64) (func(), error) {
	return func() {}, nil
}

func (h *host) Wrong(*chunkfile.File) error                { return nil }
func (h *host) DoubtChain(context.Context, filetable.Blob) {}
func (h *host) Room(int64) error                           { return nil }

func (h *host) Fits(int64) error { return nil }

func (h *host) Order(digest.Digest, string) []filetable.Range { return nil }

func (h *host) Find(chunks []filetable.Chunk, _ []byte, _ *transfer.Sources, _ func(filetable.Chunk, []byte) error) []filetable.Location {
	return make([]filetable.Location, len(chunks))
}

func (h *host) Open(d digest.Digest) (*os.File, error) { return h.Root.Open(object(d)) }

// pull hydrates a table.
func (h *host) pull(ctx context.Context, b *storetest.Builder, o hydrate.Options) <-chan error {
	done := make(chan error, 1)
	t := b.Table()
	go func() { done <- h.Hydrate(ctx, t.Origin.Digest, t, o) }()
	return done
}

// ends waits for the end of something.
func ends(t *testing.T, limit time.Duration, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		t.Fatalf("it waits after %v", limit)
		return nil
	}
}

// runs reports whether something has not ended, when nothing happens any more.
func runs(done <-chan error) bool {
	synctest.Wait()
	return len(done) == 0
}

// A gate is a fetcher that serves nothing before it is open, and some blobs never.
type gate struct {
	*storetest.Fetcher
	open   chan struct{}
	closed []digest.Digest
}

// gated returns the sources of a gate, and the function that opens it.
func gated(f *storetest.Fetcher, never ...[]byte) (_ []transfer.Source, open func()) {
	g := &gate{Fetcher: f, open: make(chan struct{})}
	for _, p := range never {
		g.closed = append(g.closed, digest.FromBytes(p))
	}
	return storetest.From(g), sync.OnceFunc(func() { close(g.open) })
}

func (g *gate) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	open := g.open
	if slices.Contains(g.closed, d) {
		open = nil
	}
	select {
	case <-open:
		return g.Fetcher.Fetch(ctx, d, size, off, n)
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
}

// fragments returns n blobs of 100 KiB.
func fragments(n int) (blobs [][]byte) {
	for i := range n {
		blobs = append(blobs, storetest.Random(uint64(i), 100<<10))
	}
	return blobs
}

// merged adds a file that consists of blobs, with a header.
func merged(b *storetest.Builder, path string, blobs [][]byte) *storetest.Builder {
	parts := []storetest.Part{{Inline: []byte("header of " + path)}}
	for _, p := range blobs {
		parts = append(parts, storetest.Part{Blob: p, N: len(p)})
	}
	return b.Parts(path, 0o644, parts...)
}

// Calls for one table from one group share the work, and each blob is fetched once for all tables.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p, q := storetest.Random(1, 9<<20), storetest.Random(2, 100)
		f := storetest.NewFetcher(p, q)
		from, release := gated(f)
		one := storetest.NewBuilder("one").Raw("p", p, 0o644).Raw("q", q, 0o644)
		two := storetest.NewBuilder("two").Raw("other name", p, 0o644)
		var all []<-chan error
		for _, b := range []*storetest.Builder{one, two, one} {
			all = append(all, h.pull(t.Context(), b, hydrate.Options{Sources: from}))
		}
		for _, done := range all {
			if !runs(done) {
				t.Error("it ended before a byte arrived")
			}
		}
		if tables, blobs := h.Live(); len(tables) != 2 || len(blobs) != 3 {
			t.Errorf("live: %v, %v", tables, blobs)
		}
		release()
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for _, b := range [][]byte{p, q} {
			if n := f.Sent(digest.FromBytes(b)); n != int64(len(b)) {
				t.Errorf("%d bytes of %d were fetched", n, len(b))
			}
		}
		if h.began != 2 || !slices.Equal(h.ended, []error{nil, nil}) {
			t.Errorf("%d began, ended: %v", h.began, h.ended)
		}
		if w := h.Work(); len(w) > 0 {
			t.Errorf("after the end: %+v", w)
		}
	})
}

// Awaited work continues for Linger without a caller, and no longer.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p := storetest.Random(1, 100)
		from, _ := gated(storetest.NewFetcher(p))
		b := storetest.NewBuilder("x").Raw("p", p, 0o644)
		for range 3 { // each comes back in time
			ctx, leave := context.WithTimeout(t.Context(), linger)
			if err := <-h.pull(ctx, b, hydrate.Options{Sources: from}); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			leave()
			time.Sleep(linger - time.Second)
			if w := h.Work(); len(w) != 1 || w[0].Waiting != 0 || time.Until(w[0].Ends) != time.Second {
				t.Fatalf("work: %+v", w)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if w := h.Work(); len(w) > 0 || h.began != 1 || len(h.ended) != 1 || !errdefs.IsUnavailable(h.ended[0]) {
			t.Errorf("work: %+v, %d began, ended: %v", w, h.began, h.ended)
		}
	})
}

// Background work ends with its caller, unless another one waits.
func TestBackgroundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p := storetest.Random(1, 100)
		from, _ := gated(storetest.NewFetcher(p))
		b := storetest.NewBuilder("x").Raw("p", p, 0o644)
		o := hydrate.Options{Sources: from, Background: true}
		ctx, leave := context.WithCancel(t.Context())
		one, two := h.pull(ctx, b, o), h.pull(t.Context(), b, o)
		synctest.Wait()
		leave()
		if err := <-one; !errors.Is(err, context.Canceled) || !runs(two) || len(h.ended) > 0 {
			t.Errorf("the first: %v; ended: %v", err, h.ended)
		}
		if n, err := h.Abandon(t.Context()); n > 0 || err != nil {
			t.Errorf("%d abandoned, %v", n, err)
		}
		h.Close()
		if err := <-two; !errdefs.IsUnavailable(err) || len(h.ended) != 1 || !errdefs.IsUnavailable(h.ended[0]) {
			t.Errorf("closed: %v, ended: %v", err, h.ended)
		}
		if err := <-h.pull(t.Context(), b, o); !errdefs.IsUnavailable(err) {
			t.Errorf("after Close: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p := storetest.Random(1, 100)
		from, _ := gated(storetest.NewFetcher(p))
		ctx, leave := context.WithCancel(t.Context())
		done := h.pull(ctx, storetest.NewBuilder("x").Raw("p", p, 0o644), hydrate.Options{Sources: from, Background: true})
		synctest.Wait()
		leave()
		<-done
		synctest.Wait()
		if w := h.Work(); len(w) > 0 || len(h.ended) != 1 || !errors.Is(h.ended[0], context.Canceled) {
			t.Errorf("work: %+v, ended: %v", w, h.ended)
		}
	})
}

// A call that joined work whose sources fail tries its own.
func TestJoinedWorkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p := storetest.Random(1, 100)
		bad, good := storetest.NewFetcher(), storetest.NewFetcher(p)
		from, release := gated(bad)
		bad.Blobs[digest.FromBytes(p)] = nil
		bad.Fail = func(int64) error { return errdefs.ErrPermissionDenied }
		b := storetest.NewBuilder("x").Raw("p", p, 0o644)
		first := h.pull(t.Context(), b, hydrate.Options{Sources: from})
		synctest.Wait()
		second := h.pull(t.Context(), storetest.NewBuilder("y").Raw("p", p, 0o644), hydrate.Options{Sources: storetest.From(good)})
		synctest.Wait()
		release()
		if err := <-second; err != nil {
			t.Errorf("with its own source: %v", err)
		}
		if err := <-first; err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("without access: %v", err)
		}
	})
}

// A file that arrives from elsewhere ends its fetch.
func TestArrivedFromElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p := storetest.Random(1, 9<<20)
		from, _ := gated(storetest.NewFetcher(p))
		done := h.pull(t.Context(), storetest.NewBuilder("x").RawChunks("p", p, 0o644, 1<<20), hydrate.Options{Sources: from})
		synctest.Wait()
		h.Arrived(digest.FromBytes(p), func(*transfer.Sources) bool { return false })
		if !runs(done) {
			t.Fatal("it ended, although its sources may not have the file")
		}
		if _, err := h.PutBytes(p); err != nil {
			t.Fatal(err)
		}
		h.Arrived(digest.FromBytes(p), func(*transfer.Sources) bool { return true })
		if err := ends(t, time.Second, done); err != nil {
			t.Error(err)
		}
	})
}

// A file is assembled by one hydration at a time, and others go on when it is an object, even if the one that
// assembled it has more to do. Each fragment is fetched once.
func TestAssembledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		blobs, more := fragments(5), storetest.Random(100, 3<<20)
		f := storetest.NewFetcher(append(slices.Clone(blobs), more)...)
		from, release := gated(f, more)
		both := func(name string) *storetest.Builder {
			return merged(merged(storetest.NewBuilder(name), "a", blobs[:3]), "b", blobs[3:])
		}
		first := h.pull(t.Context(), both("one").Raw("more", more, 0o644), hydrate.Options{Sources: from})
		synctest.Wait()
		var others []<-chan error
		for i := range 3 {
			others = append(others, h.pull(t.Context(), both(fmt.Sprint("other", i)), hydrate.Options{Sources: from}))
		}
		synctest.Wait()
		release()
		for _, done := range others {
			if err := ends(t, time.Minute, done); err != nil {
				t.Error(err)
			}
		}
		if !runs(first) {
			t.Error("the first ended without all of its files")
		}
		for i, b := range blobs {
			if n := f.Calls(digest.FromBytes(b)); n != 1 {
				t.Errorf("fragment %d was fetched %d times", i, n)
			}
		}
		if n := len(h.assembled); n != 2 {
			t.Errorf("%d files were assembled", n)
		}
	})
}

// Files that have a fragment in common are right, although it is staged in one of them only.
func TestFragmentOfSeveralFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		blobs := fragments(4)
		b := merged(merged(merged(storetest.NewBuilder("x"), "a", blobs[:3]), "b", [][]byte{blobs[3], blobs[1], blobs[1]}), "c", blobs[1:2])
		o := hydrate.Options{Sources: storetest.From(storetest.NewFetcher(blobs...))}
		one, two := h.pull(t.Context(), b, o), h.pull(t.Context(), merged(storetest.NewBuilder("y"), "c", blobs[1:2]), o)
		for _, done := range []<-chan error{one, two} {
			if err := ends(t, time.Minute, done); err != nil {
				t.Error(err)
			}
		}
		for _, f := range b.Table().Files {
			d, err := h.Assembled(f)
			if err != nil || d == "" {
				t.Fatalf("%s: %q, %v", f.Path, d, err)
			}
			var want []byte
			for _, p := range f.Source.Parts {
				i := slices.IndexFunc(blobs, func(b []byte) bool { return digest.FromBytes(b) == p.Blob })
				want = append(want, p.Inline...)
				if i >= 0 {
					want = append(want, blobs[i]...)
				}
			}
			got, err := h.Root.ReadFile(object(d))
			if err != nil || digest.FromBytes(got) != d || !slices.Equal(got, want) {
				t.Errorf("%s: wrong bytes, %v", f.Path, err)
			}
		}
	})
}

// Presence counts staged bytes of any group, and ends with its context.
func TestPresence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := start(t)
		p, q := storetest.Random(1, 100), storetest.Random(2, 2*staging.ChunkSize)
		b := storetest.NewBuilder("x").Raw("p", p, 0o644).Raw("q", q, 0o644)
		f := storetest.NewFetcher(p, q)
		f.Allow = func(off, _ int64) bool { return off == 0 }
		ctx, leave := context.WithCancel(t.Context())
		done := h.pull(ctx, b, hydrate.Options{Sources: storetest.From(f), Background: true})
		synctest.Wait()
		leave()
		<-done
		synctest.Wait()
		total, n, err := h.Presence(t.Context(), b.Table())
		if total != int64(len(p)+len(q)) || n != int64(len(p)+staging.ChunkSize) || err != nil {
			t.Errorf("%d of %d bytes, %v", n, total, err)
		}
		for name, b := range map[string]*storetest.Builder{"raw": b, "parts": merged(storetest.NewBuilder("y"), "a", fragments(2))} {
			if _, _, err := h.Presence(ctx, b.Table()); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: canceled: %v", name, err)
			}
		}
	})
}
