package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Tests that waiting ends when what is waited for cannot happen any more.

// endsIn waits for the end of something, in the time of a bubble.
func endsIn(t *testing.T, limit time.Duration, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
		t.Fatalf("%s: it still waits after %v", what, limit)
		return nil
	}
}

// readLater reads a byte of a file in a view.
func readLater(t *testing.T, s *store.Store, view string, p []byte) <-chan error {
	return later(func() error {
		_, err := s.Views.View(view).ReadAt(t.Context(), digest.FromBytes(p), make([]byte, 1), 0)
		return err
	})
}

// A reader of a file that does not arrive ends when the reference of its view is removed.
func TestReaderOfRemovedReference(t *testing.T) {
	p := storetest.Random(30, 1<<20)
	for name, b := range map[string]*storetest.Builder{
		"whole":  storetest.NewBuilder("x").Raw("w", p, 0o644),
		"chunks": storetest.NewBuilder("x").RawChunks("w", p, 0o644, 1<<18),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := storetest.Open(t, t.TempDir(), store.Options{})
				table := b.Put(t, s)
				hold(t, s, table)
				if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{View: "snapshot/1", Sources: good(hung(p)), Wait: true}); err != nil {
					t.Fatal(err)
				}
				read := readLater(t, s, "snapshot/1", p)
				synctest.Wait()
				if err := s.RemoveRef("snapshot/1"); err != nil {
					t.Fatal(err)
				}
				if err := endsIn(t, time.Second, "read", read); !errdefs.IsNotFound(err) {
					t.Errorf("read: %v, want not found", err)
				}
			})
		})
	}
}

// A reader ends when the download of its file ends because nothing waits for it, and waits for the next one.
func TestReaderOfAbandonedDownload(t *testing.T) {
	for _, abandon := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const linger = time.Minute
			p := storetest.Random(30, 1<<20)
			s := storetest.Open(t, t.TempDir(), store.Options{Linger: linger})
			table := storetest.NewBuilder("x").Raw("w", p, 0o644).Put(t, s)
			hold(t, s, table)
			sources := good(hung(p))
			if err := s.Views.Expose(t.Context(), table, store.ExposeOptions{View: "snapshot/1", Sources: sources, Wait: true}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			pull := later(func() error { return s.Hydrate(ctx, table, store.HydrateOptions{Sources: sources}) })
			read := readLater(t, s, "snapshot/1", p)
			synctest.Wait()
			cancel()
			<-pull
			if abandon {
				if n, err := s.Abandon(t.Context()); n != 1 || err != nil {
					t.Errorf("abandoned: %d, %v", n, err)
				}
			}
			if err := endsIn(t, linger+time.Second, "read", read); !errdefs.IsUnavailable(err) {
				t.Errorf("read: %v, want unavailable", err)
			}
			if state(t, s, table).Running {
				t.Error("it is still downloaded")
			}
			ctx, cancel = context.WithCancel(t.Context())
			again := later(func() error {
				return s.Hydrate(ctx, table, store.HydrateOptions{Sources: sources, Background: true})
			})
			synctest.Wait()
			read = readLater(t, s, "snapshot/1", p)
			synctest.Wait()
			select {
			case err := <-read:
				t.Errorf("read during the next download: %v", err)
			default:
			}
			cancel()
			<-again
			if err := s.RemoveRef("snapshot/1"); err != nil {
				t.Fatal(err)
			}
			<-read
		})
	}
}

// A pull that waits for a file that paused background work assembles is not paused, and nothing is fetched twice.
func TestAssemblyOfPausedDownload(t *testing.T) {
	for name, late := range map[string]bool{"awaited": false, "awaited later": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				blobs, other := fragments(4, 1<<20), storetest.Random(5, 1<<20)
				s := storetest.Open(t, t.TempDir(), store.Options{})
				one, two := storetest.NewBuilder("one").Raw("other", other, 0o644), storetest.NewBuilder("two")
				merged(one, "w", "h", blobs)
				want := merged(two, "w", "h", blobs)
				background, awaited := one.Put(t, s), two.Put(t, s)
				f := storetest.NewFetcher(append(blobs, other)...)
				hydrate := func(table digest.Digest, background bool) <-chan error {
					return later(func() error {
						return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(f), Background: background})
					})
				}
				s.Pause()
				first := hydrate(background, true)
				synctest.Wait()
				var early <-chan error
				if late {
					early = hydrate(awaited, true)
					synctest.Wait()
				}
				if err := endsIn(t, time.Minute, "pull", hydrate(awaited, false)); err != nil {
					t.Error(err)
				}
				if content(t, s, awaited)["w"] != want {
					t.Error("wrong bytes")
				}
				for i, b := range blobs {
					if n := f.Sent(digest.FromBytes(b)); n != int64(len(b)) {
						t.Errorf("%d bytes of blob %d of %d were fetched", n, i, len(b))
					}
				}
				s.Resume()
				if err := <-first; err != nil {
					t.Error(err)
				}
				if late {
					if err := <-early; err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

// A reader of a whole file does not wait for the other files of a paused download, however many have begun.
func TestReaderOfPausedDownload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBuilder("x")
		var files [][]byte
		for i := range 36 { // more than are fetched at the same time
			files = append(files, storetest.Random(uint64(i), 5<<20))
			b.Raw(fmt.Sprintf("f%02d", i), files[i], 0o644)
		}
		s := storetest.Open(t, t.TempDir(), store.Options{})
		table := b.Put(t, s)
		hold(t, s, table)
		f := storetest.NewFetcher(files...)
		o := store.ExposeOptions{View: "snapshot/1", Sources: good(f), Wait: true}
		if err := s.Views.Expose(t.Context(), table, o); err != nil {
			t.Fatal(err)
		}
		s.Pause()
		pull := later(func() error {
			return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources, Background: true})
		})
		synctest.Wait()
		for _, i := range []int{35, 3, 34} {
			if err := endsIn(t, time.Minute, "read", readLater(t, s, "snapshot/1", files[i])); err != nil {
				t.Error(err)
			}
		}
		if n := f.Calls(digest.FromBytes(files[20])); n > 0 {
			t.Error("a file that nobody reads is fetched")
		}
		s.Resume()
		if err := <-pull; err != nil {
			t.Error(err)
		}
	})
}

// While the disk takes long to remove abandoned staged files, models are shown, read and published.
func TestSweepHoldsNobodyUp(t *testing.T) {
	disk := storetest.NewSlowDisk(t)
	disk.Slow(func(op, path string) bool { return op == "unlink" && strings.HasSuffix(path, "/abandoned") })
	dir := filepath.Join(disk.Dir, "partial", digest.FromString("a").Encoded()+"-"+digest.FromString("b").Encoded()[:32])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "abandoned"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(dir, long, long); err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, disk.Dir, store.Options{})
	gc := later(func() error {
		r, err := s.GC(t.Context(), store.GCOptions{Keep: 1 << 40})
		if r.Partials != 1 {
			t.Errorf("collected: %+v", r)
		}
		return err
	})
	<-disk.Syncing
	p := storetest.Random(30, 2<<20)
	storetest.WithinLimit(t, "showing a model", func() error {
		table := storetest.NewBuilder("x").RawChunks("w", p, 0o644, 1<<20).Inline("i", []byte("inline"), 0o644).Put(t, s)
		hold(t, s, table)
		o := store.ExposeOptions{View: "snapshot/1", Sources: good(storetest.NewFetcher(p)), Probe: true}
		if err := s.Views.Expose(t.Context(), table, o); err != nil {
			return err
		}
		if _, err := s.Views.View("snapshot/1").ReadAt(t.Context(), digest.FromBytes(p), make([]byte, 10), 0); err != nil {
			return err
		}
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: o.Sources})
	})
	disk.Release()
	if err := <-gc; err != nil {
		t.Error(err)
	}
}
