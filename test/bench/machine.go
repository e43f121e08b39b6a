package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"golang.org/x/sys/unix"
)

// machine describes the machine.
func machine() string {
	var u unix.Utsname
	_ = unix.Uname(&u) // at worst the names are empty
	model := "unknown processor"
	info, _ := os.ReadFile("/proc/cpuinfo") // at worst the name is empty
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%s; %d × %s, %s, Linux %s", time.Now().Format(time.DateOnly), runtime.NumCPU(), model,
		sizeOf(memory("MemTotal:")), unix.ByteSliceToString(u.Release[:]))
}

// memory returns a value of /proc/meminfo, in bytes; 0 if it is missing.
func memory(name string) int64 {
	info, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}

// quietLoad is the load above which a machine has more to do than to be measured.
const quietLoad = 1

// quietWait is how long to wait for that: make performance builds programs first.
const quietWait = 10 * time.Minute

// awaitQuiet returns the load of the machine when it is quiet, or after quietWait.
func awaitQuiet() float64 {
	for start := time.Now(); ; time.Sleep(10 * time.Second) {
		l := load()
		if l <= quietLoad || time.Since(start) >= quietWait {
			return l
		}
		fmt.Fprintf(os.Stderr, "bench: waiting until the machine is quiet; its load is %.2f\n", l)
	}
}

// load returns the load of the machine over the last minute; 0 if it is not known.
func load() float64 {
	p, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(p), " ")
	return number(first)
}

// cpuOf is node.CPU.
func (b *bench) cpuOf(pid int, children bool) time.Duration {
	sum, err := node.CPU(pid, children)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	return sum
}

// daemonCPU returns the CPU time of ballastd while f runs.
func (b *bench) daemonCPU(f func()) time.Duration {
	before := b.cpuOf(b.node.Ballastd.Pid(), false)
	f()
	return b.cpuOf(b.node.Ballastd.Pid(), false) - before
}

// cpu returns the CPU time of containerd and ballastd, with the programs that they started.
func (b *bench) cpu(n *node.Node) time.Duration {
	return b.cpuOf(n.Containerd.Pid(), true) + b.cpuOf(n.Ballastd.Pid(), true)
}

// ownCPU returns the CPU time of this process.
func ownCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // cannot fail for this process
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// busy returns the total busy time of all processors.
func (b *bench) busy() (sum time.Duration) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	// cpu user nice system idle iowait irq softirq …
	f := strings.Fields(string(stat))
	for _, i := range []int{1, 2, 3, 6, 7} {
		ticks, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			b.t.Fatalf("/proc/stat: %v", err)
		}
		sum += time.Duration(ticks) * node.Tick
	}
	return sum
}

func drop() {
	unix.Sync()
	_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}

func flush(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Syncfs(int(f.Fd()))
}

// touch touches n bytes of memory, if the machine has as many, so that programs get memory quickly
// afterwards.
func (b *bench) touch(n int64) {
	const left = 2 << 30 // for everything else
	if n = min(n, memory("MemAvailable:")-left); n > 0 {
		b.task("touch", fmt.Sprint(n))
	}
}

func touchMemory(length string) error {
	n, err := strconv.ParseInt(length, 10, 64)
	if err != nil {
		return err
	}
	// If there is less memory than it seemed, the kernel should kill this program.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	p, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return err
	}
	return unix.Munmap(p)
}

// written returns the bytes that ballastd and containerd have written to disks.
func (b *bench) written() (n int64) {
	for _, p := range []*node.Process{b.node.Ballastd, b.node.Containerd} {
		n += b.field(fmt.Sprintf("/proc/%d/io", p.Pid()), "write_bytes:")
	}
	return n
}

// peak returns the peak resident size of ballastd, in bytes.
func (b *bench) peak() int64 {
	return b.field(fmt.Sprintf("/proc/%d/status", b.node.Ballastd.Pid()), "VmHWM:") << 10
}

func (b *bench) field(file, name string) int64 {
	p, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	for line := range strings.Lines(string(p)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				b.t.Fatalf("%s: %v", file, err)
			}
			return n
		}
	}
	b.t.Fatalf("%s: no %s", file, name)
	return 0
}
