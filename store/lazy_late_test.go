package store_test

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// A read of a model that is gone can not change the same model that comes again: its bytes, which
// nobody verified, must not get into a file that others have hashed already.
func TestUnverifiedLateRead(t *testing.T) {
	p := storetest.Random(80, 120<<20)
	d := digest.FromBytes(p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	b := storetest.NewBuilder("x").Raw("w", p, 0o644)

	// A reader asks for the first chunk; the registry takes its time, and answers wrong bytes.
	wrong, asked, lie := storetest.NewFetcher(p), make(chan struct{}), make(chan struct{})
	wrong.Delay = func(context.Context) { close(asked); <-lie }
	wrong.Mangle = func(_ int64, b []byte) { clear(b) }
	table := exposed(t, s, b, store.ExposeOptions{Fetchers: []store.Fetcher{wrong}, Unverified: true})
	late := later(func() error {
		_, err := s.ReadAt(t.Context(), d, make([]byte, 10), 0)
		return err
	})
	<-asked
	if err := s.RemoveRef(t.Context(), "snapshot/"+table.Encoded()); err != nil {
		t.Fatal(err)
	}

	// The model comes again. When its last chunk is asked for, its first one is hashed: there are
	// not as many buffers.
	right, last, goOn := storetest.NewFetcher(p), make(chan struct{}), make(chan struct{})
	right.Fail = func(off int64) error {
		if off >= 116<<20 {
			close(last)
			<-goOn
		}
		return nil
	}
	exposed(t, s, b, store.ExposeOptions{Fetchers: []store.Fetcher{right}, Unverified: true})
	job := later(func() error {
		return s.Hydrate(t.Context(), table, store.HydrateOptions{Fetchers: []store.Fetcher{right}})
	})
	<-last
	close(lie)
	_ = ends(t, "late read", late)
	close(goOn)
	if err := ends(t, "job", job); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadBytes(t.Context(), d, 120<<20); err != nil {
		t.Errorf("the object does not have the bytes of its name: %v", err)
	}
}

// A table that has one content by two ways is brought without a panic, which would end the daemon.
func TestHydrateContentTwice(t *testing.T) {
	if flag.Arg(0) != "child" {
		out, err := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "child").CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out[:min(len(out), 600)])
		}
		return
	}
	p := storetest.Random(81, 3<<20)
	b, f := twice(t, p)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	f.Delay = func(context.Context) { time.Sleep(100 * time.Millisecond) } // both are on their way
	if err := s.Hydrate(t.Context(), b.Put(t, s), store.HydrateOptions{Fetchers: []store.Fetcher{f}}); err != nil {
		t.Error(err)
	}
}
