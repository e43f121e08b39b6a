package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// A table is printed below that of the rows; the first row is the heading.
type table struct {
	title string
	rows  [][]string
}

// kinds are the kinds of work. A sample of a profile belongs to the first kind with a function on its
// stack.
var kinds = []struct {
	name      string
	functions []string // parts of their names
}{
	{"memory, garbage collection", []string{"runtime.mallocgc", "runtime.gcBgMarkWorker", "runtime.gcAssist", "runtime.bgsweep", "runtime.bgscavenge", "runtime.(*mheap)", "runtime.gcStart"}},
	{"sha256", []string{"sha256."}},
	{"fsync", []string{"os.(*File).Sync", "unix.Fdatasync", "unix.Fsync", "unix.Syncfs", "unix.SyncFileRange"}},
	{"write to files", []string{"os.(*File).Write", "unix.Pwrite"}},
	{"read of files for FUSE", []string{"os.(*File).ReadAt", "unix.Pread", "unix.Splice", "splice."}},
	{"FUSE requests and answers", []string{"ballast/snapshotter/lazy.", "hanwen/go-fuse"}},
	{"sockets, HTTP", []string{"net/http.", "net.(*conn)", "net.(*netFD)", "crypto/tls."}},
	{"scheduler, locks, timers", []string{"runtime.schedule", "runtime.mcall", "runtime.futex", "runtime.sysmon", "runtime.findRunnable", "runtime.netpoll", "sync.(*Mutex)", "runtime.mstart"}},
}

const otherKind = "other of the program"

// kindOf returns the kind of a sample.
func kindOf(s *profile.Sample) string {
	for _, k := range kinds {
		for _, l := range s.Location {
			for _, line := range l.Line {
				for _, f := range k.functions {
					if strings.Contains(line.Function.Name, f) {
						return k.name
					}
				}
			}
		}
	}
	return otherKind
}

// An account has the CPU-seconds of a candidate or control.
type account struct {
	samples map[string]int64         // nanoseconds in profiles, by kind
	used    map[string]time.Duration // by process
	bytes   int64
}

func newAccount() *account {
	return &account{samples: map[string]int64{}, used: map[string]time.Duration{}}
}

// book adds the samples of a profile.
func (a *account) book(r io.Reader) error {
	p, err := profile.Parse(r)
	if err != nil {
		return err
	}
	last := len(p.SampleType) - 1 // samples/count, cpu/nanoseconds
	for _, s := range p.Sample {
		a.samples[kindOf(s)] += s.Value[last]
	}
	return nil
}

// The processes of an account. The first one is profiled.
const (
	ofDaemon, ofReader, ofRegistry, ofContainerd = "the program", "reader process", "registry", "containerd"
	ofOthers                                     = "kernel threads, ctr, other programs"
)

// of returns the seconds for each GiB of a process, or of a kind.
func (a *account) of(name string) float64 {
	used, ok := a.used[name]
	if !ok {
		var all int64
		for _, n := range a.samples {
			all += n
		}
		used = time.Duration(a.used[ofDaemon].Seconds() * float64(a.samples[name]) / float64(max(all, 1)) * 1e9)
	}
	return used.Seconds() * (1 << 30) / float64(a.bytes)
}

// measure adds the CPU time used in run, which returns that of its reader and of the program in place
// of ballastd; 0 means that it is ballastd.
func (b *bench) measure(a *account, run func() (reader, program time.Duration)) {
	busy, own := b.busy(), ownCPU()
	daemon, containerd := b.cpuOf(b.node.Ballastd.Pid(), false), b.cpuOf(b.node.Containerd.Pid(), true)
	reader, program := run()
	daemon, containerd = b.cpuOf(b.node.Ballastd.Pid(), false)-daemon, b.cpuOf(b.node.Containerd.Pid(), true)-containerd
	busy, own = b.busy()-busy, ownCPU()-own
	a.used[ofOthers] += max(0, busy-own-daemon-containerd-reader-program)
	if program != 0 {
		daemon = program
	}
	for name, d := range map[string]time.Duration{ofDaemon: daemon, ofReader: reader, ofRegistry: own, ofContainerd: containerd} {
		a.used[name] += d
	}
}

// profiled books the profile of ballastd while run runs, for about the given time.
func (b *bench) profiled(a *account, about time.Duration, run func() (reader, program time.Duration)) {
	type answer struct {
		body io.ReadCloser
		err  error
	}
	client := b.node.AdminClient()
	defer client.CloseIdleConnections()
	got := make(chan answer, 1)
	go func() {
		resp, err := client.Get(fmt.Sprintf("http://admin/debug/pprof/profile?seconds=%d", int(about.Seconds()*2)+3))
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("profile of ballastd: %s", resp.Status)
		}
		if err != nil {
			got <- answer{nil, err}
			return
		}
		got <- answer{resp.Body, nil}
	}()
	time.Sleep(100 * time.Millisecond) // so that its start is profiled
	b.measure(a, run)
	r := <-got
	if r.err != nil {
		b.t.Fatalf("%v", r.err)
	}
	defer r.body.Close()
	if err := a.book(r.body); err != nil {
		b.t.Fatalf("profile of ballastd: %v", err)
	}
}

// ledger adds a table of CPU-seconds for each GiB: of a read of absent bytes, of its control, and of a
// pull.
func (b *bench) ledger() {
	m := b.model()
	l := b.prepareLazy("ledger", m)
	whole := b.prepareComplete("ledger", m)
	lazy, control, pull := newAccount(), newAccount(), newAccount()
	b.settle(l.size, l.digest)
	first := b.readCold(l)
	b.leave(l, first)
	about := first.durable
	file := filepath.Join(b.node.Dir, "deliver.pprof")
	defer os.Remove(file)
	for range b.rounds {
		b.settle(l.size, l.digest)
		var c coldRead
		b.profiled(lazy, about, func() (time.Duration, time.Duration) {
			c = b.readCold(l)
			return c.reader, 0
		})
		b.leave(l, c)
		about = max(about, c.durable)

		b.settle(l.size, l.digest)
		b.measure(control, func() (time.Duration, time.Duration) {
			d := b.deliver(l, file)
			return d.reader, d.program
		})
		f, err := os.Open(file)
		if err == nil {
			err = control.book(f)
			f.Close()
		}
		if err != nil {
			b.t.Fatalf("profile of the control: %v", err)
		}

		b.settle(l.size, l.digest)
		b.profiled(pull, about, func() (time.Duration, time.Duration) {
			b.must(b.node.Pull("ballast", whole))
			return 0, 0
		})
		b.forget(whole)
	}
	accounts := []*account{lazy, control, pull}
	for _, a := range accounts {
		a.bytes = int64(b.rounds) * l.size
	}
	b.addLedger(accounts)
}

// addLedger makes the table of accounts.
func (b *bench) addLedger(accounts []*account) {
	t := table{fmt.Sprintf("CPU-seconds for each GiB, the mean of %d rounds. Kinds are shares of a profile, processes are what the kernel counts:", b.rounds),
		[][]string{{"what", "cold lazy read", "its control (deliver)", "pull"}}}
	add := func(name, shown string) {
		cells := []string{shown}
		for _, a := range accounts {
			cells = append(cells, fmt.Sprintf("%.2f", a.of(name)))
		}
		t.rows = append(t.rows, cells)
	}
	for _, k := range kinds {
		add(k.name, k.name)
	}
	add(otherKind, otherKind)
	add(ofDaemon, "**ballastd, or the control**")
	for _, name := range []string{ofReader, ofRegistry, ofContainerd, ofOthers} {
		add(name, name)
	}
	b.addTable(t)
}
