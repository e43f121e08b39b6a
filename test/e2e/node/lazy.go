package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
)

// LazyApart is the mount point of the lazy mount on kernels that cannot id-map it.
func (n *Node) LazyApart() string { return filepath.Join(n.Run(), "lazy") }

// holder returns the process that holds the lazy mount, or 0.
func (n *Node) holder(t TB) int {
	t.Helper()
	socket := []byte(filepath.Join(n.Run(), "holder.sock"))
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
		return pid
	}
	return 0
}

// KillHolder kills the holder of the lazy mount.
func (n *Node) KillHolder(t TB) {
	t.Helper()
	pid := n.holder(t)
	if pid == 0 {
		t.Fatalf("no holder runs for %s", n.Dir)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill the holder: %v", err)
	}
	for start := time.Now(); syscall.Kill(pid, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("the holder, process %d, is still there %v after SIGKILL", pid, limit)
		}
	}
}

// dropLazy ends the lazy mount, which a daemon leaves to its successor, and the holder. It does not
// rely on the unmount for that: as long as a process of the machine has a copy of the mount namespace,
// the mount lives on there.
func (n *Node) dropLazy(t TB) {
	t.Helper()
	if n.holder(t) == 0 {
		return
	}
	if out := Command(context.Background(), n.Env(), n.binary("ballastd"), "--config", n.ConfigFile(), "unmount"); out.Err != nil {
		t.Logf("ballastd unmount: %v: %s", out.Err, out.Stderr) // a test has broken the configuration
		n.KillHolder(t)
	}
	for start := time.Now(); n.holder(t) != 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Errorf("the holder of the lazy mount stays after everything was stopped")
			n.KillHolder(t)
			return
		}
	}
}

// FleetPull has ballastd pull a model for pods, as the agent of ModelSets does.
func (n *Node) FleetPull(request map[string]string) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	p, err := n.fleet(http.MethodPost, "pull", body)
	if err != nil {
		return err
	}
	if lines := strings.Split(strings.TrimSpace(string(p)), "\n"); !strings.Contains(lines[len(lines)-1], `"status":"success"`) {
		return fmt.Errorf("not pulled: %s", p)
	}
	return nil
}

// FleetVersion asks ballastd what a tag points to, as the agent of ModelSets does.
func (n *Node) FleetVersion(request map[string]string) (string, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	p, err := n.fleet(http.MethodPost, "version", body)
	if err != nil {
		return "", err
	}
	var v struct{ Digest string }
	return v.Digest, json.Unmarshal(p, &v)
}

// FleetPin has ballastd pin models, by reference, and no others, as the agent of ModelSets does. It returns those that
// are there.
func (n *Node) FleetPin(t TB, models map[string]digest.Digest) map[string]digest.Digest {
	t.Helper()
	type pin struct {
		Ref    string        `json:"ref"`
		Digest digest.Digest `json:"digest"`
	}
	var v struct {
		Pins []pin `json:"pins"`
	}
	for ref, d := range models {
		v.Pins = append(v.Pins, pin{ref, d})
	}
	body, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%v", err)
	}
	p, err := n.fleet(http.MethodPut, "pins", body)
	if err != nil {
		t.Fatalf("%v", err)
	}
	v.Pins = nil
	if err := json.Unmarshal(p, &v); err != nil {
		t.Fatalf("%v", err)
	}
	there := map[string]digest.Digest{}
	for _, p := range v.Pins {
		there[p.Ref] = p.Digest
	}
	return there
}

// fleet sends a request as the agent of ModelSets.
func (n *Node) fleet(method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, "http://ballastd/v1/fleet/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := SocketClient(filepath.Join(n.Run(), "fleet", "fleet.sock")).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	p, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, p)
	}
	return p, err
}

// AdminClient returns a client of ballastd's admin socket, for URLs with any host.
func (n *Node) AdminClient() *http.Client { return SocketClient(filepath.Join(n.Run(), "admin.sock")) }

// SocketClient returns a client of the server at a socket, for URLs with any host. It keeps no connections.
func SocketClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
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
