package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// The network of the measurements fleet: a bridge with the registry, to which each node has a link.
const (
	fleetNodes   = 16
	fleetLink    = "100mbit" // of each node, and of the registry, each way; two processors serve 16 nodes
	fleetModel   = 1 << 30   // 64 pieces
	faultyModel  = 128 << 20
	registryIP   = "10.77.0.100"
	registryTCP  = registryIP + ":5000"
	mirrorTCP    = registryIP + ":5001"
	schedulerTCP = registryIP + ":5002"
	dragonfly    = "127.0.0.1:65001"
	swarmDir     = "BENCH_SWARM_DIR" // the variable with the directory of the parts that Dragonfly has
)

// limited is the command that limits what a device sends.
func limited(device string) []string {
	return strings.Fields("tc qdisc replace dev " + device + " root tbf rate " + fleetLink + " burst 512kb latency 200ms")
}

// A fleetNode is a node: a process in a network namespace of its own.
type fleetNode struct {
	b      *bench
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	device string // of its link, at the bridge
}

// network makes the network and the servers of the measurements fleet, once. It returns the scheduler of Dragonfly.
func (b *bench) network() *scheduler {
	if b.scheduler != nil {
		return b.scheduler
	}
	if err := runAll(
		[]string{"ip", "link", "add", "br0", "type", "bridge"}, []string{"ip", "addr", "add", registryIP + "/24", "dev", "br0"},
		[]string{"ip", "link", "set", "br0", "up"}, limited("br0"),
	); err != nil {
		b.t.Fatalf("%v", err)
	}
	b.scheduler = &scheduler{backToSource: 1}
	b.fleetServe(registryTCP, b.node.Registry.Wire)
	b.fleetServe(schedulerTCP, b.scheduler)
	return b.scheduler
}

func (b *bench) fleetServe(address string, h http.Handler) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	s := &http.Server{Handler: h}
	go s.Serve(l)
	b.t.Cleanup(func() { s.Close() })
}

// swarmFleet starts nodes with Dragonfly. forget removes the parts of models that nobody asks for again.
func (b *bench) swarmFleet(n int) (nodes []*fleetNode, forget func()) {
	dir, err := os.MkdirTemp("", "swarm")
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.t.Cleanup(func() { os.RemoveAll(dir) })
	os.Setenv(swarmDir, dir)
	return b.startFleet(n, "swarm"), func() {
		parts, err := filepath.Glob(filepath.Join(dir, "*"))
		for _, p := range parts {
			err = errors.Join(err, os.Remove(p))
		}
		if err != nil {
			b.t.Fatalf("%v", err)
		}
	}
}

// pullAtOnce has nodes pull a model, and calls meanwhile. It returns how long the last one took, and how often the
// registry has sent as many bytes as the model has.
func (b *bench) pullAtOnce(nodes []*fleetNode, ref string, size int64, meanwhile func()) (all time.Duration, egress float64) {
	b.node.Registry.Wire.Reset()
	for _, n := range nodes {
		n.say(ref)
	}
	meanwhile()
	for _, n := range nodes {
		all = max(all, n.took())
	}
	b.node.Registry.Wire.Drain()
	for _, n := range b.node.Registry.Wire.BlobBytes() {
		egress += float64(n) / float64(size)
	}
	return all, egress
}

// fleetPulls measures one node, and several with Dragonfly, with a model in four files and in one, and one that comes
// when all others have it.
func (b *bench) fleetPulls() {
	b.network()
	plain := b.startFleet(1, "")
	dragonflies, forget := b.swarmFleet(fleetNodes)
	seed := uint64(100)
	pull := func(nodes []*fleetNode, files int) (all time.Duration, egress, late float64) {
		seed++
		name := fmt.Sprintf("fleet%d", seed)
		b.pushRaw(name, fleetModel, files, seed)
		ref := registryTCP + "/bench/" + name + ":v1"
		all, egress = b.pullAtOnce(nodes, ref, fleetModel, func() {})
		if n := len(nodes); n > 1 && n < len(dragonflies) {
			_, late = b.pullAtOnce(dragonflies[n:n+1], ref, fleetModel, func() {})
		}
		forget()
		return all, egress, late
	}
	for _, files := range []int{4, 1} {
		what := fmt.Sprintf("%s, files: %d", sizeOf(fleetModel), files)
		var one series
		for range b.rounds {
			took, _, _ := pull(plain, files)
			one.add(took)
		}
		for _, n := range []int{1, 3, 8, fleetNodes} {
			var all series
			var copies, late float64
			for range b.rounds {
				took, sent, later := pull(dragonflies[:n], files)
				all.add(took)
				copies, late = max(copies, sent), max(late, later)
			}
			longer := target{}
			if files > 1 && n >= 8 {
				longer = atMost(2, "")
			}
			name := fmt.Sprintf("%s, nodes with Dragonfly (a double): %d", what, n)
			b.times(name, all, "one node without", one, longer)
			b.figure(name+": copies that the registry sends", copies, "%.2f", "", atMost(1.1, ""))
			if n > 1 && n < fleetNodes {
				b.figure(name+", and one that comes later: copies that the registry sends it", late, "%.2f", "", atMost(0.005, ""))
			}
		}
	}
	for _, n := range append(plain, dragonflies...) {
		n.stop()
	}
}

// fleetFaults measures three nodes at once with a fault of the first one's dfdaemon, or of the scheduler, after three
// seconds.
func (b *bench) fleetFaults() {
	const nodes = 3
	c := b.network()
	plain := b.startFleet(nodes, "")
	seed := uint64(2000)
	var direct series
	for range b.rounds {
		seed++
		took, _ := b.pullAtOnce(plain, b.fleetModel(seed, faultyModel, false), faultyModel, func() {})
		direct.add(took)
	}
	for _, n := range plain {
		n.stop()
	}
	for _, chunks := range []bool{false, true} {
		for _, fault := range []string{"", swarmDead, swarmHung, swarmWrong, "no scheduler"} {
			var all series
			var copies float64
			for range b.rounds {
				dragonflies, forget := b.swarmFleet(nodes) // without a memory of the mirror
				seed++
				took, sent := b.pullAtOnce(dragonflies, b.fleetModel(seed, faultyModel, chunks), faultyModel, func() {
					time.Sleep(3 * time.Second)
					if c.gone.Store(fault == "no scheduler"); !c.gone.Load() {
						dragonflies[0].say("fault " + fault)
					}
				})
				c.gone.Store(false)
				all.add(took)
				copies = max(copies, sent)
				for _, n := range dragonflies {
					n.stop()
				}
				forget()
			}
			what := fmt.Sprintf("%s, %d nodes with Dragonfly (a double)", sizeOf(faultyModel), nodes)
			if chunks {
				what += ", chunk digests"
			}
			if fault != "" {
				what += ", after 3 s: " + fault
			}
			b.times(what, all, "all without", direct, target{})
			b.figure(what+", longer than without", (all.median() - direct.median()).Seconds(), "%.1f s", "", atMost(5, " s"))
			b.figure(what+": copies that the registry sends", copies, "%.2f", "", atMost(2, ""))
		}
	}
}

// fleetModel pushes a model of one file, and returns its reference at the address that nodes use.
func (b *bench) fleetModel(seed uint64, size int64, chunks bool) string {
	m := b.pushModel(fmt.Sprintf("fleet/model%d", seed), size, seed)
	repository := m.repository
	if chunks {
		repository += "-chunks"
		b.convertTo(repository, m)
	}
	return registryTCP + "/" + repository + ":v1"
}

// startFleet starts nodes. Those of mode "swarm" have Dragonfly, those of mode "mirror" a mirror.
func (b *bench) startFleet(n int, mode string) (all []*fleetNode) {
	fmt.Fprintf(os.Stderr, "bench: starting %d nodes %s\n", n, mode)
	for i := range n {
		address := fmt.Sprintf("10.77.0.%d", 1+i)
		if mode == "swarm" {
			address = fmt.Sprintf("10.77.0.%d", 31+i)
		}
		all = append(all, b.startFleetNode(address, mode))
	}
	for _, n := range all {
		n.expect("ready")
	}
	return all
}

func (b *bench) startFleetNode(address, mode string) *fleetNode {
	cmd := taskCommand("fleetnode", address, mode)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatalf("%v", err)
	}
	device := "v" + address[strings.LastIndexByte(address, '.')+1:]
	n := &fleetNode{b, cmd, in, bufio.NewScanner(out), device}
	b.t.Cleanup(n.stop)
	if err := runAll(
		[]string{"ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(cmd.Process.Pid)},
		[]string{"ip", "link", "set", device, "master", "br0", "up"}, limited(device),
	); err != nil {
		b.t.Fatalf("%v", err)
	}
	n.say("go")
	return n
}

func (n *fleetNode) say(line string) {
	if _, err := fmt.Fprintln(n.in, line); err != nil {
		n.b.t.Fatalf("node: %v", err)
	}
}

// expect returns the rest of the next line, which has to begin with a word.
func (n *fleetNode) expect(word string) string {
	if !n.out.Scan() {
		n.b.t.Fatalf("a node has ended: %v", n.out.Err())
	}
	first, rest, _ := strings.Cut(n.out.Text(), " ")
	if first != word {
		n.b.t.Fatalf("a node says %q, want %s", n.out.Text(), word)
	}
	return rest
}

// took returns how long the pull took.
func (n *fleetNode) took() time.Duration {
	d, err := time.ParseDuration(n.expect("took"))
	if err != nil {
		n.b.t.Fatalf("%v", err)
	}
	return d
}

func (n *fleetNode) stop() {
	if n.cmd.ProcessState == nil {
		n.in.Close()
		_ = n.cmd.Wait()
		_ = exec.Command("ip", "link", "del", n.device).Run() // the kernel removes it with the namespace, a moment later
	}
}

// runFleetNode is a node. It pulls what the lines of stdin name, verifies it, and removes it. A line "fault X" is for
// its swarm.
func runFleetNode(address, mode string) error {
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() {
		return io.ErrUnexpectedEOF
	}
	if err := runAll(
		[]string{"ip", "link", "set", "lo", "up"}, []string{"ip", "addr", "add", address + "/24", "dev", "eth0"},
		[]string{"ip", "link", "set", "eth0", "up"}, limited("eth0"),
	); err != nil {
		return err
	}
	o := node.Options{Registry: &node.Registry{Host: registryTCP}, Config: "[[lazy.rule]]\nmatch = \"*\"\nmode = \"complete\"\n"}
	s := &swarm{registry: "http://" + registryTCP, scheduler: "http://" + schedulerTCP, own: address + ":65002", dir: os.Getenv(swarmDir)}
	if mode == "swarm" {
		o.Config += fmt.Sprintf("[[mirror]]\nurl = %q\nkind = \"dragonfly\"\n", "http://"+dragonfly)
		proxy, err := net.Listen("tcp", dragonfly)
		if err != nil {
			return err
		}
		others, err := net.Listen("tcp", s.own)
		if err != nil {
			return err
		}
		if err := s.serve(proxy, others); err != nil {
			return err
		}
	}
	code := node.Run(func(t node.TB) {
		n := node.StartNode(t, o)
		if mode == "mirror" {
			hosts := fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+registryTCP, "http://"+mirrorTCP)
			if err := os.WriteFile(filepath.Join(n.Dir, "ballast.d", registryTCP, "hosts.toml"), []byte(hosts), 0o644); err != nil {
				t.Fatalf("%v", err)
			}
		}
		fmt.Println("ready")
		must := func(r node.Result) {
			if r.Err != nil {
				t.Fatalf("%v\n%s\nballastd:\n%s", r.Err, r.Output(), n.Ballastd.Tail(20))
			}
		}
		refs := make(chan string)
		go func() {
			defer close(refs)
			for lines.Scan() {
				if fault, ok := strings.CutPrefix(lines.Text(), "fault "); !ok {
					refs <- lines.Text()
				} else if fault != "" {
					s.fault.Store(&fault)
				}
			}
		}()
		for ref := range refs {
			start := time.Now()
			must(n.Pull("ballast", ref))
			took := time.Since(start)
			must(n.Ballast("verify", ref))
			must(n.Ctr("images", "rm", "--sync", ref))
			must(n.Ballast("gc", "--yes"))
			fmt.Println("took", took)
		}
	})
	if code != 0 {
		return fmt.Errorf("a node ended with %d", code)
	}
	return nil
}

// A faulty is a mirror with a fault.
type faulty struct {
	next  http.Handler
	fault atomic.Pointer[string]
	bytes atomic.Int64 // of blobs that it has sent
}

// ServeHTTP implements http.Handler.
func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := *f.fault.Load()
	if fault == "dead" {
		panic(http.ErrAbortHandler)
	}
	if !node.AnyBlob(r) {
		f.next.ServeHTTP(w, r)
		return
	}
	f.next.ServeHTTP(&faultyWriter{w, f, fault, r}, r)
}

// A faultyWriter is the answer to one request.
type faultyWriter struct {
	http.ResponseWriter
	f     *faulty
	fault string
	r     *http.Request
}

// send sends bytes and counts them.
func (w *faultyWriter) send(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.f.bytes.Add(int64(n))
	return n, err
}

// Write implements io.Writer.
func (w *faultyWriter) Write(p []byte) (n int, err error) {
	switch w.fault {
	case "one byte":
		if strings.HasPrefix(w.r.Header.Get("Range"), "bytes=0-") {
			p = slices.Clone(p)
			p[len(p)/2] ^= 1
			w.fault = ""
		}
	case "all bytes":
		p = slices.Clone(p)
		for i := range p {
			p[i] ^= 0xff
		}
	case "70 KiB/s":
		const step = 7 << 10
		for len(p) > step {
			m, err := w.send(p[:step])
			n += m
			if err != nil {
				return n, err
			}
			http.NewResponseController(w.ResponseWriter).Flush()
			p = p[step:]
			select {
			case <-time.After(100 * time.Millisecond):
			case <-w.r.Context().Done():
				return n, w.r.Context().Err()
			}
		}
	}
	m, err := w.send(p)
	return n + m, err
}

// fleetMirrors measures a pull through a mirror with a fault, and how long it takes until a mirror that is well again
// is used.
func (b *bench) fleetMirrors() {
	b.network()
	f := &faulty{next: b.node.Registry.Wire}
	set := func(fault string) { f.fault.Store(&fault) }
	set("")
	b.fleetServe(mirrorTCP, f)
	seed := uint64(1000)
	model := func(size int64, chunks bool) string {
		seed++
		return b.fleetModel(seed, size, chunks)
	}
	plain := b.startFleet(1, "")[0]
	var direct series
	for range b.rounds {
		plain.say(model(faultyModel, false))
		direct.add(plain.took())
	}
	plain.stop()
	for _, c := range []struct {
		fault  string
		chunks bool
		most   target
	}{
		{}, {"dead", false, atMost(5, " s")}, {"70 KiB/s", false, atMost(5, " s")}, {"one byte", true, atMost(5, " s")}, {"all bytes", true, atMost(5, " s")},
		{"one byte", false, target{}}, {"all bytes", false, target{}}, // found out at the end: the registry sends all of it again
	} {
		fault := c.fault
		var all series
		var again time.Duration
		for range b.rounds {
			n := b.startFleet(1, "mirror")[0] // without a memory of the mirror
			set("")
			n.say(model(32<<20, false))
			n.took()
			if f.bytes.Load() == 0 {
				b.t.Fatalf("the mirror is not used")
			}
			set(fault)
			n.say(model(faultyModel, c.chunks))
			all.add(n.took())
			set("")
			for begin := time.Now(); fault == "dead" || fault == "70 KiB/s"; time.Sleep(time.Second) {
				before := f.bytes.Load()
				n.say(model(32<<20, false))
				n.took()
				if f.bytes.Load() > before {
					again = max(again, time.Since(begin))
					break
				}
			}
			n.stop()
		}
		what := "128 MiB with a mirror that is well"
		if fault != "" {
			what = "128 MiB with a mirror: " + fault
		}
		if c.chunks {
			what += ", chunk digests"
		}
		b.times(what, all, "without a mirror", direct, target{})
		if fault != "" {
			b.figure(what+", longer than without", (all.median() - direct.median()).Seconds(), "%.1f s", "", c.most)
		}
		if again > 0 {
			b.figure(what+", used again after it is well", again.Seconds(), "%.1f s", "", atMost(60, " s"))
		}
	}
}
