package wire

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

// TestRestart sends requests, of both kinds, to a daemon that has just restarted, also while others send requests all
// the time.
func TestRestart(t *testing.T) {
	for _, others := range []int{0, 4} {
		t.Run(fmt.Sprintf("%d others", others), func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			c := NewClient(socket)
			defer c.Close()
			ask := func() error {
				_, err := c.Images(t.Context())
				if err == nil {
					_, err = c.GC(t.Context(), GCOptions{})
				}
				return err
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			defer all.Wait()
			defer cancel()
			for range others {
				all.Go(func() {
					for ctx.Err() == nil {
						_ = ask()
					}
				})
			}
			for range 50 {
				stop := serveAt(t, socket)
				if err := ask(); err != nil {
					t.Fatal(err)
				}
				stop()
			}
			if err := os.Remove(socket); err != nil {
				t.Fatal(err)
			}
			if err := ask(); !errdefs.IsUnavailable(err) {
				t.Errorf("without a daemon: %v", err)
			}
		})
	}
}

// serveAt answers requests at a socket with "null", until the returned function is called.
func serveAt(t *testing.T, socket string) (stop func()) {
	t.Helper()
	_ = os.Remove(socket) // of the daemon before
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "null") })}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() {
		_ = s.Close()
		<-done
	}
}
