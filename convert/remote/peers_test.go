package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/remote/peerstest"
	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/store/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// withPeers returns a client for registry.example, which is server, with peers.
func withPeers(t *testing.T, server *upstream, url string, kind remote.PeerKind, trusted bool) *remote.Client {
	return newClient(t, peersOptions(t, server, url, kind, trusted))
}

func peersOptions(t *testing.T, server *upstream, url string, kind remote.PeerKind, trusted bool) remote.Options {
	return remote.Options{
		Stall:    10 * time.Minute, // on a busy machine, peers that are slow are not slow enough to go to the registry
		HostsDir: hostsDir(t, "registry.example", "server = \""+server.URL+"\"\n"),
		Peers:    []remote.Peers{{URL: url, Kind: kind, Trusted: trusted, For: func(host string) bool { return host == "registry.example" }}},
	}
}

// pullInto pulls a model of one file into a new store, and compares the file.
func pullInto(t *testing.T, c *remote.Client, creds *remote.Credentials, content []byte) {
	t.Helper()
	s := storetest.Open(t, t.TempDir(), store.Options{})
	from := []transfer.Source{{Name: "registry.example/org/model", Fetcher: repositoryOf(t, c, exampleRef(t, "x"), creds)}}
	table := storetest.NewBuilder("m").RawChunks("model", content, 0o644, 1<<20).Put(t, s)
	if err := s.Hydrate(t.Context(), table, store.HydrateOptions{Sources: from}); err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenObject(digest.FromBytes(content), transfer.Names(from))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the store has other bytes, %v", err)
	}
}

// TestDragonfly pulls on three nodes through Dragonfly: it is asked for whole pieces, and the registry gives the bytes
// once.
func TestDragonfly(t *testing.T) {
	t.Parallel()
	server := newUpstream(t)
	content := storetest.Random(1, 38<<20)
	server.putBlob(content)
	cluster := &peerstest.Cluster{Origin: server.URL}
	for range 3 {
		node := cluster.NewDragonfly(t)
		pullInto(t, withPeers(t, server, node.URL, remote.Dragonfly, false), nil, content)
		seen := map[string]bool{}
		for _, r := range node.Asked() {
			seen[r.Header.Get("Range")] = true
			if r.Method != http.MethodGet || r.URL.Query().Get("ns") != "registry.example" || r.Header.Get("Authorization") != "" {
				t.Errorf("%s %s with %v", r.Method, r.URL, r.Header)
			}
		}
		for _, piece := range []string{"bytes=0-16777215", "bytes=16777216-33554431", "bytes=33554432-39845887"} {
			if !seen[piece] {
				t.Errorf("no request for %s", piece)
			}
			delete(seen, piece)
		}
		if len(seen) > 0 {
			t.Errorf("requests for other ranges than pieces: %v", seen)
		}
	}
	if shared, passed := cluster.Shared(), cluster.Passed(); shared != int64(len(content)) || passed != 0 {
		t.Errorf("the registry gave %d bytes to share and %d others, want %d and 0", shared, passed, len(content))
	}
	for _, r := range server.Requests() {
		if h := r.Header.Get("Range"); r.Header.Get("Via") != "" && !small(h) {
			t.Errorf("ballast asked the registry for %s", h)
		}
	}
}

// TestDragonflyIsSlow checks that Dragonfly may take longer than others to begin a response, and for each part of it.
func TestDragonflyIsSlow(t *testing.T) {
	t.Parallel()
	server, content := newUpstream(t), storetest.Random(1, 5<<20)
	server.putBlob(content)
	node := newDaemon(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(2 * stall)
		w.Header().Set("Content-Length", fmt.Sprint(len(content))) // it is one piece
		w.(http.Flusher).Flush()
		time.Sleep(2 * stall)
		w.Write(content)
	}))
	o := peersOptions(t, server, "http://"+node.address, remote.Dragonfly, false)
	o.Stall = stall
	c := newClient(t, o)
	pullInto(t, c, nil, content)
	if last := c.Mirrors()[0].Counts.Last(); last.Reason != "" {
		t.Errorf("Dragonfly was left: %v", last)
	}
	for _, r := range server.Requests() {
		if h := r.Header.Get("Range"); !small(h) {
			t.Errorf("ballast asked the registry for %s", h)
		}
	}
}

// TestPeersFaults pulls through peers that fail.
func TestPeersFaults(t *testing.T) {
	t.Parallel()
	content := storetest.Random(1, 20<<20)
	calls := 0
	flip := func(p []byte) { p[len(p)/2] ^= 1 }
	every := func(n, status int) func() int {
		return func() int {
			if calls++; calls%n == 0 {
				return status
			}
			return 0
		}
	}
	for name, faults := range map[string]peerstest.Faults{
		"corrupt": {Corrupt: flip},
		"404":     {Status: every(3, 404)},
		"500":     {Status: every(2, 500)},
		"401":     {Status: every(1, 401)},
		"all":     {Status: every(2, 502), Corrupt: flip},
	} {
		server := newUpstream(t)
		d := server.putBlob(content)
		cluster := &peerstest.Cluster{Origin: server.URL}
		dragonfly, spegel := cluster.NewDragonfly(t), peerstest.NewSpegel(t, map[string][]byte{d.String(): content})
		dragonfly.Break(faults)
		pullInto(t, withPeers(t, server, dragonfly.URL, remote.Dragonfly, false), nil, content)
		calls = 0
		spegel.Break(faults)
		pullInto(t, withPeers(t, server, spegel.URL, remote.Spegel, false), nil, content)
		if len(dragonfly.Asked()) == 0 || len(spegel.Asked()) == 0 {
			t.Errorf("%s: peers were not asked", name)
		}
	}
}

// TestSpegel checks what Spegel is asked for.
func TestSpegel(t *testing.T) {
	t.Parallel()
	server := newUpstream(t)
	content := storetest.Random(1, 9<<20)
	d := server.putBlob(content)
	spegel := peerstest.NewSpegel(t, map[string][]byte{d.String(): content})
	pullInto(t, withPeers(t, server, spegel.URL, remote.Spegel, false), nil, content)
	for _, r := range spegel.Asked() {
		if r.URL.Path != "/v2/org/model/blobs/"+d.String() || r.URL.Query().Get("ns") != "registry.example" || r.Header.Get("Range") == "" {
			t.Errorf("it was asked for %s, %s", r.URL, r.Header.Get("Range"))
		}
	}
	if all := server.Requests(); len(all) != 2 || !small(all[0].Header.Get("Range")) || !small(all[1].Header.Get("Range")) {
		t.Errorf("the registry got %d requests, want one byte, and a few as a proof", len(all))
	}
}

// TestPeersOfALiar: a registry that says that it has a blob, and does not know its bytes, makes nothing of it public,
// and peers are not asked for the rest.
func TestPeersOfALiar(t *testing.T) {
	t.Parallel()
	server := newUpstream(t)
	content := storetest.Random(1, 20<<20)
	d := server.putBlob(content)
	server.lie(d)
	spegel := peerstest.NewSpegel(t, map[string][]byte{d.String(): content})
	r := repositoryOf(t, withPeers(t, server, spegel.URL, remote.Spegel, false), exampleRef(t, "x"), nil)
	body, _, err := r.Fetch(t.Context(), d, int64(len(content)), 0, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, content[:1<<20]) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if !transfer.IsPrivate(body) {
		t.Error("the bytes are public")
	}
	before := len(spegel.Asked())
	if got, _, err := fetch(t.Context(), r, d, int64(len(content)), 1<<20, 1<<20); err != nil || bytes.Equal(got, content[1<<20:2<<20]) {
		t.Errorf("the rest was given, %v", err)
	}
	if n := len(spegel.Asked()) - before; n > 0 {
		t.Errorf("peers got %d requests after that", n)
	}
}

// small reports whether a range has no more bytes than the registry is asked for beside a mirror.
func small(h string) bool {
	var first, last int
	_, err := fmt.Sscanf(h, "bytes=%d-%d", &first, &last)
	return err == nil && last-first < 32
}

// TestPeersErrors checks that an error of peers is told from one that they pass on.
func TestPeersErrors(t *testing.T) {
	t.Parallel()
	for status, rests := range map[int]bool{0: false, 404: true, 401: true, 500: true} { // 0: the registry's 404
		server := newUpstream(t)
		content := storetest.Random(1, 5<<20)
		d := server.putBlob(content)
		cluster := &peerstest.Cluster{Origin: server.URL}
		if status == 0 {
			cluster.Origin = newUpstream(t).URL
		}
		node := cluster.NewDragonfly(t)
		node.Break(peerstest.Faults{Status: func() int { return status }})
		c := withPeers(t, server, node.URL, remote.Dragonfly, false)
		got, _, err := fetch(t.Context(), repositoryOf(t, c, exampleRef(t, "x"), nil), d, int64(len(content)), 0, int64(len(content)))
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%d: %d bytes, %v", status, len(got), err)
		}
		why := transfer.Failed
		if !rests {
			why = transfer.Absent
		}
		if m := c.Mirrors(); len(m) != 1 || m[0].Counts.Left(why) != 1 || !m[0].For["registry.example"].Resting().IsZero() != rests {
			t.Errorf("%d: %+v, want resting %t", status, m, rests)
		}
	}
}

// TestPeersGetNoPrivateModels checks that peers are asked only for what the registry gives to everybody, or, if they
// are trusted, to the caller.
func TestPeersGetNoPrivateModels(t *testing.T) {
	t.Parallel()
	alice := &remote.Credentials{Username: "alice", Secret: secret}
	for name, tt := range map[string]struct {
		registry func(*upstream)
		creds    *remote.Credentials
		trusted  bool
		given    bool // the caller gets the blob
		asked    bool // Dragonfly is
	}{
		"public":                     {given: true, asked: true},
		"private":                    {registry: func(u *upstream) { u.Before(basicAuth) }, creds: alice, given: true},
		"private, trusted":           {registry: func(u *upstream) { u.Before(basicAuth) }, creds: alice, trusted: true, given: true, asked: true},
		"stranger, trusted":          {registry: func(u *upstream) { u.Before(basicAuth) }, trusted: true},
		"of another registry":        {registry: func(u *upstream) { u.Before(empty) }, trusted: true},
		"registry that hides itself": {registry: func(u *upstream) { u.Close() }, trusted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, elsewhere := newUpstream(t), newUpstream(t)
			content := storetest.Random(1, 5<<20)
			d := server.putBlob(content)
			elsewhere.putBlob(content)
			cluster := &peerstest.Cluster{Origin: elsewhere.URL}
			node := cluster.NewDragonfly(t)
			get := func(c *remote.Client, creds *remote.Credentials) (private bool, err error) {
				body, _, err := repositoryOf(t, c, exampleRef(t, "x"), creds).Fetch(t.Context(), d, int64(len(content)), 0, int64(len(content)))
				if err != nil {
					return false, err
				}
				defer body.Close()
				if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				return transfer.IsPrivate(body), nil
			}
			if _, err := get(withPeers(t, elsewhere, node.URL, remote.Dragonfly, false), nil); err != nil { // now everybody gets it
				t.Fatal(err)
			}
			if tt.registry != nil {
				tt.registry(server)
			}
			before := len(node.Asked())
			c := withPeers(t, server, node.URL, remote.Dragonfly, tt.trusted)
			private, err := get(c, tt.creds)
			if (err == nil) != tt.given || private != (tt.given && tt.creds != nil) {
				t.Errorf("private %t, %v", private, err)
			}
			if asked := len(node.Asked()) > before; asked != tt.asked {
				t.Errorf("Dragonfly was asked: %t, want %t", asked, tt.asked)
			}
			if last := c.Mirrors()[0].Counts.Last(); last.Reason != "" {
				t.Errorf("Dragonfly was left: %v", last)
			}
		})
	}
}

// TestTrustedPeers checks that trusted peers, and only those, get the credentials of a pull.
func TestTrustedPeers(t *testing.T) {
	t.Parallel()
	server := newUpstream(t)
	server.Before(basicAuth)
	content := storetest.Random(1, 5<<20)
	server.putBlob(content)
	for _, trusted := range []bool{false, true} {
		node := (&peerstest.Cluster{Origin: server.URL}).NewDragonfly(t)
		pullInto(t, withPeers(t, server, node.URL, remote.Dragonfly, trusted), &remote.Credentials{Username: "alice", Secret: secret}, content)
		got := false
		for _, r := range node.Asked() {
			got = got || r.Header.Get("Authorization") != ""
		}
		if got != trusted {
			t.Errorf("trusted %t: peers got credentials: %t", trusted, got)
		}
	}
	open := newUpstream(t)
	open.putBlob(content)
	node := (&peerstest.Cluster{Origin: server.URL}).NewDragonfly(t) // asks for a password for what the registry gives to everybody
	pullInto(t, withPeers(t, open, node.URL, remote.Dragonfly, false), &remote.Credentials{Username: "alice", Secret: secret}, content)
	asked := node.Asked()
	for _, r := range asked {
		if r.Header.Get("Authorization") != "" {
			t.Error("peers that are not trusted got credentials")
		}
	}
	if len(asked) == 0 {
		t.Error("peers were not asked")
	}
}

// TestNoRedirectToPeers checks that a registry cannot lead ballast to what peers have.
func TestNoRedirectToPeers(t *testing.T) {
	t.Parallel()
	server, elsewhere := newUpstream(t), newUpstream(t)
	content := storetest.Random(1, 5<<20)
	d := elsewhere.putBlob(content)
	node := (&peerstest.Cluster{Origin: elsewhere.URL}).NewDragonfly(t)
	server.Before(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, node.URL+r.URL.Path+"?ns=registry.example", http.StatusTemporaryRedirect)
		return true
	})
	c := withPeers(t, server, node.URL, remote.Dragonfly, false)
	_, _, err := fetch(t.Context(), repositoryOf(t, c, exampleRef(t, "x"), nil), d, int64(len(content)), 0, 10)
	if err == nil || len(node.Asked()) > 0 {
		t.Errorf("%v, peers got %d requests", err, len(node.Asked()))
	}
}

// TestPeersHaveNoManifests checks that peers are not asked for manifests, and nothing for other registries.
func TestPeersHaveNoManifests(t *testing.T) {
	t.Parallel()
	server, other := newUpstream(t), newUpstream(t)
	node := (&peerstest.Cluster{Origin: server.URL}).NewDragonfly(t)
	c := withPeers(t, server, node.URL, remote.Dragonfly, false)
	p := manifestBytes("x")
	server.putManifest(digest.FromBytes(p).String(), p)
	if _, err := repositoryOf(t, c, exampleRef(t, "x"), nil).Manifest(t.Context(), digest.FromBytes(p).String()); err != nil {
		t.Error(err)
	}
	d := other.putBlob(random(5 << 20))
	if _, _, err := fetch(t.Context(), repositoryOf(t, c, other.ref(t, "x"), nil), d, 5<<20, 0, 5<<20); err != nil {
		t.Error(err)
	}
	if n := len(node.Asked()); n > 0 {
		t.Errorf("peers got %d requests", n)
	}
}

// TestPeersCheck checks which configurations are refused.
func TestPeersCheck(t *testing.T) {
	for _, p := range []remote.Peers{
		{URL: "127.0.0.1:65001", Kind: remote.Dragonfly}, {URL: "ftp://x", Kind: remote.Dragonfly}, {URL: "http://", Kind: remote.Spegel},
		{URL: "http://u:p@x", Kind: remote.Spegel}, {URL: "http://x", Kind: "kraken"}, {URL: "http://x", Kind: remote.Spegel, Trusted: true},
	} {
		if _, err := remote.New(remote.Options{Peers: []remote.Peers{p}}); !errdefs.IsInvalidArgument(err) || strings.Contains(fmt.Sprint(err), ":p@") {
			t.Errorf("%+v: %v", p.URL, err)
		}
	}
}

// TestConfirmIsShared checks that a caller does not wait longer than it wants for the registry to confirm a blob, and
// that its question is the only one.
func TestConfirmIsShared(t *testing.T) {
	t.Parallel()
	server := newUpstream(t)
	content := storetest.Random(1, 5<<20)
	d := server.putBlob(content)
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	server.Before(func(http.ResponseWriter, *http.Request) bool {
		asked <- struct{}{}
		<-answer
		return false
	})
	spegel := peerstest.NewSpegel(t, map[string][]byte{d.String(): content})
	r := repositoryOf(t, withPeers(t, server, spegel.URL, remote.Spegel, false), exampleRef(t, "x"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, _, err := r.Fetch(ctx, d, int64(len(content)), 0, 10)
		left <- err
	}()
	<-asked
	cancel()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that left got %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("a caller cannot leave")
	}
	close(answer)
	if got, _, err := fetch(t.Context(), r, d, int64(len(content)), 0, 10); err != nil || !bytes.Equal(got, content[:10]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if n := len(server.Requests()); n != 1 {
		t.Errorf("the registry got %d requests, want 1", n)
	}
}
