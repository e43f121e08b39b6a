package peerstest_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/registrytest"
	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/remote/peerstest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/opencontainers/go-digest"
)

const part = 4 << 20

// An origin is a registry with one blob.
type origin struct {
	*registrytest.Server
	content []byte
}

// newOrigin starts an origin that is slow to answer.
func newOrigin(t *testing.T, size int, slow time.Duration) *origin {
	o := &origin{registrytest.New(t), storetest.Random(1, size)}
	o.PutBlob("org/model", o.content)
	o.Before(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			time.Sleep(slow)
		}
		return false
	})
	return o
}

// blob requests bytes of the blob of o from a node, and reads no body.
func (o *origin) blob(t *testing.T, d *peerstest.Dragonfly, off, n int) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s/v2/org/model/blobs/%s?ns=registry.example", d.URL, digest.FromBytes(o.content)), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	req.Header.Set("X-Dragonfly-Use-P2P", "true")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// read reads n bytes of an answer, compares them with those at off, and returns how long it took.
func (o *origin) read(t *testing.T, resp *http.Response, off, n int) time.Duration {
	t.Helper()
	start, got := time.Now(), make([]byte, n)
	if resp == nil {
		return 0
	}
	if _, err := io.ReadFull(resp.Body, got); err != nil || !bytes.Equal(got, o.content[off:off+n]) {
		t.Errorf("other bytes, %v", err)
	}
	return time.Since(start)
}

// TestParts checks that nothing of a part is passed on before all of it is there.
func TestParts(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, 2*part, 0)
	c := &peerstest.Cluster{Origin: o.URL, Uplink: part}
	o.read(t, o.blob(t, c.NewDragonfly(t), 0, 2*part), 0, 2*part)
	start, resp := time.Now(), o.blob(t, c.NewDragonfly(t), 0, 2*part)
	for i := range 2 {
		o.read(t, resp, i*part, 1)
		if took := time.Since(start); took < time.Duration(i+1)*time.Second {
			t.Errorf("the first byte of part %d came after %v, want %d seconds", i, took, i+1)
		}
		o.read(t, resp, i*part+1, part-1)
	}
}

// TestUplink checks that all nodes that read from a node share its uplink.
func TestUplink(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, 2*part, 0)
	c := &peerstest.Cluster{Origin: o.URL, Uplink: 4 * part}
	o.read(t, o.blob(t, c.NewDragonfly(t), 0, 2*part), 0, 2*part)
	start := time.Now()
	var all sync.WaitGroup
	for range 3 {
		d := c.NewDragonfly(t)
		all.Go(func() { o.read(t, o.blob(t, d, 0, 2*part), 0, 2*part) })
	}
	all.Wait()
	if took := time.Since(start); took < 1500*time.Millisecond {
		t.Errorf("three nodes took %v, want 1.5 s", took)
	}
	if n := c.Shared(); n != 2*part {
		t.Errorf("the registry gave %d bytes, want %d", n, 2*part)
	}
}

// TestBackToSource checks that nodes that begin together all go to the registry, unless that is limited.
func TestBackToSource(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int64{0: 3, 1: 1, 2: 2} {
		o := newOrigin(t, 2*part, 3*time.Second) // they begin within it
		c := &peerstest.Cluster{Origin: o.URL, BackToSource: limit}
		var all sync.WaitGroup
		for range 3 {
			d := c.NewDragonfly(t)
			all.Go(func() { o.read(t, o.blob(t, d, 0, part+1), 0, part) })
		}
		all.Wait()
		if n := c.Shared(); n < want*part || limit > 0 && n > want*2*part {
			t.Errorf("a limit of %d: the registry gave %d bytes, want at least %d", limit, n, want*part)
		}
	}
}

// TestHandover checks that the registry gives a part again if the only node that has it dies while another one reads
// it.
func TestHandover(t *testing.T) {
	t.Parallel()
	o := newOrigin(t, 2*part, 0)
	c := &peerstest.Cluster{Origin: o.URL, BackToSource: 1, Uplink: part / 4}
	first := c.NewDragonfly(t)
	o.read(t, o.blob(t, first, 0, 2*part), 0, 2*part)
	resp := make(chan *http.Response, 1)
	second := c.NewDragonfly(t)
	go func() { resp <- o.blob(t, second, 0, 2*part) }()
	time.Sleep(300 * time.Millisecond)
	first.Kill()
	o.read(t, <-resp, 0, 2*part)
	if n := c.Shared(); n != 4*part {
		t.Errorf("the registry gave %d bytes, want %d", n, 4*part)
	}
}

// pull pulls the blob through a node into a new store.
func (o *origin) pull(t *testing.T, node *peerstest.Dragonfly) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "registry.example"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte("server = \""+o.URL+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	client, err := remote.New(remote.Options{HostsDir: dir, Peers: []remote.Peers{{URL: node.URL, Kind: remote.Dragonfly, For: func(string) bool { return true }}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	ref, err := remote.NewRef("registry.example", "org/model", "x")
	if err != nil {
		t.Fatal(err)
	}
	r, err := client.Repository(ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t, t.TempDir(), store.Options{})
	table := storetest.NewBuilder("m").RawChunks("model", o.content, 0o644, part).Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: []transfer.Source{{Name: "registry.example/org/model", Fetcher: r}}}); err != nil {
		t.Error(err)
	}
}

// TestCopies pulls on three nodes at once, over links that are so slow that more than a second passes between two
// parts: the registry gives one copy, and a few bytes to confirm the blob. On a busy machine a part may be so late that
// a node is right to leave it, so the best of three times counts.
func TestCopies(t *testing.T) {
	t.Parallel()
	best := math.Inf(1)
	for range 3 {
		o := newOrigin(t, 32<<20, 0)
		c := &peerstest.Cluster{Origin: o.URL, BackToSource: 1, Uplink: 6 << 20}
		var all sync.WaitGroup
		for range 3 {
			node := c.NewDragonfly(t)
			all.Go(func() { o.pull(t, node) })
		}
		all.Wait()
		if best = min(best, float64(o.Sent())/float64(len(o.content))); best <= 1.01 {
			return
		}
	}
	t.Errorf("the registry sent %.2f copies, want 1.00", best)
}
