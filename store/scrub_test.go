package store_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// scrubbing returns options of a scrub without pauses, for which the callbacks are set.
func scrubbing(progress func(done int64), damaged func([]store.CheckResult)) store.ScrubOptions {
	return store.ScrubOptions{
		Interval: time.Nanosecond, Rate: 1 << 40,
		Begin: func() (func(done, total int64), func(error)) {
			return func(done, _ int64) { progress(done) }, func(error) {}
		},
		Damaged: func(_ context.Context, bad []store.CheckResult) { damaged(bad) },
	}
}

// TestScrub finds a flipped bit and a file that is gone, again after a repair.
func TestScrub(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	p, q := storetest.Random(1, 3<<20+5), storetest.Random(2, 100)
	table := storetest.NewBuilder("m").Raw("p", p, 0o644).Raw("q", q, 0o644).Put(t, s)
	hydrate := func() {
		t.Helper()
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p, q))}); err != nil {
			t.Fatal(err)
		}
	}
	hydrate()
	if err := s.AddRef("pin/m", table, time.Time{}); err != nil {
		t.Fatal(err)
	}
	path := func(b []byte) string { return filepath.Join(s.ObjectsDir(), store.ObjectName(digest.FromBytes(b))) }
	for name, tt := range map[string]struct {
		of     []byte
		damage func() error
		size   int64
	}{
		"flipped bit": {p, func() error {
			f, err := os.OpenFile(path(p), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte{p[2<<20] ^ 4}, 2<<20)
			return errors.Join(err, f.Close())
		}, int64(len(p))},
		"gone": {q, func() error { return os.Remove(path(q)) }, 0},
	} {
		if err := tt.damage(); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var found []store.CheckResult
		rounds := 0
		err := s.Scrub(ctx, scrubbing(func(done int64) {
			if done == 0 {
				rounds++
			}
			if rounds > 2 {
				stop()
			}
		}, func(bad []store.CheckResult) {
			found = append(found, bad...)
			if s.Has(bad[0].Digest) {
				t.Errorf("%s: it is an object still", name)
			}
			hydrate()
		}))
		stop()
		if err != nil || len(found) != 1 || found[0].Digest != digest.FromBytes(tt.of) || found[0].Size != tt.size || !slices.Equal(found[0].Tables, []digest.Digest{table}) {
			t.Errorf("%s: got %+v, %v", name, found, err)
		}
	}
	if h, err := s.Health(); err != nil || h.Scrubbed.IsZero() || len(h.Damaged) > 0 {
		t.Errorf("health: %+v, %v", h, err)
	}
	if c := s.Counts(); c.Damaged != 2 {
		t.Errorf("%d objects were damaged", c.Damaged)
	}
}

// TestScrubGoesOn stops a scrub, which goes on with the next object after the store was opened again.
func TestScrubGoesOn(t *testing.T) {
	dir := t.TempDir()
	s := storetest.Open(t, dir, store.Options{})
	for i := range 8 {
		if _, err := s.PutBytes(storetest.Random(uint64(i), 1000+i)); err != nil {
			t.Fatal(err)
		}
	}
	u, err := s.Usage()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	if err := s.Scrub(ctx, scrubbing(func(done int64) {
		if done > 3000 {
			stop()
		}
	}, nil)); err != nil {
		t.Fatal(err)
	}
	first := s.Counts().ScrubbedBytes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = storetest.Open(t, dir, store.Options{})
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	var began, second int64 = -1, 0
	o := scrubbing(func(done int64) {
		if began < 0 {
			began = done
		}
		if done == 0 { // the next scrub
			stop()
		} else {
			second = s.Counts().ScrubbedBytes
		}
	}, nil)
	if err := s.Scrub(ctx, o); err != nil {
		t.Fatal(err)
	}
	last := s.Counts().ScrubbedBytes
	if first < 3000 || began != first || second >= last || first+last != u.Unique {
		t.Errorf("%d bytes, then from %d on %d bytes, of %d", first, began, last, u.Unique)
	}
}

// TestScrubWaits reads nothing while a model is downloaded.
func TestScrubWaits(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	for i := range 40 {
		if _, err := s.PutBytes(storetest.Random(uint64(i), 1000)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var last int64 = -1
	waited := false
	n := uint64(100)
	err := s.Scrub(ctx, scrubbing(func(done int64) {
		if waited = waited || done == last; waited {
			stop()
			return
		}
		if last = done; n > 140 {
			stop() // it reads on, whatever is downloaded
			return
		}
		n++ // a hydration that has just begun
		p := storetest.Random(n, 1<<20)
		f := storetest.NewFetcher(p)
		f.Delay = func(ctx context.Context) { <-ctx.Done() }
		table := storetest.NewBuilder("m").Raw("p", p, 0o644).Put(t, s)
		go s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)})
		for len(s.Work()) == 0 {
			time.Sleep(time.Millisecond)
		}
	}, nil))
	if err != nil || !waited {
		t.Errorf("it does not wait: %v", err)
	}
}

// TestScrubGoesOnAfterAnError puts a directory where an object is, which cannot be read: the others are.
func TestScrubGoesOnAfterAnError(t *testing.T) {
	s := storetest.Open(t, t.TempDir(), store.Options{})
	for i := range 8 {
		d, err := s.PutBytes(storetest.Random(uint64(i), 1000))
		if err != nil {
			t.Fatal(err)
		}
		if i%4 != 0 {
			continue
		}
		path := filepath.Join(s.ObjectsDir(), store.ObjectName(d))
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(path) })
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	o := scrubbing(func(int64) {}, nil)
	o.Begin = func() (func(done, total int64), func(error)) {
		return func(int64, int64) {}, func(err error) {
			if err != nil {
				t.Error(err)
			}
			stop()
		}
	}
	if err := s.Scrub(ctx, o); err != nil {
		t.Fatal(err)
	}
	if n := s.Counts().ScrubbedBytes; n != 6*1000 {
		t.Errorf("%d bytes were read", n)
	}
}

// TestScrubDoesNotWaitForEver begins a download each time that a scrub looks for one: it reads on all the same.
func TestScrubDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t, t.TempDir(), store.Options{})
		if _, err := s.PutBytes(storetest.Random(0, 1000)); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		n, read := uint64(0), int64(0)
		err := s.Scrub(ctx, scrubbing(func(done int64) {
			if n++; done > 0 || n > 100 {
				read = done
				stop()
				return
			}
			p := storetest.Random(n, 1000)
			f := storetest.NewFetcher(p)
			f.Delay = func(ctx context.Context) { <-ctx.Done() }
			table := storetest.NewBuilder("m").Raw("p", p, 0o644).Put(t, s)
			go s.Hydrate(ctx, table, store.HydrateOptions{Sources: storetest.From(f)})
			synctest.Wait()
		}, nil))
		if err != nil || read == 0 {
			t.Errorf("nothing was read, %v", err)
		}
	})
}
