package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// networkVar is set in the process started by ownNetwork.
const networkVar = "BENCH_NETWORK"

// ownNetwork runs the program again with its own loopback device, once. The calling program has threads
// in the old namespace.
func ownNetwork() error {
	if os.Getenv(networkVar) != "" {
		return nil
	}
	os.Setenv(networkVar, "own")
	runtime.LockOSThread() // so that this thread starts the process
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("new network namespace (are you root?): %w", err)
	}
	return run("ip", "link", "set", "lo", "up")
}

// A wire is a simulated link to the registry.
type wire struct {
	what      string
	rate      int64 // bytes a second; 0 is no limit
	roundTrip time.Duration
}

// farLink is the time of a simulated round trip.
const farLink = 20 * time.Millisecond

// farRate is the rate of a simulated link, in bytes a second.
const farRate = 200 << 20

var links = []wire{{"loopback", 0, 0}, {"200 MiB/s, 20 ms", farRate, farLink}}

func (w wire) set(b *bench) { b.link(w.rate, w.roundTrip) }

func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return nil
}

// runAll runs commands, each with its arguments.
func runAll(commands ...[]string) error {
	for _, c := range commands {
		if err := run(c[0], c[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// link limits the link to the registry to a rate in bytes a second, and adds a round trip to each
// response. Zeros remove the limits. The kernel limits the rate, because a program would fall below it
// whenever the processors are busy.
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
