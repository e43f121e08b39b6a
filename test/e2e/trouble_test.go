package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

// TestKilled kills the daemon during a pull. After its restart the pull succeeds, and downloads only
// missing bytes.
func TestKilled(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	w := weights(21, 96<<20)
	b := converttest.ModelPackRaw(converttest.Files(w))
	ref := push(t, n, b)
	d := digest.FromBytes(w)
	size := int64(len(w))
	n.Registry.Wire.Reset()
	remove := n.Registry.Wire.Add(node.Fault{Match: node.Blob(d), Rate: 1 << 20})
	done := make(chan node.Result, 1)
	go func() { done <- n.Pull("ballast", ref) }()

	// Marked chunks are not fetched again; their bytes are on disk before they are marked.
	waitFor(t, "60 % of the chunks", func() error {
		select {
		case out := <-done:
			t.Fatalf("the pull ended too early: %v\n%s", out.Err, out.Output())
		default:
		}
		if have := staged(t, n, d, size); have < size*6/10 {
			return fmt.Errorf("%d of %d bytes are staged", have, size)
		}
		return nil
	})
	n.Ballastd.Kill()
	wantError(t, <-done)
	kept := staged(t, n, d, size)
	if _, err := os.Stat(object(n, d)); err == nil {
		t.Error("an object is there before it is complete")
	}

	remove()
	n.Registry.Wire.Drain()
	n.Registry.Wire.Reset()
	n.StartBallastd(t)
	mustPull(t, n, "ballast", ref)
	again := n.Registry.Wire.BlobBytes()[d]
	t.Logf("%d bytes staged when killed, %d fetched afterwards, of %d", kept, again, size)
	const late = 64 << 10 // of requests of the killed daemon, which the registry may begin to answer late
	if again > size-kept+late {
		t.Errorf("fetched after the restart: got %d of %d bytes, of which %d were staged", again, size, kept)
	}
	wantFiles(t, n, ref, states(b))
}

// staged returns the number of bytes of the blob d, of the given size, that are marked as present.
// Small blobs of the same model have their own marks.
func staged(t *testing.T, n *node.Node, d digest.Digest, size int64) int64 {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(n.Root(), "partial", d.Encoded()+"-*", "marks"))
	if err != nil || len(found) > 1 {
		t.Fatal(found, err)
	}
	if len(found) == 0 {
		return 0 // not begun
	}
	marks, err := os.ReadFile(found[0])
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // it has just become an object
	}
	if err != nil {
		t.Fatal(err)
	}
	var have int64
	for _, m := range marks {
		if m != 0 {
			have++
		}
	}
	return have * size / max(1, int64(len(marks)))
}

// TestDaemonGone stops the daemon: running containers and later mounts of a complete model can be read.
func TestDaemonGone(t *testing.T) {
	for _, show := range ways {
		t.Run(show, func(t *testing.T) { testDaemonGone(t, show) })
	}
}

func testDaemonGone(t *testing.T, show string) {
	n := node.StartNode(t, node.Options{Config: showAs(show)})
	b := converttest.ModelPackRaw(converttest.Files(weights(22, 8<<20)))
	ref := push(t, n, b)
	mustPull(t, n, "ballast", ref)
	if out := n.Start("ballast", ref, "running"); out.Err != nil {
		t.Fatalf("%v: %s", out.Err, out.Output())
	}
	target := filepath.Join(n.Dir, "later")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := n.Ctr("snapshots", "--snapshotter", "ballast", "mounts", target, "running")
	if mount.Err != nil {
		t.Fatalf("%v: %s", mount.Err, mount.Output())
	}

	n.Ballastd.Stop(t)
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
	hash := n.Exec("running", "/.bin/busybox", "sha256sum", "/model.gguf")
	want := state(b.Files["model.gguf"]).SHA256
	if hash.Err != nil || !strings.HasPrefix(hash.Stdout, want) {
		t.Errorf("running container: got %v %s, want %s", hash.Err, hash.Output(), want)
	}

	// The mount that containerd would make for a container now, with its own upper directory.
	rootMount(t, mount.Stdout, target)
	out := printed(want, func(try string) node.Result {
		return n.Ctr("run", "--rm", "--rootfs", "--mount", node.BusyboxMount,
			target, "later"+try, "/.bin/busybox", "sha256sum", "/model.gguf")
	})
	if out.Err != nil || !strings.HasPrefix(out.Stdout, want) {
		t.Errorf("new container: got %v %s, want %s", out.Err, out.Output(), want)
	}

	// Pulls fail with the reason, and work again when the daemon is back.
	wantError(t, n.Pull("ballast", ref))
	n.StartBallastd(t)
	mustPull(t, n, "ballast", ref)
	wantFiles(t, n, ref, states(b))
}

// TestBadBytes has wrong responses of the registry: the pull fails with the reason, leaves nothing
// incomplete, and the next pull works.
func TestBadBytes(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	for i, tt := range []struct {
		name  string
		fault node.Fault
		words []string
	}{
		{"wrong bytes", node.Fault{Flip: true}, []string{"digest"}},
		{"truncated", node.Fault{Short: 1 << 20}, nil},
		{"blob not found", node.Fault{Status: http.StatusNotFound}, []string{"not found"}},
		{"forbidden", node.Fault{Status: http.StatusForbidden}, []string{"answered 403 Forbidden; ask"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := weights(byte(30+i), 4<<20)
			b := converttest.ModelPackRaw(converttest.Files(w))
			b.Name += "-" + strings.ReplaceAll(tt.name, " ", "-")
			ref := push(t, n, b)
			d := digest.FromBytes(w)
			tt.fault.Match = node.Blob(d)
			remove := n.Registry.Wire.Add(tt.fault)
			defer remove()

			out := n.Pull("ballast", ref)
			t.Logf("ctr says: %s", strings.TrimSpace(out.Stderr))
			wantError(t, out, append(tt.words, d.Encoded()[:12])...)
			if strings.Contains(out.Stderr, "connection refused") {
				t.Error("the message is about a server that has nothing to do with it")
			}
			if _, err := os.Stat(object(n, d)); err == nil {
				t.Error("there is an object of bytes that are wrong")
			}
			for _, name := range imageNames(t, n) {
				if name != ref {
					continue
				}
				if got, err := n.List("ballast", ref, "/"); err == nil {
					t.Errorf("a container of the failed pull sees %v", got)
				}
			}
			remove()
			mustPull(t, n, "ballast", ref)
			wantFiles(t, n, ref, states(b))
		})
	}
}

// TestBadWire breaks connections and limits the server: pulls succeed nevertheless.
func TestBadWire(t *testing.T) {
	n := node.StartNode(t, node.Options{})
	manifests := func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/")
	}
	for i, tt := range []struct {
		name  string
		fault node.Fault // of the weights, unless Match is set
	}{
		{"manifest breaks", node.Fault{Match: manifests, CutAfter: 10, Times: 1}},
		{"manifest is busy", node.Fault{Match: manifests, Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Times: 1}},
		{"manifest is behind a bad gateway", node.Fault{Match: manifests, Status: http.StatusBadGateway, Times: 2}},
		{"connections break", node.Fault{CutAfter: 300_000, Times: 5}},
		{"no ranges", node.Fault{NoRange: true}},
		{"busy", node.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Times: 2}},
		{"unavailable", node.Fault{Status: http.StatusServiceUnavailable, Times: 2}},
		{"slow", node.Fault{Delay: 200 * time.Millisecond, Rate: 8 << 20}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := weights(byte(40+i), 12<<20)
			b := converttest.ModelPackRaw(converttest.Files(w))
			b.Name += "-" + strings.ReplaceAll(tt.name, " ", "-")
			ref := push(t, n, b)
			if tt.fault.Match == nil {
				tt.fault.Match = node.Blob(digest.FromBytes(w))
			}
			defer n.Registry.Wire.Add(tt.fault)()
			mustPull(t, n, "ballast", ref)
			wantFiles(t, n, ref, states(b))
		})
	}
}
