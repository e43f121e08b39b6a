package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/ballast-dev/ballast/store"
	"github.com/ballast-dev/ballast/store/storetest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// scales are the numbers of objects.
var scales = []int{10_000, 100_000, 1_000_000}

// scale measures the costs on a node that has been in use for long: nothing but the start may grow with
// the number of objects.
func (b *bench) scale() {
	b.nodes()
	b.manySnapshots()
	b.manyLayers()
}

// nodes adds a table with a column for each size of a node.
func (b *bench) nodes() {
	t := table{"A node of many objects, all of them needed by tables of a thousand", [][]string{{"what"}}}
	at := map[string]int{}
	add := func(what, value string) {
		if at[what] == 0 {
			at[what] = len(t.rows)
			t.rows = append(t.rows, append([]string{what}, make([]string, len(t.rows[0])-2)...))
		}
		t.rows[at[what]] = append(t.rows[at[what]], value)
	}
	l := b.pushLazy("scale", 64<<20, 300)
	column := func(objects int) {
		t.rows[0] = append(t.rows[0], fmt.Sprintf("%d objects", objects))
		var s series
		for range b.rounds {
			s.add(b.early(l, 0))
		}
		add("pull to first byte, "+sizeOf(l.size), s.spread(millis))
	}
	column(0)
	made := 0
	for _, n := range scales {
		if n > b.objects {
			break
		}
		fmt.Fprintln(os.Stderr, "bench: preparing a node of", n, "objects")
		b.node.Ballastd.Stop(b.t)
		tables := strconv.Itoa(n / storetest.PerTable)
		b.task("grow", b.node.Root(), strconv.Itoa(made/storetest.PerTable), tables)
		made = n
		start := func() time.Duration { return timed(func() { b.node.StartBallastd(b.t) }) }
		ready := start()
		b.node.Ballastd.Kill()
		killed, memory := start(), b.peak()
		b.node.Ballastd.Stop(b.t)
		_, out := b.taskSays("store", b.node.Root(), tables)
		start()
		column(n)
		for line := range strings.Lines(out) {
			what, value, _ := strings.Cut(strings.TrimSpace(line), "\t")
			add("store: "+what, value)
		}
		add("ballastd: start until containerd reaches it", seconds(ready))
		add("ballastd: the same after a kill", seconds(killed))
		add("ballastd: memory, peak of the start", sizeOf(memory))
		add("ballastd: memory, peak of the pulls", sizeOf(b.peak()))
	}
	b.addTable(t)
}

// growStore is the task that fills a store.
func growStore(dir, first, last string) error {
	from, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	to, err := strconv.Atoi(last)
	if err != nil {
		return err
	}
	return storetest.Grow(dir, from, to)
}

// measureStore is the task that measures a store with the given number of tables. It prints a line with
// name and value for each measurement.
func measureStore(dir, tables string) error {
	n, err := strconv.Atoi(tables)
	if err != nil {
		return err
	}
	say := func(what, value string) { fmt.Printf("%s\t%s\n", what, value) }
	var s *store.Store
	open := func() {
		if err == nil {
			s, err = store.Open(dir, store.Options{})
		}
	}
	memory := heap()
	measure := func(how string) {
		if s != nil {
			err = errors.Join(err, s.Close())
			s = nil
			heap()
		}
		cpu := ownCPU()
		took := timed(open)
		say("open, "+how, seconds(took))
		say("open, "+how+", CPU", seconds(ownCPU()-cpu))
	}
	drop()
	measure("cold")
	measure("warm")
	if err != nil {
		return err
	}
	say("memory", fmt.Sprintf("%d MiB", (heap()-memory)>>20))
	return errors.Join(measureRequests(s, n, say), s.Close())
}

// heap returns the heap in use, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// measureRequests measures what each request costs.
func measureRequests(s *store.Store, tables int, say func(what, value string)) (err error) {
	const times, many = 100, 1000
	ctx := context.Background()
	name := func(i int) string { return fmt.Sprintf("pin/bench-%d", i) }
	median := func(times int, do func(i int) error) string {
		var all series
		for i := range times {
			all.add(timed(func() { err = errors.Join(err, do(i)) }))
		}
		return all.median().Round(100 * time.Nanosecond).String()
	}
	add := func(i int) error {
		return s.AddRef(name(i), storetest.GrownTable(i%tables), time.Time{})
	}
	collect := func(int) error {
		_, err := s.GC(ctx, store.GCOptions{})
		return err
	}
	err = collect(0) // collects the garbage of the previous one
	say("AddRef", median(times, add))
	say("RemoveRef", median(times, func(i int) error { return s.RemoveRef(name(i)) }))
	say("Usage", median(times, func(int) error { _, err := s.Usage(); return err }))
	say("collection with nothing to collect", median(5, collect))
	var names []string
	for i := range many {
		err = errors.Join(err, add(i))
		names = append(names, name(i))
	}
	say(fmt.Sprintf("RemoveRef of %d", many), median(1, func(int) error { return s.RemoveRef(names...) }))
	return err
}

// manySnapshots measures views of a model on a node with many snapshots.
func (b *bench) manySnapshots() {
	const snapshots, timesEach = 1000, 100
	l, page := b.pushLazy("snapshots", 64<<10, 302), b.node.Registry.Ref("bench/page-scale", "v1")
	b.pushTar("bench/page-scale", model{size: 4 << 10, seed: 301})
	var ours, stock series
	for _, s := range []struct {
		snapshotter, ref string
		snapshots        int
		to               *series
	}{{"ballast", l.ref, snapshots, &ours}, {"overlayfs", page, timesEach, &stock}} {
		b.must(b.node.Pull(s.snapshotter, s.ref))
		parent := b.committed(s.snapshotter)
		for i := range s.snapshots {
			s.to.add(timed(func() {
				b.must(b.node.Ctr("snapshots", "--snapshotter", s.snapshotter, "view", fmt.Sprintf("bench-%d", i), parent))
			}))
		}
	}
	p99 := func(s series) series { return series{s[len(s)-timesEach:].percentile(99)} }
	b.compare(fmt.Sprintf("view beside %d others, with a process of ctr, p99", snapshots-timesEach), p99(ours), "overlayfs", p99(stock), millis, target{})
}

// committed returns the name of a committed snapshot.
func (b *bench) committed(snapshotter string) string {
	list := b.node.Ctr("snapshots", "--snapshotter", snapshotter, "ls")
	b.must(list)
	for line := range strings.Lines(list.Output()) {
		if f := strings.Fields(line); len(f) > 1 && f[len(f)-1] == "Committed" {
			return f[0]
		}
	}
	b.t.Fatalf("%s has no committed snapshot:\n%s", snapshotter, list.Output())
	return ""
}

// manyLayers measures the conversion of a model with very many layers.
func (b *bench) manyLayers() {
	const layers = 5000
	took, _ := b.conversion(layers, 0) // once, because pushing the layers takes most of the time
	b.figure(fmt.Sprintf("conversion of a tag, %d layers, less upstream", layers), took.Seconds()*1000, "%.0f ms", "", atMost(500, " ms"))
}

// writeSmall writes a tar of different files of 4 KiB.
func writeSmall(w io.Writer, files int, seed uint64) error {
	tw := tar.NewWriter(w)
	for i := range files {
		m := model{size: 4 << 10, seed: seed<<32 + uint64(i)}
		h := &tar.Header{Name: fmt.Sprintf("data/%05d.bin", i), Mode: 0o644, Size: m.size, Typeflag: tar.TypeReg, ModTime: time.Unix(1_700_000_000, 0)}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, m.bytes()); err != nil {
			return err
		}
	}
	return tw.Close()
}

// manyFiles measures the pull of a model of very many files, another one in each round as with pushRaws.
func (b *bench) manyFiles() {
	const files = 10_000
	var s series
	var refs []string
	for i := range b.rounds {
		stream := func() io.Reader {
			r, w := io.Pipe()
			go func() { w.CloseWithError(writeSmall(w, files, uint64(1000+i))) }()
			return r
		}
		d, n, err := hashOf(stream())
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		repository := fmt.Sprintf("bench/files%d", i)
		b.node.Registry.PushBlob(b.t, repository, d, n, stream())
		b.pushModelPack(repository, "v1", []ocispec.Descriptor{{MediaType: modelPack + "weight.v1.tar", Digest: d, Size: n}}, nil)
		refs = append(refs, b.node.Registry.Ref(repository, "v1"))
		s.add(b.pullOnce(refs[i], n, d))
	}
	for _, ref := range refs {
		b.forget(ref)
	}
	b.figure(fmt.Sprintf("pull of %d files of 4 KiB in one layer", files), s.median().Seconds(), "%.2f s", "", atMost(2.5, " s"))
}
