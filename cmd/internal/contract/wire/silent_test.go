package wire_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/ballast-dev/ballast/cmd/internal/contract/wire"
	"github.com/ballast-dev/ballast/cmd/internal/daemon/admin"
	"github.com/containerd/errdefs"
)

// tooLong is more than any limit in these tests, on a busy machine.
const tooLong = 2 * time.Minute

// listen returns a socket and a client of it.
func listen(t *testing.T) (net.Listener, *wire.Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewClient(path)
	t.Cleanup(func() { c.Close(); l.Close() })
	return l, c
}

// A node has a health and a disk.
type node struct {
	admin.Node // nil
	health     func() wire.Health
	touch      func()
}

func (n node) Health(context.Context) (wire.Health, error) { return n.health(), nil }
func (n node) Touch()                                      { n.touch() }

// serve serves a node at a socket until the end of the test.
func serve(t *testing.T, n node) *wire.Client {
	t.Helper()
	l, c := listen(t)
	h := &admin.Handler{Node: n, Metrics: http.NotFoundHandler()}
	server := &http.Server{Handler: h.Routes()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until Close
	}()
	t.Cleanup(func() { server.Close(); <-done })
	return c
}

// ends fails the test unless a command ends.
func ends(t *testing.T, do func(context.Context) error) (took time.Duration, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tooLong)
	defer cancel()
	start := time.Now()
	err = do(ctx)
	if ctx.Err() != nil {
		t.Error("the command waits for ever")
	}
	return time.Since(start), err
}

// TestSilent checks that commands end when the daemon takes connections, and says nothing: it is stopped, or hangs.
func TestSilent(t *testing.T) {
	t.Parallel()
	_, c := listen(t)
	for name, do := range map[string]func(context.Context) error{
		"version":  func(ctx context.Context) error { _, err := c.Version(ctx); return err },
		"ready":    c.Ready,
		"prefetch": func(ctx context.Context) error { _, err := c.Prefetch(ctx, wire.PrefetchRequest{}, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ends(t, do); !errors.Is(err, wire.ErrSilent) || !errdefs.IsUnavailable(err) {
				t.Errorf("got %v, want %v", err, wire.ErrSilent)
			}
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second/10, cancel)
		if _, err := c.Version(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}

// TestWorks checks that an answer may take longer than a client waits for a daemon that says nothing.
func TestWorks(t *testing.T) {
	t.Parallel()
	const long = 13 * time.Second
	touched := make(chan struct{}, 100)
	c := serve(t, node{
		health: func() wire.Health {
			time.Sleep(long)
			return wire.Health{Show: "stubs"}
		},
		touch: func() { touched <- struct{}{} },
	})
	var h wire.Health
	took, err := ends(t, func(ctx context.Context) (err error) { h, err = c.Health(ctx); return err })
	if err != nil || h.Show != "stubs" || took < long {
		t.Errorf("%+v, %v after %v", h, err, took)
	}
	if len(touched) == 0 {
		t.Error("the disk was not asked")
	}
}

// TestHungDisk checks that commands end when the daemon works on an answer for ever, because its disk hangs.
func TestHungDisk(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	c := serve(t, node{health: func() wire.Health { <-hang; return wire.Health{} }, touch: func() { <-hang }})
	c.SetWorking(10 * time.Second)
	if _, err := ends(t, func(ctx context.Context) error { _, err := c.Health(ctx); return err }); !errors.Is(err, wire.ErrSilent) {
		t.Errorf("got %v, want %v", err, wire.ErrSilent)
	}
}
