package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
	"github.com/opencontainers/go-digest"
)

func main() {
	rounds := flag.Int("rounds", 3, "runs of each")
	size := flag.Int64("size", 2<<30, "bytes of the model")
	dir := flag.String("dir", "", "directory on the disk to measure; default a temporary one")
	objects := flag.Int("objects", 1_000_000, "objects of the largest node of the measurement scale")
	stargz := flag.String("stargz", "", "the program of the directory stargz, for the measurement peers")
	task := flag.String("task", "", "run one task as a process of its own (internal)")
	flag.Parse()
	if *task != "" {
		if err := runTask(*task, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if *dir != "" {
		os.Setenv("TMPDIR", *dir)
	}
	if err := ownNetwork(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(node.Main(func() int {
		return node.Run(func(t node.TB) {
			b := &bench{t: t, rounds: *rounds, size: *size, objects: *objects, load: load(), stargz: *stargz}
			b.run(flag.Args())
		})
	}))
}

// bench is one run of everything.
type bench struct {
	t       node.TB
	rounds  int
	size    int64
	objects int
	node    *node.Node
	rows    []row
	load    string // of the machine, at the start

	stargz, stargzSocket string // the program, and where it answers
}

// A measurement adds rows.
type measurement struct {
	name string
	run  func()
}

// called says whether name is that of the measurement, or of the group that it belongs to.
func (m measurement) called(name string) bool {
	return name == m.name || strings.HasPrefix(m.name, name+"-")
}

// A row is a line of the table.
type row struct{ what, value, control, ratio, target string }

// options returns what the node is to be like. Other snapshotters are there only if they are asked for.
func (b *bench) options(names []string) node.Options {
	if !slices.Contains(names, "peers") {
		return node.Options{}
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
	return withPeers(b.stargzSocket)
}

func (b *bench) run(names []string) {
	b.node = node.StartNode(b.t, b.options(names))
	fmt.Fprintln(os.Stderr, "bench: preparing models of", sizeOf(b.size))
	m := b.pushModel("bench/model", b.size, 1)
	all := []measurement{
		{"pull", func() { b.pull(m) }},
		{"read", func() { b.read(m) }},
		{"conversion", b.conversions},
		{"tensors", b.tensors},
		{"carton", b.carton},
		{"convert", func() { b.convert(m) }},
		{"memory", b.memory},
		{"lazy-start", func() { b.lazyStart(m) }},
		{"lazy-read", func() { b.lazyRead(m) }},
		{"lazy-done", func() { b.lazyDone(m) }},
		{"lazy-random", func() { b.lazyRandom(m) }},
		{"lazy-shared", b.lazyShared},
		{"lazy-memory", b.lazyMemory},
		{"ordinary", b.ordinaryImages},
		{"volumes", b.volumes},
		{"peers", b.peers},
		{"scale", b.scale}, // last: what it makes stays
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(x measurement) bool { return x.called(name) }) {
			b.t.Fatalf("there is no measurement %q", name)
		}
	}
	for _, x := range all {
		if len(names) == 0 && x.name != "peers" || slices.ContainsFunc(names, x.called) {
			x.run()
		}
	}
	b.print()
}

// pull measures a pull to fully resident and verified, and what it writes.
func (b *bench) pull(m model) {
	var limit, ballast, stock series
	var written float64
	tarDigest := b.pushTar("bench/tar", m)
	modelRef := b.node.Registry.Ref("bench/model", "v1")
	tarRef := b.node.Registry.Ref("bench/tar", "v1")
	for range b.rounds {
		b.settle(m.size, m.digest)
		limit.add(b.task("limit", "http://"+b.node.Registry.Host+"/v2/bench/model/blobs/"+m.digest.String(), fmt.Sprint(m.size), b.node.Dir))

		before := b.written()
		ballast.add(b.pullOnce(modelRef, m.size, m.digest))
		written = float64(b.written()-before) / float64(m.size)
		b.forget(modelRef)

		b.settle(m.size, tarDigest)
		start := time.Now()
		b.must(b.node.Pull("overlayfs", tarRef))
		sync(b.node.Dir)
		stock.add(time.Since(start))
		b.must(b.node.Ctr("images", "rm", "--sync", tarRef))
	}
	b.add("pull to resident and verified", ballast, "limit", limit, "≤ 1.25")
	b.rows = append(b.rows, row{"the same", seconds(ballast.median()), "stock " + seconds(stock.median()),
		fmt.Sprintf("%.2f × faster", stock.median().Seconds()/ballast.median().Seconds()), "≥ 1.5 ×"})
	b.rows = append(b.rows, row{"bytes written per model byte", fmt.Sprintf("%.3f", written), "", "", "≤ 1.02"})
}

// pullOnce measures a pull of a model that the node does not have, whose blobs are of size together.
func (b *bench) pullOnce(ref string, size int64, blobs ...digest.Digest) time.Duration {
	b.settle(size, blobs...)
	start := time.Now()
	b.must(b.node.Pull("ballast", ref))
	return time.Since(start)
}

// forget removes a model from the node.
func (b *bench) forget(ref string) {
	b.must(b.node.Ctr("images", "rm", "--sync", ref))
	b.must(b.node.Ballast("gc"))
}

// read measures the mounted file beside a native copy.
func (b *bench) read(m model) {
	ref := b.node.Registry.Ref("bench/model", "v1")
	b.must(b.node.Pull("ballast", ref))
	mnt := filepath.Join(b.node.Dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		b.t.Fatalf("%v", err)
	}
	b.must(b.node.Ctr("images", "mount", "--snapshotter", "ballast", ref, mnt))
	mounted := filepath.Join(mnt, modelFile)
	native := filepath.Join(b.node.Dir, "native")
	b.task("copy", mounted, native)
	for _, how := range []string{"read", "mmap"} {
		for _, temperature := range []string{"cold", "warm"} {
			var a, c series
			for range b.rounds {
				for _, f := range []struct {
					path string
					to   *series
				}{{mounted, &a}, {native, &c}} {
					touch(b, m.size+2<<30)
					drop()
					if temperature == "warm" {
						b.task(how, f.path)
					}
					f.to.add(b.task(how, f.path))
				}
			}
			what := map[string]string{"read": "sequential read", "mmap": "mmap read"}[how] + ", " + temperature
			b.rows = append(b.rows, row{what, rate(m.size, a.median()), "native " + rate(m.size, c.median()),
				fmt.Sprintf("%.2f", c.median().Seconds()/a.median().Seconds()), "≥ 0.97"})
		}
	}
	b.must(b.node.Ctr("images", "unmount", "--snapshotter", "ballast", "--rm", mnt))
	b.forget(ref)
	os.Remove(native)
}

// conversions measures the facade's own part of the first answer for a tag.
func (b *bench) conversions() {
	var s series
	for i := range 5 {
		s.add(b.conversion(256, i))
	}
	b.rows = append(b.rows, row{"conversion of a tag, 256 layers, less upstream", s.median().Round(100 * time.Microsecond).String(), "", "", "< 50ms"})
}

// memory measures the largest resident size of a fresh daemon over a pull.
func (b *bench) memory() {
	for i, size := range []int64{512 << 20, 4 << 30} {
		name := fmt.Sprintf("bench/memory%d", i)
		b.pushModel(name, size, uint64(10+i))
		b.node.Ballastd.Stop(b.t)
		b.node.StartBallastd(b.t)
		ref := b.node.Registry.Ref(name, "v1")
		b.must(b.node.Pull("ballast", ref))
		b.rows = append(b.rows, row{"daemon memory, peak, " + sizeOf(size) + " model", fmt.Sprintf("%d MiB", b.peak()>>20), "", "", "< 150 MiB"})
		b.forget(ref)
	}
}
