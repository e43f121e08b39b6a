package hashtables

import (
	"bytes"
	"context"
	"crypto"
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
	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/filetable"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/verify"
	"github.com/opencontainers/go-digest"
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

// The tables of a model are asked for as soon as its manifest is requested, and Prepare waits for them instead of
// asking again.
func TestTakenAhead(t *testing.T) {
	t.Parallel()
	r := registrytest.New(t)
	s := storetest.Open(t, t.TempDir(), store.Options{})
	p := bytes.Repeat([]byte{1}, verify.Window+1)
	table := storetest.NewBuilder("ahead").Raw("model.bin", p, 0o644).Put(t, s)
	tables, key := newTables(t, s, r.Host()+"/team/tables")
	blob := filetable.Blob{Digest: digest.FromBytes(p), Size: int64(len(p))}
	chain, err := verify.ReadChain(t.Context(), bytes.NewReader(p), blob.Digest, blob.Size, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hashstate.Write(t.Context(), tables.repository, key, blob, chain); err != nil {
		t.Fatal(err)
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
	for range 2 { // containerd requests it twice
		tables.Pulled(store.Image{Table: table})
	}
	<-begun
	prepared := make(chan struct{})
	go func() {
		defer close(prepared)
		tables.Prepare(t.Context(), table, nil)
	}()
	close(answer)
	<-prepared
	if blobs, err := s.Unchained(table, nil); err != nil || len(blobs) > 0 {
		t.Errorf("without a chain: %v, %v", blobs, err)
	}
	if n := 1 + len(begun); n != 2 {
		t.Errorf("%d requests, want those for the manifest and its layer", n)
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
