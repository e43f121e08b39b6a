package remote_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/remote"
	"github.com/ballast-dev/ballast/convert/remote/peerstest"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/opencontainers/go-digest"
)

// A daemon is an HTTP server that can be stopped and started at the same address.
type daemon struct {
	t       *testing.T
	handler http.Handler
	address string
	stop    func()
}

func newDaemon(t *testing.T, handler http.Handler) *daemon {
	t.Helper()
	d := &daemon{t: t, handler: handler, address: "127.0.0.1:0"}
	d.start()
	t.Cleanup(func() { d.stop() })
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	var l net.Listener
	var err error
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if l, err = net.Listen("tcp", d.address); err == nil {
			break
		}
		if time.Now().After(end) { // another process may have the port for a moment
			d.t.Fatal(err)
		}
	}
	d.address = l.Addr().String()
	s := &http.Server{Handler: d.handler}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	d.stop = sync.OnceFunc(func() {
		_ = s.Close()
		<-done
	})
}

// failures is how often a daemon that is away is asked: then it is not asked for a long time if there is another one.
const failures = 3

// TestPeersRestart stops peers and starts them again, with and without pulls at the same time: all pulls succeed.
func TestPeersRestart(t *testing.T) {
	t.Parallel()
	for _, kind := range []remote.PeerKind{remote.Dragonfly, remote.Spegel} {
		for _, together := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d at once", kind, together), func(t *testing.T) {
				t.Parallel()
				server, blobs := newUpstream(t), map[string][]byte{}
				var models [][]byte
				for i := range failures + 2 {
					p := storetest.Random(uint64(i), 5<<20)
					blobs[server.putBlob(p).String()], models = p, append(models, p)
				}
				var peers *daemon
				if kind == remote.Dragonfly {
					peers = newDaemon(t, (&peerstest.Cluster{Origin: server.URL}).NewDragonfly(t).Config.Handler)
				} else {
					peers = newDaemon(t, peerstest.NewSpegel(t, blobs).Config.Handler)
				}
				c := withPeers(t, server, "http://"+peers.address, kind, false)
				pull := func(p []byte) {
					t.Run("pulls", func(t *testing.T) {
						for range together {
							t.Run("", func(t *testing.T) {
								t.Parallel()
								pullInto(t, c, nil, p)
							})
						}
					})
				}
				pull(models[0])
				peers.stop()
				for i := range failures {
					pull(models[1+i])
				}
				peers.start()
				pull(models[failures+1])
			})
		}
	}
}

// TestOnlyMirrorRestarts stops the mirror of a registry that is never asked: when it is there again, it is asked at
// once.
func TestOnlyMirrorRestarts(t *testing.T) {
	t.Parallel()
	up := bare()
	manifest, content := manifestBytes("x"), random(10_000)
	up.putManifest("latest", manifest)
	d := up.putBlob(content)
	mirror := newDaemon(t, up)
	r := repositoryOf(t, newClient(t, remote.Options{
		HostsDir:   hostsDir(t, "registry.example", "server = \"https://registry.example\"\n[host.\"http://"+mirror.address+"\"]\n"),
		MirrorOnly: func(host string) bool { return host == "registry.example" },
	}), exampleRef(t, "latest"), nil)
	ask := func() error {
		m, err := r.Manifest(t.Context(), "latest")
		if err == nil && m.Digest != digest.FromBytes(manifest) {
			t.Errorf("another manifest: %s", m.Digest)
		}
		got, _, berr := fetch(t.Context(), r, d, int64(len(content)), 0, int64(len(content)))
		if berr == nil && !bytes.Equal(got, content) {
			t.Error("another blob")
		}
		if (err == nil) != (berr == nil) {
			t.Errorf("manifest: %v, blob: %v", err, berr)
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	mirror.stop()
	for range failures {
		if err := ask(); err == nil {
			t.Fatal("a mirror that is away answers")
		}
	}
	mirror.start()
	if err := ask(); err != nil {
		t.Error(err)
	}
}
