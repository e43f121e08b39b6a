package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	"github.com/ballast-dev/ballast/test/e2e/node"
)

// A work is something that both versions do, one after the other, in pairs of runs.
type work struct {
	name    string
	costs   []comparison
	missing string // why it cannot be compared

	// run does it on the node of a version and returns the costs in their order.
	run func(b *bench) []time.Duration
}

// guard compares the ballast of another commit with that of the working tree, each on a node of its own with the same
// registry. One of the nodes is idle while the other one works.
func (b *bench) guard() {
	if b.base == "" {
		b.t.Fatalf("guard: -base is not given; run `make bench-guard`")
	}
	o := b.options(false)
	o.Registry, o.Bin = b.node.Registry, b.base
	base := &bench{t: b.t, scope: b.scope, node: node.StartNode(b.t, o)}
	t := table{fmt.Sprintf("The working tree (head) beside %.12s (base), at most %d pairs; a ratio above 1 is worse:", filepath.Base(b.base), b.rounds),
		[][]string{comparisonHeading}}
	// One after the other, because the last one fills the stores.
	for _, prepare := range []func(base, head *bench) work{guardPull, guardSmall, guardFirstByte, guardLazyRead, guardStart} {
		w := prepare(base, b)
		if w.missing != "" {
			t.rows = append(t.rows, []string{w.name, "not measured: " + w.missing, "", "", "", "", ""})
			continue
		}
		b.comparePairs(base, &w)
		for _, c := range w.costs {
			t.rows = append(t.rows, c.row())
			if c.verdict() == worse {
				b.worse = append(b.worse, c.what)
			}
		}
	}
	b.addTable(t)
}

// comparePairs runs pairs until all verdicts are clear, but at most one for each round.
func (b *bench) comparePairs(base *bench, w *work) {
	for i := range b.rounds {
		var costs [2][]time.Duration // of base and head
		order := []int{0, 1}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			costs[side] = w.run([]*bench{base, b}[side])
		}
		left := 0
		for j := range w.costs {
			c := &w.costs[j]
			c.add(costs[0][j], costs[1][j])
			if c.verdict() == unclear {
				left++
			}
		}
		fmt.Fprintf(os.Stderr, "bench: %s: pair %d, %d of %d are unclear\n", w.name, i+1, left, len(w.costs))
		if left == 0 {
			return
		}
	}
}

// guardCPU is a comparison of CPU-seconds, which the kernel counts in ticks.
func guardCPU(what string) comparison { return comparison{what: what, print: seconds, unit: node.Tick} }

// guardTime is a comparison of times.
func guardTime(what string) comparison {
	return comparison{what: what, print: millis, unit: time.Millisecond}
}

// guardPull pulls a model until it is complete, and reads it from the disk. The reads are of the files that were just
// pulled, because where a file is on the disk can decide how fast it is.
func guardPull(base, head *bench) work {
	m := head.model()
	ref := head.node.Registry.Ref(m.repository, "v1")
	memory := func(n time.Duration) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }
	return work{name: "pull", costs: []comparison{
		guardTime("pull of " + sizeOf(m.size)), guardCPU("the same, CPU of ballastd"),
		{what: "the same, memory of ballastd, peak", print: memory, unit: 1 << 20},
		guardTime("read of the complete model, cold"), guardCPU("the same, CPU of the reader"),
	}, run: func(b *bench) []time.Duration {
		b.resetPeak()
		var pull time.Duration
		cpu := b.daemonCPU(func() { pull = b.pullOnce(ref, m.size, m.digest) })
		peak := b.peak()
		dir, unmount := b.mount("ballast", ref)
		read := b.loadAt("cold", loaders[0].name, filepath.Join(dir, modelFile), m.size)
		unmount()
		b.forget(ref)
		return []time.Duration{pull, cpu, time.Duration(peak), read.wall, read.cpu}
	}}
}

// guardSmall pulls a model of many small files.
func guardSmall(base, head *bench) work {
	const each = 1 << 10
	models := head.pushRaws("small", tensorLayers*each, tensorLayers, 90)
	for _, m := range models {
		base.ask(m.repository, "v1") // its conversion is no part of a pull
	}
	pulls := map[*bench]int{}
	return work{name: "small", costs: []comparison{
		guardTime(fmt.Sprintf("pull of %d files of %s", tensorLayers, sizeOf(each))), guardCPU("the same, CPU of ballastd"),
	}, run: func(b *bench) []time.Duration {
		var pull time.Duration
		m := models[pulls[b]]
		pulls[b]++
		cpu := b.daemonCPU(func() { pull = b.pullOnce(m.ref, tensorLayers*each, m.blobs...) })
		return []time.Duration{pull, cpu}
	}}
}

// guardFirstByte pulls lazy models until a byte can be read, several times in each run, because it takes so little
// time.
func guardFirstByte(base, head *bench) work {
	const times = 5
	m := head.pushModel("bench/first", head.size/8, 201)
	lazy := lazyOf("first", m, base, head)
	return work{name: "first byte", costs: []comparison{guardTime("lazy: pull to first byte, " + sizeOf(m.size))}, run: func(b *bench) []time.Duration {
		b.settle(m.size, m.digest)
		var s series
		for range times {
			s.add(b.early(lazy[b], 0))
		}
		return []time.Duration{s.median()}
	}}
}

// guardLazyRead reads a model that is not there.
func guardLazyRead(base, head *bench) work {
	m := head.model()
	lazy := lazyOf("read", m, base, head)
	return work{name: "lazy read", costs: []comparison{
		guardTime("lazy: sequential read, cold"), guardCPU("the same, CPU of ballastd"),
	}, run: func(b *bench) []time.Duration {
		b.settle(m.size, m.digest)
		var c coldRead
		cpu := b.daemonCPU(func() { c = b.readCold(lazy[b]) })
		b.leave(lazy[b], c)
		return []time.Duration{c.read, cpu}
	}}
}

// guardObjects is the number of objects of the nodes whose start is compared.
const guardObjects = 100_000

// guardStart starts ballastd on a node of many objects, which takes the opening of the store.
func guardStart(base, head *bench) work {
	w := work{name: "start", costs: []comparison{
		guardTime(fmt.Sprintf("start of ballastd, %d objects", guardObjects)), guardCPU("the same, CPU"),
	}}
	if base.schema() != head.schema() {
		w.missing = "the stores have different schemas"
		return w
	}
	for _, b := range []*bench{base, head} {
		b.node.Ballastd.Stop(b.t)
	}
	const tables = guardObjects / storetest.PerTable
	if err := errors.Join(storetest.Grow(base.node.Root(), 0, tables), storetest.Grow(head.node.Root(), 0, tables)); err != nil {
		head.t.Fatalf("%v", err)
	}
	w.run = func(b *bench) []time.Duration {
		start := timed(func() { b.node.LaunchBallastd(b.t) })
		cpu := b.cpuOf(b.node.Ballastd.Pid(), false)
		b.node.Ballastd.Stop(b.t)
		return []time.Duration{start, cpu}
	}
	return w
}

// schema returns the version of the schema of a node's store.
func (b *bench) schema() string {
	v, err := store.Schema(b.node.Root())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	return v
}

// lazyOf converts a model for both versions, each with its own `ballast convert`.
func lazyOf(name string, m model, base, head *bench) map[*bench]lazyModel {
	return map[*bench]lazyModel{base: base.prepareLazy(name+"-base", m), head: head.prepareLazy(name+"-head", m)}
}

// resetPeak makes peak begin with the present size, see proc_pid_clear_refs(5).
func (b *bench) resetPeak() {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", b.node.Ballastd.Pid()), []byte("5"), 0); err != nil {
		b.t.Fatalf("%v", err)
	}
}
