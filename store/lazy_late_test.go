package store_test

import (
	"archive/tar"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// A read of a removed model must not change the same model when it is pulled again: what comes late must not get into a
// file that is already hashed.
func TestLateRead(t *testing.T) {
	p := storetest.Random(80, 120<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk)

	// A reader requests the first chunk; the registry answers late, with wrong bytes.
	wrong, asked, lie := storetest.NewFetcher(p), make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(asked) })
	wrong.Delay = func(context.Context) { begun(); <-lie }
	wrong.Mangle = func(_ int64, b []byte) { clear(b) }
	table := exposed(t, s, b, store.ExposeOptions{Sources: storetest.From(wrong)})
	late := later(func() error {
		_, err := s.Views.View("").ReadAt(t.Context(), d, make([]byte, 10), 0)
		return err
	})
	<-asked
	if err := s.RemoveRef("snapshot/" + table.Encoded()); err != nil {
		t.Fatal(err)
	}

	// The model is pulled again. When its last chunk is requested, its first chunk is hashed, because
	// there are fewer buffers than chunks.
	right, last, goOn := storetest.NewFetcher(p), make(chan struct{}), make(chan struct{})
	right.Fail = func(off int64) error {
		if off >= 116<<20 {
			close(last)
			<-goOn
		}
		return nil
	}
	exposed(t, s, b, store.ExposeOptions{Sources: storetest.From(right)})
	job := later(func() error {
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(right)})
	})
	<-last
	close(lie)
	_ = ends(t, "late read", late)
	close(goOn)
	if err := ends(t, "job", job); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadBytes(d, 120<<20, nil); err != nil {
		t.Errorf("the object does not have the bytes of its name: %v", err)
	}
}

// Hydrating a table with the same content from two sources does not panic, which would end the daemon.
func TestHydrateContentTwice(t *testing.T) {
	if flag.Arg(0) != "child" {
		out, err := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "child").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out[:min(len(out), 600)])
		}
		return
	}
	synctest.Test(t, func(t *testing.T) {
		p := storetest.Random(81, 3<<20)
		b, f := twice(t, p)
		s := storetest.Open(t, t.TempDir(), store.Options{})
		f.Delay = func(context.Context) { time.Sleep(time.Second) } // both are in transfer
		if err := s.Hydrate(t.Context(), b.Put(t, s), store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
			t.Error(err)
		}
	})
}

// A tug serves a file of two chunks: the first one byte by byte, the second one after the request for
// the first was canceled.
type tug struct {
	whole *storetest.Fetcher
	asked chan int64
	broke chan struct{}
	once  sync.Once
}

func (f *tug) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	body, at, err := f.whole.Fetch(ctx, d, size, off, n)
	if err != nil {
		return nil, 0, err
	}
	select {
	case <-f.broke:
	default:
		f.asked <- off
		body = &tugged{ReadCloser: body, f: f, ctx: ctx, first: off == 0}
	}
	return body, at, nil
}

type tugged struct {
	io.ReadCloser
	f     *tug
	ctx   context.Context
	first bool
}

func (b *tugged) Read(p []byte) (int, error) {
	wait := b.f.broke
	if b.first {
		wait = nil
	}
	select {
	case <-wait:
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	case <-time.After(map[bool]time.Duration{true: 5 * time.Millisecond, false: time.Hour}[b.first]):
		p = p[:1]
	}
	return b.ReadCloser.Read(p)
}

func (b *tugged) Close() error {
	if b.first {
		b.f.once.Do(func() { close(b.f.broke) })
	}
	return b.ReadCloser.Close()
}

// A reader needs a chunk that a background job is already fetching: the chunk becomes urgent, and the
// other chunks wait as if the reader had requested it first.
func TestReadPromotesRunningTransfer(t *testing.T) {
	p := storetest.Random(82, 8<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := &tug{whole: storetest.NewFetcher(p), asked: make(chan int64, 10), broke: make(chan struct{})}
	o := store.ExposeOptions{Sources: storetest.From(f)}
	table := exposed(t, s, storetest.NewBuilder("x").RawChunks("w", p, 0o644, filetable.MaxChunk), o)
	job := later(func() error {
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources, Background: true})
	})
	<-f.asked
	<-f.asked
	if err := ends(t, "read", later(func() error { return readOne(s, p, 5<<20) })); err != nil {
		t.Error(err)
	}
	if err := ends(t, "job", job); err != nil {
		t.Error(err)
	}
}

// Small files are fetched together, but reading one does not wait for a paused job that fetches
// another.
func TestReadSmallFileWhilePaused(t *testing.T) {
	for first := range 2 {
		t.Run(fmt.Sprint(first), func(t *testing.T) { testReadSmallFileWhilePaused(t, first) })
	}
}

// waiting reports whether no fetch of a table has begun.
func waiting(t *testing.T, s *store.Store, table digest.Digest) bool {
	t.Helper()
	st := state(t, s, table)
	return !st.Running || slices.ContainsFunc(st.Blobs, func(p store.Progress) bool { return p.State == "waiting" })
}

func testReadSmallFileWhilePaused(t *testing.T, first int) {
	files := [][]byte{storetest.Random(83, 50_000), storetest.Random(84, 60_000)}
	p := storetest.Tar(t, []tar.Header{{Name: "a", Mode: 0o644}, {Name: "b", Mode: 0o644}}, files)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f := storetest.NewFetcher(p)
	o := store.ExposeOptions{Sources: storetest.From(f)}
	table := exposed(t, s, storetest.NewBuilder("x").TarChunks(t, p, 10_000), o)
	s.Pause()
	defer s.Resume()
	job := later(func() error {
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources, Background: true})
	})
	waitFor(t, "the fetch begins", func() bool { return !waiting(t, s, table) })
	for i := range 2 {
		if err := ends(t, "read", later(func() error { return readOne(s, files[(first+i)%2], 40_000) })); err != nil {
			t.Error(err)
		}
	}
	s.Resume()
	if err := ends(t, "job", job); err != nil {
		t.Error(err)
	}
}
