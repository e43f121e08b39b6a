package hashtables

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/config"
	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/convert/hashstate"
	"github.com/ballast-dev/ballast/convert/mediatype"
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestManyAsked: a model with more large files than the repository answers for in time does not end tables for other
// models; a repository that does not answer does, for a while.
func TestManyAsked(t *testing.T) {
	t.Parallel()
	r := registrytest.New(t)
	var asked atomic.Int32
	var slow atomic.Int64
	r.Before(func(_ http.ResponseWriter, q *http.Request) bool {
		asked.Add(1)
		select {
		case <-time.After(time.Duration(slow.Load())):
		case <-q.Context().Done():
		}
		return false
	})
	s := storetest.Open(t, t.TempDir(), store.Options{})
	tables, _ := newTables(t, s, r.Host()+"/team/tables")
	model := func(name string, files int) digest.Digest {
		b := storetest.NewBuilder(name)
		table := b.Table()
		for i := range files {
			d, size := digest.FromString(fmt.Sprint(name, i)), int64(5<<20)
			table.Blobs = append(table.Blobs, filetable.Blob{Digest: d, Size: size, Layer: i})
			b.File(filetable.File{
				Path: fmt.Sprint("shard", i), Type: filetable.TypeReg, Mode: 0o644, Size: size, Digest: d, Source: &filetable.Source{Blob: d, Size: size},
			})
		}
		return b.Put(t, s)
	}
	ask := func(d digest.Digest) int32 {
		before := asked.Load()
		tables.Prepare(t.Context(), d, nil)
		return asked.Load() - before
	}
	slow.Store(int64(patience / 8))
	if n := ask(model("many", 12*atOnce)); n >= 12*atOnce {
		t.Fatalf("all %d tables were asked for in time", n)
	}
	slow.Store(0)
	if n := ask(model("one", 1)); n == 0 {
		t.Error("the repository is not asked again, although it has answered")
	}
	slow.Store(int64(time.Minute))
	if n := ask(model("two", 1)); n == 0 {
		t.Error("the repository is not asked")
	}
	if n := ask(model("three", 1)); n > 0 {
		t.Errorf("the repository does not answer, and is asked %d times more", n)
	}
}

// rawModel puts a model of one file into a store, and returns its table, and the chain of its blob.
func rawModel(t *testing.T, s *store.Store, name string) (table digest.Digest, b filetable.Blob, c verify.Chain) {
	t.Helper()
	p := append(make([]byte, verify.Window), name...)
	b = filetable.Blob{Digest: digest.FromBytes(p), Size: int64(len(p))}
	c, err := verify.ReadChain(t.Context(), bytes.NewReader(p), b.Digest, b.Size, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	return storetest.NewBuilder(name).Raw("model.bin", p, 0o644).Put(t, s), b, c
}

// The tables of a model are asked for as soon as its manifest is requested. Prepare waits for them instead of asking
// again, also where there is none.
func TestTakenAhead(t *testing.T) {
	t.Parallel()
	for name, requests := range map[string]int{"written": 2, "absent": 1} { // for the manifest and its layer
		t.Run(name, func(t *testing.T) {
			r := registrytest.New(t)
			s := storetest.Open(t, t.TempDir(), store.Options{})
			table, blob, chain := rawModel(t, s, name)
			tables, key := newTables(t, s, r.Host()+"/team/tables")
			if name == "written" {
				if _, err := hashstate.Write(t.Context(), tables.repository, key, blob, chain); err != nil {
					t.Fatal(err)
				}
			}
			begun, answer := make(chan struct{}, 10), make(chan struct{})
			r.Before(func(http.ResponseWriter, *http.Request) bool {
				begun <- struct{}{}
				<-answer
				return false
			})
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { _ = tables.Run(ctx) })
			defer running.Wait()
			defer stop()
			tables.Pulled(store.Image{Table: table})
			<-begun
			tables.Pulled(store.Image{Table: table}) // containerd requests it twice
			prepared := make(chan struct{})
			go func() {
				defer close(prepared)
				tables.Prepare(t.Context(), table, nil)
			}()
			close(answer)
			<-prepared
			if blobs, err := s.Unchained(table, nil); err != nil || len(blobs) != 2-requests {
				t.Errorf("without a chain: %v, %v", blobs, err)
			}
			if n := 1 + len(begun); n != requests {
				t.Errorf("%d requests, want %d", n, requests)
			}
		})
	}
}

// An artifact of another kind in the place of a table is no reason to ask for no others.
func TestOddTable(t *testing.T) {
	t.Parallel()
	r := registrytest.New(t)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table, blob, _ := rawModel(t, s, "odd")
	tables, _ := newTables(t, s, r.Host()+"/team/tables")
	p := []byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v9+json"}`)
	r.PutBlob("team/tables", remote.EmptyConfig)
	m, err := json.Marshal(remote.OneLayer(mediatype.States, ocispec.Descriptor{MediaType: mediatype.Bundle, Digest: r.PutBlob("team/tables", p), Size: int64(len(p))}))
	if err != nil {
		t.Fatal(err)
	}
	r.Put("team/tables", hashstate.Tag(blob.Digest), m, ocispec.MediaTypeImageManifest)
	tables.Prepare(t.Context(), table, nil)
	if r.Count("/blobs/") != 1 || tables.resting.Load() != nil {
		t.Errorf("%d blobs were read; the repository is left alone until %v", r.Count("/blobs/"), tables.resting.Load())
	}
}

// A table that cannot be written is written later.
func TestWrittenLater(t *testing.T) {
	t.Parallel()
	r := registrytest.New(t)
	s := storetest.Open(t, t.TempDir(), store.Options{Chains: true})
	table, blob, _ := rawModel(t, s, "later")
	p := append(make([]byte, verify.Window), "later"...)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: storetest.From(storetest.NewFetcher(p))}); err != nil {
		t.Fatal(err)
	}
	tables, key := newTables(t, s, r.Host()+"/team/tables")
	tables.sign = key
	var closed atomic.Bool
	closed.Store(true)
	r.Before(func(w http.ResponseWriter, _ *http.Request) bool {
		if closed.Load() {
			w.WriteHeader(http.StatusForbidden)
		}
		return closed.Load()
	})
	if tables.write(t.Context(), table) {
		t.Error("nothing is left to be done, although the repository has refused the table")
	}
	closed.Store(false)
	if !tables.write(t.Context(), table) || r.Manifest("team/tables", hashstate.Tag(blob.Digest)) == nil {
		t.Error("the table is not written")
	}
}

// newTables returns the tables in a repository, and the key that is trusted.
func newTables(t *testing.T, s *store.Store, repository string) (*Tables, crypto.Signer) {
	t.Helper()
	key, public := converttest.Signer(t, t.TempDir())
	l := config.Lazy{Tables: repository, TableKeys: []string{public}}
	keys, err := ReadKeys(l)
	if err != nil {
		t.Fatal(err)
	}
	client, err := remote.New(remote.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	tables, err := New(l, keys, s, client, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return tables, key
}
