package main

import (
	"fmt"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
)

// tablesRepository has the tables of hash states.
const tablesRepository = "bench/tables"

// public measures a model as its publisher made it, with one digest for its file: the first byte and the whole, by a
// table of hash states and without one.
func (b *bench) public() {
	m := b.model()
	l := lazyModel{m, b.node.Registry.Ref(m.repository, "v1"), b.node.Registry.BlobURL(m.repository, m.digest)}
	b.pushTar("bench/public-page", b.pushModel("bench/public-small", 16<<10, 210))
	page := b.node.Registry.Ref("bench/public-page", "v1")
	private, public := converttest.KeyPair(b.t, b.node.Dir, "tables")
	trusting := fmt.Sprintf("[lazy]\ntables = %q\ntable_keys = [%q]\n", b.node.Registry.Host+"/"+tablesRepository, public)
	b.configure(trusting)
	defer b.configure("")
	b.must(b.node.Pull("ballast", l.ref))
	b.must(b.node.Ballast("tables", "push", l.ref, "--sign", private))
	b.forget(l.ref)

	var with, without, control, loaded, afterwards series
	for range b.rounds {
		b.settle(m.size, m.digest)
		b.link(farRate, farLink)
		b.ordinary(page) // loads the programs into memory
		control.add(b.ordinary(page))
		with.add(b.early(l, m.size/2))
		b.settle(m.size, m.digest)
		loaded.add(b.loadedFrom(l))
		b.link(0, 0)

		b.configure("")
		b.settle(m.size, m.digest)
		b.link(farRate, farLink)
		without.add(b.early(l, m.size/2))
		b.settle(m.size, m.digest)
		afterwards.add(b.loadedFrom(l))
		b.link(0, 0)
		b.configure(trusting)
	}
	link := series{time.Duration(float64(m.size) / farRate * 1e9)}
	where := fmt.Sprintf("%s, %s/s, %v", sizeOf(m.size), sizeOf(farRate), farLink)
	b.figure("public: pull to a page in the middle, by a table, "+where, with.median().Seconds()*1000, "%.0f ms",
		"an image of a page "+control.spread(millis), atMost(150, " ms"))
	b.compare("the same", with, "without a table", without, millis, target{})
	b.compare("public: pull to loaded, by a table, "+where, loaded, "the link", link, seconds, atMost(1.03, ""))
	b.compare("the same", loaded, "without a table", afterwards, seconds, target{})
}

// loadedFrom measures the time from the start of a pull until a loader has read the model, which it removes.
func (b *bench) loadedFrom(l lazyModel) time.Duration {
	start := time.Now()
	c := b.readCold(l)
	took := time.Since(start)
	b.awaitComplete(l.digest)
	b.leave(l, c)
	return took
}
