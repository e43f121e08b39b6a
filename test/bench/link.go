package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// networkVar says that the program was started where ownNetwork was called.
const networkVar = "BENCH_NETWORK"

// ownNetwork gives what the program starts a loopback device of its own, once. The program itself has
// threads that are elsewhere still.
func ownNetwork() error {
	if os.Getenv(networkVar) != "" {
		return nil
	}
	os.Setenv(networkVar, "own")
	runtime.LockOSThread() // what is started next is started by this thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace (are you root?): %w", err)
	}
	return run("ip", "link", "set", "lo", "up")
}

// A wire is a link to the registry that figures are made over.
type wire struct {
	what      string
	rate      int64 // bytes a second; 0: as fast as the machine is
	roundTrip time.Duration
}

// farLink is the time of a round trip where one is simulated.
const farLink = 20 * time.Millisecond

var links = []wire{{"loopback", 0, 0}, {"200 MiB/s, 20 ms", 200 << 20, farLink}}

func (w wire) set(b *bench) { b.link(w.rate, w.roundTrip) }

func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
}

// link makes the way to the registry a link of so many bytes a second, where each answer takes a round
// trip more. Zeros make it as fast as the machine is. The kernel does the rate: what does it in a
// program loses some of it whenever the processors are busy.
func (b *bench) link(rate int64, roundTrip time.Duration) {
	b.node.Registry.Wire.Link(0, roundTrip)
	err := run("tc", "qdisc", "replace", "dev", "lo", "root", "noqueue")
	if rate > 0 {
		err = run("tc", "qdisc", "replace", "dev", "lo", "root", "tbf",
			"rate", fmt.Sprintf("%dbit", 8*rate), "burst", "2mb", "latency", "100ms")
	}
	if err != nil {
		b.t.Fatalf("%v", err)
	}
}
