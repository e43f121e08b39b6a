package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

func main() {
	var given scope
	flag.IntVar(&given.rounds, "rounds", 0, fmt.Sprintf("how often each thing is measured; candidate and control alternate; default %d for %s, and otherwise %d", large.rounds, strings.Join(headline, ", "), usual.rounds))
	flag.Func("size", fmt.Sprintf("of the model, such as 512MiB or 2GiB; about 20 times that is needed on the disk, 3 times in memory; default %s for %s, and otherwise %s", sizeOf(large.size), strings.Join(slices.Concat(headline, apart), ", "), sizeOf(usual.size)), func(s string) (err error) {
		given.size, err = parseSize(s)
		return err
	})
	dir := flag.String("dir", "", "directory on the disk to measure; default a temporary one")
	objects := flag.Int("objects", 1_000_000, "objects of the largest node of the measurement scale")
	stargz := flag.String("stargz", "", "the program of the directory stargz, for the measurement peers")
	ollama := flag.String("ollama", "", "the program of Ollama, for the measurement peers; without, it is left out")
	base := flag.String("base", "", "directory with another build of ballast and ballastd, for the measurement guard")
	page := flag.String("page", "", "Markdown file whose part below the heading Figures the tables replace, which are printed too")
	loaded := flag.Bool("loaded", false, "write figures into the page although the machine is loaded; their heading says so")
	plotOnly := flag.Bool("plot", false, "draw the plot of the page from its tables, and measure nothing")
	task := flag.String("task", "", "run one task as a process of its own (internal)")
	flag.Usage = usage
	flag.Parse()
	if *task != "" {
		if err := runTask(*task, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if *plotOnly {
		if err := writePlot(*page); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := known(flag.Args()); err != nil || given.rounds < 0 {
		fmt.Fprintln(os.Stderr, "bench:", cmp.Or(err, errors.New("-rounds has to be 1 or more; 0 is the default")))
		os.Exit(2)
	}
	before := load()
	if *page != "" && !*loaded {
		if before = awaitQuiet(); before > quietLoad {
			fmt.Fprintf(os.Stderr, "bench: the load of the machine is %.2f, and above %d the figures are those of other work; wait until it is quiet, or use -loaded\n", before, quietLoad)
			os.Exit(1)
		}
	}
	if *dir != "" {
		os.Setenv("TMPDIR", *dir)
	}
	if err := ownNetwork(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(node.Main(func() int {
		b := &bench{given: given, objects: *objects, stargz: *stargz, ollama: *ollama, base: *base, report: report{out: os.Stdout, page: *page, load: before}}
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
		go b.interruptible(signals)
		code := node.Run(func(t node.TB) {
			b.t = t
			func() {
				defer b.finish()
				b.run(flag.Args())
			}()
			if *page != "" {
				if err := b.writePage(); err != nil {
					t.Fatalf("%v", err)
				}
			}
		})
		if len(b.worse) > 0 {
			fmt.Fprintf(os.Stderr, "bench: worse than %s: %s\n", filepath.Base(*base), strings.Join(b.worse, "; "))
			return 1
		}
		return code
	}))
}

// minSize is the size of the smallest model for which all measurements make sense.
const minSize = 256 << 20 // 256 MiB: 64 chunks, of which lazy-random reads some that are far apart

// parseSize reads a number with a unit, MiB or GiB.
func parseSize(s string) (n int64, err error) {
	var unit string
	if _, err := fmt.Sscanf(s, "%d%s", &n, &unit); err != nil {
		return 0, fmt.Errorf("a size is a number and MiB or GiB: %w", err)
	}
	switch unit {
	case "MiB":
		n <<= 20
	case "GiB":
		n <<= 30
	default:
		return 0, fmt.Errorf("unit %q is not MiB or GiB", unit)
	}
	if n < minSize {
		return 0, fmt.Errorf("less than %s", sizeOf(minSize))
	}
	return n, nil
}

func usage() {
	w := flag.CommandLine.Output()
	fmt.Fprint(w, `usage: bench [flags] [MEASUREMENT…]

Measures ballast beside controls in the same run and prints tables in Markdown on standard output. Without a name all
measurements are made, but for big, fleet, guard and public, and peers only with -stargz; a name stands for its group too: lazy for lazy-read and so on. It
needs root, and the programs of "make build tools".

`)
	for _, m := range measurements {
		fmt.Fprintf(w, "  %-12s %s\n", m.name, m.what)
	}
	fmt.Fprintln(w)
	flag.PrintDefaults()
}

// bench is one run of everything.
type bench struct {
	t       node.TB
	given   scope // by flags; zero: the default
	scope         // of the current measurement
	objects int
	node    *node.Node
	one     model // see model
	report

	stargz, stargzSocket string // the program, and its socket
	ollama               string // the program

	scheduler *scheduler // of Dragonfly; see network

	base  string   // see Options.Bin, of the node that guard compares with
	worse []string // what guard has found
}

// A measurement adds rows and tables.
type measurement struct {
	name, what string
	run        func(*bench)
}

// A scope is how much a measurement measures.
type scope struct {
	rounds int   // how often
	size   int64 // of the model
}

// The default scopes: large for what the README of ballast shows and for what is apart, usual for the rest, so that
// all of it takes about an hour.
var (
	large = scope{5, 2 << 30}
	usual = scope{3, 512 << 20}
)

// headline are the measurements with figures that the README of ballast shows.
var headline = []string{"pull", "read", "lazy-start"}

// peersName is the measurement that needs other programs.
const peersName = "peers"

// apart are the measurements that are made only by their names.
var apart = []string{"big", "fleet-pulls", "fleet-faults", "fleet-mirrors", "guard", "public"}

var measurements = []measurement{
	{"pull", "a pull to resident and verified, beside its limit and stock containerd", (*bench).pull},
	{"read", "a model that is there, beside a native file", (*bench).read},
	{"lazy-start", "from a pull to the first byte", (*bench).lazyStart},
	{"conversion", "the first and the second answer of the facade for a tag", (*bench).conversions},
	{"disk-waits", "loaders of a complete model on a disk that takes a time for each request", (*bench).diskWaits},
	{"tensors", "a model with a layer for each of 1,209 tensors", (*bench).tensors},
	{"small", "a model of 1,209 small files", (*bench).small},
	{"small-files", "a model of 10,000 small files in one layer", (*bench).manyFiles},
	{"carton", "a carton, beside a raw blob", (*bench).carton},
	{"convert", "ballast convert", (*bench).convert},
	{"memory", "the daemon's memory over a pull", (*bench).memory},
	{"lazy-read", "one reader of what is not there, beside a program that does the same work", (*bench).lazyRead},
	{"lazy-done", "what was mounted before it was complete", (*bench).lazyDone},
	{"lazy-random", "small reads, there and not there", (*bench).lazyRandom},
	{"lazy-shared", "a fine-tuned model whose base is there", (*bench).lazyShared},
	{"public", "an unconverted model, by a table of hash states and without", (*bench).public},
	{"lazy-memory", "the daemon's memory with 64 readers", (*bench).lazyMemory},
	{"loaded", "from a pull until a loader has read all, lazily and after the pull", (*bench).loaded},
	{"order", "a loader with an order of its own, with and without a record of it", (*bench).ordered},
	{"ledger", "CPU-seconds for each GiB by what they are for", (*bench).ledger},
	{"ordinary", "images that are no models, beside overlayfs", (*bench).ordinaryImages},
	{"volumes", "pods and mounts of complete models", (*bench).volumes},
	{"fleet-pulls", "1, 3, 8 and 16 nodes at once through Dragonfly (about 40 minutes a round)", (*bench).fleetPulls},
	{"fleet-faults", "3 nodes at once, while Dragonfly does wrong", (*bench).fleetFaults},
	{"fleet-mirrors", "a node whose mirror does wrong", (*bench).fleetMirrors},
	{"guard", "another commit beside the working tree, in pairs; fails if a cost has grown (make bench-guard)", (*bench).guard},
	{"big", "a model of 20 times -size in eight files, beside one of 1 GiB, and a kill in the middle", (*bench).big},
	{peersName, "other snapshotters and clients with the same bytes (make bench-peers)", (*bench).peers},
	{"scale", "a node of many objects, snapshots and layers", (*bench).scale}, // last, because its files stay
}

// called reports whether name is that of the measurement or of its group.
func (m measurement) called(name string) bool {
	return name == m.name || strings.HasPrefix(m.name, name+"-")
}

// known returns an error if no measurement has the name.
func known(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(measurements, func(m measurement) bool { return m.called(name) }) {
			return fmt.Errorf("there is no measurement %q; see bench -h", name)
		}
	}
	return nil
}

// options returns the options of the node. Other snapshotters run only if they are measured.
func (b *bench) options(peers bool) node.Options {
	o := node.Options{Config: nodeConfig}
	if !peers {
		return o
	}
	if b.stargz == "" {
		b.t.Fatalf("peers: -stargz is not given; run `make bench-peers`")
	}
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.t.Cleanup(func() { os.RemoveAll(dir) })
	b.stargzSocket = filepath.Join(dir, "sock")
	o.Containerd = withPeers(b.stargzSocket)
	return o
}

func (b *bench) run(names []string) {
	wanted := func(m measurement) bool {
		return slices.ContainsFunc(names, m.called) || len(names) == 0 && !slices.Contains(apart, m.name) && (m.name != peersName || b.stargz != "")
	}
	b.node = node.StartNode(b.t, b.options(slices.ContainsFunc(measurements, func(m measurement) bool { return m.name == peersName && wanted(m) })))
	b.makeAll(slices.DeleteFunc(slices.Clone(measurements), func(m measurement) bool { return !wanted(m) }))
}

// makeAll makes measurements.
func (b *bench) makeAll(all []measurement) {
	b.begins(all)
	for _, m := range all {
		fmt.Fprintf(os.Stderr, "bench: %s: %s\n", m.name, m.what)
		start := time.Now()
		b.scope = b.scopeOf(m.name)
		m.run(b)
		b.ends(m)
		fmt.Fprintf(os.Stderr, "bench: %s took %v\n", m.name, time.Since(start).Round(time.Second))
	}
}

// scopeOf returns how much a measurement measures.
func (b *bench) scopeOf(name string) scope {
	s := usual
	if slices.Contains(headline, name) || slices.Contains(apart, name) {
		s = large
	}
	return scope{cmp.Or(b.given.rounds, s.rounds), cmp.Or(b.given.size, s.size)}
}

// model returns a model of one file that all measurements share; each removes it after use.
func (b *bench) model() model {
	if b.one.size != b.size {
		fmt.Fprintln(os.Stderr, "bench: preparing a model of", sizeOf(b.size))
		b.one = b.pushModel("bench/model", b.size, 1)
	}
	return b.one
}

// pull measures a pull until the model is resident and verified, and the bytes written.
func (b *bench) pull() {
	m := b.model()
	var limit, ballast, stock, unsynced, multipart, cpu, limitCPU series
	var written float64
	tarDigest := b.pushTar("bench/tar", m)
	modelRef := b.node.Registry.Ref("bench/model", "v1")
	parts := b.multipart()
	for range b.rounds {
		took := b.limit(m)
		limit.add(took.wall)
		limitCPU.add(took.cpu)

		before, busy := b.written(), b.cpu(b.node)
		ballast.add(b.pullOnce(modelRef, m.size, m.digest))
		cpu.add(b.cpu(b.node) - busy)
		written = float64(b.written()-before) / float64(m.size)
		b.forget(modelRef)

		pulled, synced := b.stockPull(b.node, m, tarDigest)
		unsynced.add(pulled)
		stock.add(synced)
		_, synced = b.stockPull(parts, m, tarDigest)
		multipart.add(synced)
	}
	parts.Containerd.Stop(b.t)
	b.times("pull to resident and verified", ballast, "limit", limit, atMost(1.25, ""))
	b.compare("the same, CPU", cpu, "limit", limitCPU, perGiB(m.size), target{})
	b.times("the same, beside stock containerd", ballast, "stock", stock, atMost(0.67, ""))
	b.times("the same, beside stock containerd that fetches parts of a layer in parallel", ballast, "stock", multipart, target{})
	b.times("the same, beside stock containerd that syncs nothing", ballast, "stock", unsynced, target{})
	b.figure("bytes written for each byte of the model", written, "%.3f", "", atMost(1.02, ""))
	b.pullStates()
}

// stockPull measures a pull of bench/tar by containerd alone: until it is unpacked, and until all of it is on the disk.
func (b *bench) stockPull(n *node.Node, m model, blob digest.Digest) (pulled, synced time.Duration) {
	ref := b.node.Registry.Ref("bench/tar", "v1")
	b.settle(m.size, blob)
	start := time.Now()
	b.must(n.Pull("overlayfs", ref))
	pulled = time.Since(start)
	flush(n.Dir)
	synced = time.Since(start)
	b.must(n.Ctr("images", "rm", "--sync", ref))
	return pulled, synced
}

// multipart starts a node with a containerd that fetches 8 parts of a layer at a time, as ballast does.
func (b *bench) multipart() *node.Node {
	return node.StartNode(b.t, node.Options{Stock: true, Registry: b.node.Registry, Containerd: fmt.Sprintf(
		"[plugins.\"io.containerd.transfer.v1.local\"]\nmax_concurrent_downloads = 8\nconcurrent_layer_fetch_buffer = %d\n", 4<<20)})
}

// pullStates measures a pull of a larger model whose image has digests and states of chunks.
func (b *bench) pullStates() {
	m := b.pushModel("bench/states", 2*b.size, 3)
	ref := b.prepareComplete("states", m)
	var ballast, limit, cpu, limitCPU series
	for range b.rounds {
		took := b.limit(m)
		limit.add(took.wall)
		limitCPU.add(took.cpu)
		before := b.cpu(b.node)
		ballast.add(b.pullOnce(ref, m.size, m.digest))
		cpu.add(b.cpu(b.node) - before)
		b.forget(ref)
	}
	what := "pull of " + sizeOf(m.size) + " with states"
	b.times(what, ballast, "limit", limit, atMost(0.80, ""))
	b.compare("the same, CPU", cpu, "limit", limitCPU, perGiB(m.size), target{})
}

// limit measures the plain transfer.
func (b *bench) limit(m model) cost {
	b.settle(m.size, m.digest)
	took, _ := b.taskSays("limit", b.node.Registry.BlobURL(m.repository, m.digest), fmt.Sprint(m.size), b.node.Dir)
	return took
}

// pullOnce measures a pull of a model that is not on the node, with blobs of size in total.
func (b *bench) pullOnce(ref string, size int64, blobs ...digest.Digest) time.Duration {
	b.settle(size, blobs...)
	start := time.Now()
	b.must(b.node.Pull("ballast", ref))
	return time.Since(start)
}

// forget removes a model from the node.
func (b *bench) forget(ref string) {
	b.must(b.node.Ctr("images", "rm", "--sync", ref))
	b.must(b.node.Ballast("gc", "--yes"))
}

// read measures reads of the mounted file compared with a native copy.
func (b *bench) read() {
	m := b.model()
	ref := b.node.Registry.Ref("bench/model", "v1")
	b.must(b.node.Pull("ballast", ref))
	dir, unmount := b.mount("ballast", ref)
	mounted := filepath.Join(dir, modelFile)
	native := b.nativeCopy(mounted)
	for _, how := range []struct{ loader, what string }{{"read", "sequential read"}, {"mmap", "mmap read"}} {
		for _, temperature := range []string{"cold", "warm"} {
			var ours, control series
			for range b.rounds {
				ours.add(b.loadAt(temperature, how.loader, mounted, m.size).wall)
				control.add(b.loadAt(temperature, how.loader, native, m.size).wall)
			}
			b.rates(how.what+", "+temperature, m.size, ours, "native", control, atLeast(0.97, ""))
		}
	}
	unmount()
	b.forget(ref)
	os.Remove(native)
}

// nativeCopy copies a file to a directory outside of ballast.
func (b *bench) nativeCopy(file string) string {
	native := filepath.Join(b.node.Dir, "native")
	b.task("copy", file, native)
	return native
}

// loadAt reads a file that is in the page cache, if warm, or not.
func (b *bench) loadAt(temperature, loader, file string, size int64) cost {
	drop()
	b.touch(size + 2<<30)
	if temperature == "warm" {
		b.task("load", loader, file)
	}
	c, _ := b.taskSays("load", loader, file)
	return c
}

// conversions measures the facade's share of its first response for a tag, and of the second.
func (b *bench) conversions() {
	for i, layers := range []int{8, 256} {
		var first, again series
		for run := range 5 {
			f, a := b.conversion(layers, 10*i+run)
			first.add(f)
			again.add(a)
		}
		b.figure(fmt.Sprintf("conversion of a tag, %d layers, less upstream", layers), first.median().Seconds()*1000, "%.1f ms", "", atMost(50, " ms"))
		b.figure("the same tag again, less upstream", again.median().Seconds()*1000, "%.1f ms", "", atMost(5, " ms"))
	}
}

// memory measures the peak resident size of a new daemon during a pull.
func (b *bench) memory() {
	for i, size := range []int64{512 << 20, 4 << 30} {
		name := fmt.Sprintf("bench/memory%d", i)
		b.pushModel(name, size, uint64(10+i))
		b.node.Ballastd.Stop(b.t)
		b.node.StartBallastd(b.t)
		ref := b.node.Registry.Ref(name, "v1")
		b.must(b.node.Pull("ballast", ref))
		b.figure("daemon memory, peak, "+sizeOf(size)+" model", float64(b.peak())/(1<<20), "%.0f MiB", "", atMost(100, " MiB"))
		b.forget(ref)
	}
}
