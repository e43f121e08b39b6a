package node

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// LazyApart is the mount point of the lazy mount on kernels that cannot id-map it.
func (n *Node) LazyApart() string { return filepath.Join(n.Dir, "lazy") }

// KillHolder kills the holder of the lazy mount.
func (n *Node) KillHolder(t TB) {
	t.Helper()
	if !n.killHolder(t) {
		t.Fatalf("no holder runs for %s", n.Dir)
	}
}

// killHolder reports whether there was a holder to kill.
func (n *Node) killHolder(t TB) bool {
	t.Helper()
	socket := []byte(filepath.Join(n.Dir, "holder.sock"))
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatalf("%v", err)
	}
	for _, name := range found {
		line, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(line, socket) || !bytes.Contains(line, []byte("\x00holder\x00")) {
			continue // or it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatalf("%v", err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatalf("kill the holder: %v", err)
		}
		for start := time.Now(); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > limit {
				t.Fatalf("the holder, process %d, is still there %v after SIGKILL", pid, limit)
			}
		}
		return true
	}
	return false
}

// AdminClient returns a client of ballastd's admin socket, for URLs with any host.
func (n *Node) AdminClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(n.Dir, "admin.sock"))
		},
	}}
}

// Metrics returns ballastd's metrics as text.
func (n *Node) Metrics() string {
	resp, err := n.AdminClient().Get("http://admin/metrics")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
