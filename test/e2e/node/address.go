package node

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

// Ports returned by FreeAddress: below all ports that the kernel assigns.
const (
	firstPort = 10_000
	lastPort  = 30_000
)

// ports has the ports that FreeAddress has returned in this process.
var ports = struct {
	mu   sync.Mutex // guards used
	used map[int]bool
}{used: map[int]bool{}}

// FreeAddress returns a free TCP address of the loopback device for a server that starts later, and
// possibly again. No two calls return the same one. The kernel assigns other ports to connections and
// to servers that listen on port 0, so that the address stays free.
func FreeAddress(t TB) string {
	t.Helper()
	var low, high int
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		_, _ = fmt.Sscan(string(b), &low, &high)
	}
	if low <= lastPort && high >= firstPort {
		t.Logf("the kernel assigns the ports %d to %d; an address may be in use later", low, high)
	}
	ports.mu.Lock()
	defer ports.mu.Unlock()
	var err error
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		if ports.used[port] {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
			continue
		}
		ports.used[port] = true
		_ = l.Close() // nothing was accepted
		return l.Addr().String()
	}
	t.Fatalf("no port is free: %v", err)
	return ""
}
