package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// loaded measures from the start of a pull until a loader has read all of a model: lazily, and when it
// is complete; and the loader alone with a native file that is not in memory.
func (b *bench) loaded() {
	fmt.Fprintln(os.Stderr, "bench: preparing a model of", sizeOf(b.size), "with tensors")
	m := b.pushSafetensors("bench/loaded", b.size, 600, false)
	ways := map[string]string{"lazy": b.convertTo("lazy/loaded", m), "complete": b.prepareComplete("loaded", m)}
	b.must(b.node.Pull("ballast", ways["complete"]))
	dir, unmount := b.mount("ballast", ways["complete"])
	native := b.nativeCopy(filepath.Join(dir, modelFile))
	unmount()
	b.forget(ways["complete"])
	readers := table{"CPU-seconds of the loader alone, and the loader with a native file that is not in memory:",
		[][]string{{"loader, link", "lazy", "pull, then read", "native", "native, time", "lazy / native, time"}}}
	for _, link := range links {
		for _, l := range loaders {
			var lazy, complete, alone, lazyCPU, completeCPU, aloneCPU series
			for i := range b.rounds {
				pair := []func(){
					func() { b.load1(m, ways["lazy"], link, l, &lazy, &lazyCPU) },
					func() { b.load1(m, ways["complete"], link, l, &complete, &completeCPU) },
				}
				if i%2 == 1 {
					slices.Reverse(pair)
				}
				for _, f := range pair {
					f()
				}
				c := b.loadAt("cold", l.name, native, m.size)
				alone.add(c.wall)
				aloneCPU.add(c.cpu)
			}
			t := atMost(1.05, "")
			if link.rate > 0 {
				t = atMost(0.9, "")
			}
			b.times("loaded: "+l.what+", "+link.what, lazy, "pull, then read", complete, t)
			_, beside := ratio(lazy, alone)
			readers.rows = append(readers.rows, []string{l.what + ", " + link.what, lazyCPU.spread(seconds), completeCPU.spread(seconds),
				aloneCPU.spread(seconds), alone.spread(seconds), beside})
		}
	}
	b.addTable(readers)
	os.Remove(native)
}

// load1 pulls a model over a link, reads it with a loader, and adds the time and the CPU-seconds of the
// loader.
func (b *bench) load1(m model, ref string, link wire, l loader, took, cpu *series) {
	b.settle(m.size, m.digest)
	link.set(b)
	start := time.Now()
	b.must(b.node.Pull("ballast", ref))
	dir, unmount := b.mount("ballast", ref)
	c, _ := b.taskSays("load", l.name, filepath.Join(dir, modelFile))
	took.add(time.Since(start))
	cpu.add(c.cpu)
	b.awaitComplete(m.digest)
	b.link(0, 0)
	unmount()
	b.forget(ref)
}
