package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// chainOf returns the chain of p.
func chainOf(t testing.TB, p []byte) verify.Chain {
	t.Helper()
	c, err := verify.ReadChain(t.Context(), bytes.NewReader(p), digest.FromBytes(p), int64(len(p)), func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// putChain records one chain.
func putChain(s *store.Store, b filetable.Blob, c verify.Chain, signer string) error {
	return s.PutChains(store.SignedChain{Blob: b, States: c, Signer: signer})
}

// rawModel is a model of one file, which is a whole blob, in a new store.
func rawModel(t testing.TB, dir string, p []byte, o store.Options) (s *store.Store, table digest.Digest, blob filetable.Blob) {
	t.Helper()
	s = storetest.Open(t, dir, o)
	table = storetest.NewBuilder("raw").Raw("model.bin", p, 0o644).Put(t, s)
	hold(t, s, table)
	return s, table, filetable.Blob{Digest: digest.FromBytes(p), Size: int64(len(p))}
}

// A blob with one digest is read in any order, while most of it is not on the node, once its chain is known: the one
// that another node has kept from its download, or reads from its object.
func TestReadByChain(t *testing.T) {
	for _, tt := range []struct {
		size int
		keep bool
	}{{4<<20 + 1, false}, {8 << 20, true}, {13<<20 + 333, true}} {
		t.Run(fmt.Sprint(tt.size), func(t *testing.T) {
			p := half(uint64(tt.size), tt.size)
			first, table, blob := rawModel(t, t.TempDir(), p, store.Options{Chains: tt.keep})
			if _, err := first.HashChain(t.Context(), blob, nil, func(int64) {}); !errdefs.IsNotFound(err) {
				t.Errorf("chain of a missing blob: %v", err)
			}
			if err := first.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
				t.Fatal(err)
			}
			chain, err := first.Chain(blob.Digest, nil)
			if (err == nil) != tt.keep || err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("kept chain: %v", err)
			}
			if !tt.keep {
				read := int64(0)
				chain, err = first.HashChain(t.Context(), blob, nil, func(n int64) { read = n })
				if read != blob.Size {
					t.Errorf("progress ends with %d bytes of %d", read, blob.Size)
				}
			}
			if err != nil || !bytes.Equal(chain, chainOf(t, p)) {
				t.Fatalf("chain: %d states, %v", len(chain)/32, err)
			}

			s, table, _ := rawModel(t, t.TempDir(), p, store.Options{})
			if blobs, err := s.Unchained(table, nil); err != nil || len(blobs) != 1 || blobs[0].Digest != blob.Digest {
				t.Fatalf("without a chain: %v, %v", blobs, err)
			}
			if err := putChain(s, blob, chain, "team"); err != nil {
				t.Fatal(err)
			}
			if blobs, err := s.Unchained(table, nil); err != nil || len(blobs) != 0 {
				t.Errorf("with a chain: %v, %v", blobs, err)
			}
			if names, err := s.ChainSigners(table); err != nil || !slices.Equal(names, []string{"team"}) {
				t.Errorf("signed by %q, %v", names, err)
			}
			f := storetest.NewFetcher(p)
			// Without Wait, only files with chunks are exposed.
			if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f), Probe: true}); err != nil {
				t.Fatal(err)
			}
			head := make([]byte, 8)
			if _, err := s.Views.View("").ReadAt(t.Context(), blob.Digest, head, 0); err != nil || !bytes.Equal(head, p[:8]) || f.Sent(blob.Digest) > verify.Head+1 {
				t.Errorf("beginning: %d bytes were sent for it, %v", f.Sent(blob.Digest), err)
			}
			tail := make([]byte, 1000)
			if n, err := s.Views.View("").ReadAt(t.Context(), blob.Digest, tail, blob.Size-900); n != 900 || err != io.EOF || !bytes.Equal(tail[:n], p[len(p)-900:]) {
				t.Errorf("end: %d bytes, %v", n, err)
			}
			if s.Has(blob.Digest) {
				t.Error("the blob is an object before all of it was read")
			}
			readRandomly(t, s, blob.Digest, p, 20)
			if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
				t.Fatal(err)
			}
			if got, err := s.ReadBytes(blob.Digest, blob.Size, nil); err != nil || !bytes.Equal(got, p) {
				t.Errorf("object: %v", err)
			}
			if sent := f.Sent(blob.Digest); sent > blob.Size+1 { // Probe reads one byte
				t.Errorf("%d bytes of %d were sent", sent, blob.Size)
			}
			if got := leftovers(t, s); len(got) > 0 {
				t.Errorf("left over: %v", got)
			}
		})
	}
}

// A chain vouches for nothing alone: with a right chain wrong bytes are not read, and with a wrong one the right bytes
// are not either, until the blob is complete. Then the chain is gone.
func TestWrongChain(t *testing.T) {
	p := storetest.Random(3, 14<<20)
	wrong := bytes.Clone(p)
	wrong[9<<20] ^= 1
	s, table, blob := rawModel(t, t.TempDir(), p, store.Options{})
	for _, bad := range []struct {
		chain  verify.Chain
		signer string
	}{{chainOf(t, p), ""}, {chainOf(t, p)[:32], "team"}, {nil, "team"}} {
		if err := putChain(s, blob, bad.chain, bad.signer); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a chain of %d bytes by %q: %v", len(bad.chain), bad.signer, err)
		}
	}
	if err := putChain(s, blob, chainOf(t, wrong), "team"); err != nil {
		t.Fatal(err)
	}
	f := storetest.NewFetcher(p)
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	_, before, err := s.Views.View("").LazyFile(blob.Digest)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	if _, err := s.Views.View("").ReadAt(t.Context(), blob.Digest, b, 5<<20); err != nil || !bytes.Equal(b, p[5<<20:][:100]) {
		t.Errorf("a window before the wrong state: %v", err)
	}
	if _, err := s.Views.View("").ReadAt(t.Context(), blob.Digest, b, 8<<20); !errdefs.IsDataLoss(err) {
		t.Errorf("a window at the wrong state: %v", err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Views.View("").ReadAt(t.Context(), blob.Digest, b, 8<<20); err != nil || !bytes.Equal(b, p[8<<20:][:100]) {
		t.Errorf("complete: %v", err)
	}
	if names, err := s.ChainSigners(table); err != nil || len(names) > 0 {
		t.Errorf("the wrong chain by %q is still there, %v", names, err)
	}
	storetest.WithinLimit(t, "a new identity", func() error {
		for {
			if _, after, err := s.Views.View("").LazyFile(blob.Digest); err != nil || after != before {
				return err
			}
		}
	})
	if got := leftovers(t, s); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}

// A liar gives wrong bytes for two requests of a range.
type liar struct {
	*storetest.Fetcher
	lies *atomic.Int32
}

func (l liar) Fetch(ctx context.Context, d digest.Digest, size, off, n int64) (io.ReadCloser, int64, error) {
	r, at, err := l.Fetcher.Fetch(ctx, d, size, off, n)
	if err == nil && off == 8<<20 && l.lies.Add(1) <= 2 {
		r = io.NopCloser(bytes.NewReader(make([]byte, n)))
	}
	return r, at, err
}

// A source that lies says nothing about a chain, by which the models of others are read.
func TestLyingSource(t *testing.T) {
	p := storetest.Random(8, 14<<20)
	s, table, blob := rawModel(t, t.TempDir(), p, store.Options{})
	if err := putChain(s, blob, chainOf(t, p), "team"); err != nil {
		t.Fatal(err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(liar{storetest.NewFetcher(p), new(atomic.Int32)})}); err != nil {
		t.Fatal(err)
	}
	if names, err := s.ChainSigners(table); err != nil || !slices.Equal(names, []string{"team"}) {
		t.Errorf("signed by %q, %v", names, err)
	}
}

// A source and a chain that lie together are found out when the blob is complete: it has no object, and the next
// download does not use the chain.
func TestLyingChain(t *testing.T) {
	p := storetest.Random(4, 10<<20)
	wrong := bytes.Clone(p)
	wrong[9<<20] ^= 1
	s, table, blob := rawModel(t, t.TempDir(), p, store.Options{})
	c := chainOf(t, wrong)
	if err := putChain(s, blob, c, "team"); err != nil {
		t.Fatal(err)
	}
	f := storetest.NewFetcher()
	f.Blobs = map[digest.Digest][]byte{blob.Digest: wrong}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)}); !errdefs.IsDataLoss(err) {
		t.Errorf("wrong bytes by a wrong chain: %v", err)
	}
	if s.Has(blob.Digest) {
		t.Error("wrong bytes are an object")
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
		t.Errorf("another source: %v", err)
	}
}

// Who has read wrong bytes by a chain and a source that lie together reads the file under another identity when the
// right one arrives. Then the chain is gone.
func TestReadersOfALyingChain(t *testing.T) {
	p := storetest.Random(7, 10<<20)
	wrong := bytes.Clone(p)
	wrong[1<<20] ^= 1
	s, table, blob := rawModel(t, t.TempDir(), p, store.Options{})
	if err := putChain(s, blob, chainOf(t, wrong), "team"); err != nil {
		t.Fatal(err)
	}
	liar := storetest.NewFetcher()
	liar.Blobs = map[digest.Digest][]byte{blob.Digest: wrong}
	view := s.Views.View("")
	if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(liar)}); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := view.ReadAt(t.Context(), blob.Digest, b, 1<<20); err != nil || b[0] != wrong[1<<20] {
		t.Fatalf("the lie: %v, %v", b, err)
	}
	_, before, err := view.LazyFile(blob.Digest)
	if err != nil {
		t.Fatal(err)
	}
	honest := storetest.NewBuilder("honest").RawChunks("model.bin", p, 0o644, 1<<20).Put(t, s)
	if err := s.Hydrate(t.Context(), honest, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	storetest.WithinLimit(t, "the end of the lie", func() error {
		for isExposed(s, table) {
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	if _, after, err := view.LazyFile(blob.Digest); err != nil || after == before {
		t.Errorf("the right file has the identity of the wrong one, %v", err)
	}
	if _, err := view.ReadAt(t.Context(), blob.Digest, b, 1<<20); err != nil || b[0] != p[1<<20] {
		t.Errorf("the right file: %v, %v", b, err)
	}
	storetest.WithinLimit(t, "the end of the chain", func() error {
		for {
			if names, err := s.ChainSigners(table); err != nil || len(names) == 0 {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	})
}

// Chains by keys that are not trusted any more are not used after the store was opened again: what readers see is the
// blob by its digest.
func TestTrustChains(t *testing.T) {
	p := storetest.Random(5, 10<<20)
	dir := t.TempDir()
	s, table, blob := rawModel(t, dir, p, store.Options{})
	if err := putChain(s, blob, chainOf(t, p), "old"); err != nil {
		t.Fatal(err)
	}
	second := storetest.NewBuilder("second").Raw("model.bin", p, 0o644).Put(t, s)
	if err := s.AddRef("snapshot/2", second, time.Time{}); err != nil {
		t.Fatal(err)
	}
	expose := func(s *store.Store, table digest.Digest) error {
		return s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(storetest.NewFetcher(p))})
	}
	for _, table := range []digest.Digest{table, second} {
		if err := expose(s, table); err != nil {
			t.Fatal(err)
		}
	}
	readRandomly(t, s, blob.Digest, p, 1)
	_, before, err := s.Views.View("").LazyFile(blob.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		trusted string
		early   bool
	}{{"old", true}, {"new", false}} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = storetest.Open(t, dir, store.Options{})
		if err := s.TrustChains(tt.trusted); err != nil {
			t.Fatal(err)
		}
		if err := expose(s, table); (err == nil) != tt.early || !tt.early && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("trusting %s: %v", tt.trusted, err)
		}
	}
	for _, table := range []digest.Digest{table, second} {
		if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(storetest.NewFetcher(p)), Wait: true}); err != nil {
			t.Fatal(err)
		}
	}
	if _, after, err := s.Views.View("").LazyFile(blob.Digest); err != nil || after == before {
		t.Errorf("the identity of what was read by the chain is still %s, %v", after, err)
	}
}

// The chain of a private blob does not exist for others, as the blob does not.
func TestPrivateChain(t *testing.T) {
	p := storetest.Random(6, 5<<20)
	s, table, blob := rawModel(t, t.TempDir(), p, store.Options{Chains: true})
	owner := good(storetest.Private{Fetcher: storetest.NewFetcher(p)})
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: owner}); err != nil {
		t.Fatal(err)
	}
	for who, names := range map[string][]string{"owner": transfer.Names(owner), "stranger": transfer.Names(evil(nil)), "nobody": nil} {
		for how, err := range map[string]error{
			"kept": errOf(s.Chain(blob.Digest, names)), "hashed": errOf(s.HashChain(t.Context(), blob, names, func(int64) {})),
		} {
			if (err == nil) != (who == "owner") || err != nil && !errdefs.IsNotFound(err) {
				t.Errorf("%s, %s: %v", who, how, err)
			}
		}
	}
}

func errOf(_ verify.Chain, err error) error { return err }

// What began without a chain goes on without: a model that is shown keeps the identity of its files, and bytes that are
// staged are not fetched again. A stranger's object does not keep others from a chain.
func TestLateChain(t *testing.T) {
	p := storetest.Random(8, 11<<20)
	s, table, blob := rawModel(t, t.TempDir(), p, store.Options{Linger: time.Nanosecond})
	half := storetest.NewFetcher(p)
	half.Allow = func(off, _ int64) bool { return off < 8<<20 }
	show := func(f transfer.Fetcher) {
		t.Helper()
		if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{Sources: storetest.From(f), Wait: true}); err != nil {
			t.Fatal(err)
		}
	}
	show(half)
	_, before, err := s.Views.View("").LazyFile(blob.Digest)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pull := later(func() error {
		return s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(half), Background: true})
	})
	waitFor(t, "two windows", func() bool {
		st, err := s.State(t.Context(), table)
		return err == nil && st.Done >= 8<<20
	})
	if err := putChain(s, blob, chainOf(t, p), "team"); err != nil {
		t.Fatal(err)
	}
	if st := state(t, s, table); st.Done < 8<<20 {
		t.Errorf("with the chain, %d bytes are staged", st.Done)
	}
	cancel()
	if err := ends(t, "the first pull", pull); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	waitFor(t, "the end of the first pull", func() bool { return len(s.Work()) == 0 })
	rest := storetest.NewFetcher(p)
	show(rest)
	if _, after, err := s.Views.View("").LazyFile(blob.Digest); err != nil || after != before {
		t.Errorf("the identity has changed, %v", err)
	}
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(rest)}); err != nil {
		t.Fatal(err)
	}
	if sent := rest.Sent(blob.Digest); sent > 4<<20 {
		t.Errorf("%d bytes were sent for the last 3 MiB", sent)
	}

	own, table, blob := rawModel(t, t.TempDir(), p, store.Options{})
	if err := own.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(storetest.Private{Fetcher: storetest.NewFetcher(p)})}); err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]int{"good.example/model": 0, "aaa.evil/model": 1} {
		if blobs, err := own.Unchained(table, []string{who}); err != nil || len(blobs) != want {
			t.Errorf("%s needs %v, %v", who, blobs, err)
		}
	}
}

// A blob that is staged without its chain is not shown by it later. A view that has shown it by the chain still does.
func TestStagedBeforeChain(t *testing.T) {
	p := storetest.Random(9, 11<<20)
	dir := t.TempDir()
	s, table, blob := rawModel(t, dir, p, store.Options{})
	f, answer := storetest.NewFetcher(p), make(chan struct{})
	f.Allow = func(off, _ int64) bool { return off < 8<<20 }
	f.Delay = func(ctx context.Context) {
		select {
		case <-answer:
		case <-ctx.Done():
		}
	}
	sources := storetest.From(f)
	pull := later(func() error { return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources}) })
	waitFor(t, "a request", func() bool { return f.Calls(blob.Digest) > 0 })
	if err := putChain(s, blob, chainOf(t, p), "team"); err != nil {
		t.Fatal(err)
	}
	show := func(view string) (identity digest.Digest, err error) {
		t.Helper()
		if err := s.AddRef(view, table, time.Time{}, transfer.Names(sources)...); err != nil {
			t.Fatal(err)
		}
		if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{View: view, Sources: sources}); err != nil {
			return "", err
		}
		_, identity, err = s.Views.View(view).LazyFile(blob.Digest)
		return identity, err
	}
	before, err := show("snapshot/early")
	if err != nil {
		t.Fatal(err)
	}
	close(answer)
	waitFor(t, "two chunks", func() bool { return state(t, s, table).Done >= 8<<20 })
	check := func(when string) {
		t.Helper()
		if after, err := show("snapshot/early"); err != nil || after != before {
			t.Errorf("%s, the view shows %s instead of %s, %v", when, after, before, err)
		}
		if _, err := show("snapshot/late"); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, a new view: %v", when, err)
		}
	}
	check("during the download")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_ = ends(t, "the download", pull)
	s = storetest.Open(t, dir, store.Options{})
	check("after a restart")
}

// A wrong chain is dropped when the blob is complete, also if the daemon was stopped while the blob was fetched whole.
func TestWrongChainInterrupted(t *testing.T) {
	p := storetest.Random(10, 14<<20)
	wrong := bytes.Clone(p)
	wrong[9<<20] ^= 1
	dir := t.TempDir()
	s, table, blob := rawModel(t, dir, p, store.Options{})
	if err := putChain(s, blob, chainOf(t, wrong), "team"); err != nil {
		t.Fatal(err)
	}
	f := storetest.NewFetcher(p)
	f.Allow = func(off, n int64) bool { return off > 0 || n <= verify.Head } // all but the first chunk without a chain
	pull := later(func() error {
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(f)})
	})
	waitFor(t, "the other chunks", func() bool { return state(t, s, table).Done == 10<<20 }) // 8 MiB by the chain
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_ = ends(t, "the download", pull)
	s = storetest.Open(t, dir, store.Options{})
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	if names, err := s.ChainSigners(table); err != nil || len(names) > 0 {
		t.Errorf("the wrong chain by %q is still there, %v", names, err)
	}
	if got := leftovers(t, s); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}
