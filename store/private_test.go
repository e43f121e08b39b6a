package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestArrivalProvesNothing: an attacker waits for a private file from a registry that hangs while the
// owner pulls it. The attacker's pull continues to wait.
func TestArrivalProvesNothing(t *testing.T) {
	p := storetest.Random(30, 9<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	thief := storetest.NewBuilder("thief").Raw("w", p, 0o644).Put(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	theft := later(func() error {
		return s.Hydrate(ctx, thief, store.HydrateOptions{Sources: evil(hung(p)), Background: true})
	})
	waitFor(t, "the fetch begins", func() bool { return !waiting(t, s, thief) })
	own := storetest.NewBuilder("owner").Raw("w", p, 0o644).Put(t, s)
	hold(t, s, own)
	if err := s.Hydrate(t.Context(), own, store.HydrateOptions{Sources: good(storetest.Private{Fetcher: storetest.NewFetcher(p)})}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-theft:
		t.Fatalf("the stranger's pull ended: %v", err)
	case <-time.After(time.Second): // time to be woken
	}
	cancel()
	if err := ends(t, "theft", theft); !errors.Is(err, context.Canceled) {
		t.Errorf("the stranger's pull: %v", err)
	}
}

// TestPartOfAPrivateFile: who serves a private file with one wrong byte does not get the right one,
// however often the pull is repeated.
func TestPartOfAPrivateFile(t *testing.T) {
	p := storetest.Random(32, 9<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	own := storetest.NewBuilder("owner").Raw("w", p, 0o644).Put(t, s)
	hold(t, s, own)
	if err := s.Hydrate(t.Context(), own, store.HydrateOptions{Sources: good(storetest.Private{Fetcher: storetest.NewFetcher(p)})}); err != nil {
		t.Fatal(err)
	}
	known := bytes.Clone(p)
	known[5<<20]++
	f := storetest.NewFetcher()
	f.Blobs[digest.FromBytes(p)] = known
	for i := range 3 {
		thief := storetest.NewBuilder(fmt.Sprint("thief", i)).Raw("w", p, 0o644).Put(t, s)
		if err := s.Hydrate(t.Context(), thief, store.HydrateOptions{Sources: evil(f)}); err == nil {
			t.Fatal("who has all but a byte got the file")
		}
	}
}

// TestPartsProveNothing: a table that claims that a private file consists of the attacker's own bytes
// does not give access to the file.
func TestPartsProveNothing(t *testing.T) {
	parts := fragments(2, 1<<20)
	for _, digested := range []bool{true, false} {
		t.Run(fmt.Sprintf("digest in the table %t", digested), func(t *testing.T) {
			s := storetest.Open(t, t.TempDir(), store.Options{})
			hydrate := func(name string, sources []transfer.Source) error {
				b := storetest.NewBuilder(name)
				want := merged(b, "w", "header", parts)
				if digested {
					b.Table().Files[0].Digest = digest.FromString(want)
				}
				table := b.Put(t, s)
				return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources})
			}
			if err := hydrate("owner", good(storetest.Private{Fetcher: storetest.NewFetcher(parts...)})); err != nil {
				t.Fatal(err)
			}
			if err := hydrate("thief", evil(storetest.NewFetcher())); err == nil {
				t.Error("who has nothing got it")
			}
			if err := hydrate("friend", storetest.FromRepository("mirror.example/x", storetest.NewFetcher(parts...))); err != nil {
				t.Errorf("who has it too: %v", err)
			}
		})
	}
}

// TestPrivateObject: an object that was fetched with credentials is opened and read by names of which one provided it,
// and by no other, nor without a name; a document only as one of its image. A public one is for everybody.
func TestPrivateObject(t *testing.T) {
	secret, open := storetest.Random(33, 2<<20), storetest.Random(34, 2<<20)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	hydrate := func(name string, p []byte, f transfer.Fetcher) (table digest.Digest) {
		table = storetest.NewBuilder(name).Raw("w", p, 0o644).Put(t, s)
		hold(t, s, table)
		if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: good(f)}); err != nil {
			t.Fatal(err)
		}
		return table
	}
	own := hydrate("owner", secret, storetest.Private{Fetcher: storetest.NewFetcher(secret)})
	hydrate("public", open, storetest.NewFetcher(open))
	for _, tt := range []struct {
		p     []byte
		names []string
		may   bool
	}{
		{secret, []string{"good.example/model"}, true},
		{secret, []string{"aaa.evil/model", "good.example/model"}, true},
		{secret, []string{"aaa.evil/model"}, false},
		{secret, []string{"good.example/model2"}, false},
		{secret, nil, false},
		{open, []string{"aaa.evil/model"}, true},
		{open, nil, true},
	} {
		d := digest.FromBytes(tt.p)
		f, err := s.OpenObject(d, tt.names)
		if err == nil {
			f.Close()
		}
		p, rerr := s.ReadBytes(d, int64(len(tt.p)), tt.names)
		if tt.may && (err != nil || rerr != nil || !bytes.Equal(p, tt.p)) || !tt.may && (!errdefs.IsNotFound(err) || !errdefs.IsNotFound(rerr)) {
			t.Errorf("%s for %q, may %v: opened: %v, read: %v", d, tt.names, tt.may, err, rerr)
		}
	}
	if _, err := s.OpenDocument(store.Image{Manifest: own, Table: own}, digest.FromBytes(secret)); !errdefs.IsNotFound(err) {
		t.Errorf("a file of an image as its document: %v", err)
	}
	if p, err := s.ReadDocument(store.Image{Table: own}, own, 1<<20); err != nil || digest.FromBytes(p) != own {
		t.Errorf("a document: %v", err)
	}
}

// TestPrivateWhenStopped: a file fetched with credentials is private if its pull ends while it is synced.
func TestPrivateWhenStopped(t *testing.T) {
	p := storetest.Random(36, 1<<20)
	d := digest.FromBytes(p)
	for name, may := range map[string]bool{"good.example/model": true, "no-repository": false} {
		t.Run(name, func(t *testing.T) {
			disk := storetest.NewSlowDisk(t)
			disk.Slow(func(op, path string) bool { return op == "fsync" && strings.Contains(path, d.Encoded()) })
			s := storetest.Open(t, disk.Dir, store.Options{Linger: 1})
			defer disk.Release()
			table := storetest.NewBuilder("owner").Raw("w", p, 0o644).Put(t, s)
			hold(t, s, table)
			ctx, cancel := context.WithCancel(t.Context())
			from := storetest.FromRepository(name, storetest.Private{Fetcher: storetest.NewFetcher(p)})
			done := later(func() error { return s.Hydrate(ctx, table, store.HydrateOptions{Sources: from}) })
			<-disk.Syncing
			cancel()
			<-done
			waitFor(t, "the end of the hydration", func() bool { return len(s.Work()) == 0 })
			disk.Release()
			waitFor(t, "the object", func() bool { return s.Has(d) })
			for who, may := range map[string]bool{name: may, "aaa.evil/model": false} {
				f, err := s.OpenObject(d, []string{who})
				if err == nil {
					f.Close()
				}
				if may && err != nil || !may && !errdefs.IsNotFound(err) {
					t.Errorf("%s: %v", who, err)
				}
			}
		})
	}
}

// TestPrivateWithoutDatabase: objects fetched with credentials stay private when the database is lost,
// and when a file that was set aside is found to be right. The owner does not fetch them again.
func TestPrivateWithoutDatabase(t *testing.T) {
	lost := func(t *testing.T, dir string, _ digest.Digest) {
		if err := os.Remove(filepath.Join(dir, "store.db")); err != nil {
			t.Fatal(err)
		}
	}
	const manyNames = "lost, with more names of sources than an attribute has room for"
	for name, lose := range map[string]func(t *testing.T, dir string, d digest.Digest){
		"lost": lost, manyNames: lost,
		"set aside": func(t *testing.T, dir string, d digest.Digest) {
			if err := os.Rename(filepath.Join(dir, "objects", store.ObjectName(d)), filepath.Join(dir, "damaged", d.Encoded())); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, dir := storetest.Random(31, 2<<20), t.TempDir()
			s, err := store.Open(dir, store.Options{Reserve: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { s.Close() }()
			hydrate := func(name string, sources []transfer.Source) error {
				table := storetest.NewBuilder(name).Raw("w", p, 0o644).Put(t, s)
				return s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: sources})
			}
			owner := good
			if name == manyNames {
				owner = func(f transfer.Fetcher) (all []transfer.Source) {
					for i := range 16 {
						all = append(all, storetest.FromRepository(fmt.Sprintf("%d.example/%s", i, strings.Repeat("long/", 60)), f)...)
					}
					return all
				}
			}
			if err := hydrate("owner", owner(storetest.Private{Fetcher: storetest.NewFetcher(p)})); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			lose(t, dir, digest.FromBytes(p))
			if s, err = store.Open(dir, store.Options{Reserve: 1}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Check(t.Context(), "", nil); err != nil {
				t.Fatal(err)
			}
			if !s.Has(digest.FromBytes(p)) {
				t.Fatal("the file is not an object again")
			}
			if err := hydrate("thief", evil(storetest.NewFetcher())); err == nil {
				t.Error("who has nothing got it")
			}
			again := storetest.NewFetcher(p)
			if err := hydrate("owner", owner(again)); err != nil {
				t.Errorf("the owner: %v", err)
			}
			if n := again.Sent(digest.FromBytes(p)); n > 0 && name != manyNames {
				t.Errorf("the owner has fetched %d bytes again", n)
			}
		})
	}
}
