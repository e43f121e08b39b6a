package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ballast-dev/ballast/convert/converttest"
	"github.com/opencontainers/go-digest"
)

// tablesRepository has the tables of hash states.
const tablesRepository = "bench/tables"

// public measures models as their publishers made them, with one digest for each file: a page, all headers, and the
// whole, by tables of hash states and without; and the whole as containerd pulls it, in a layer of an image.
func (b *bench) public() {
	m := b.model()
	tar := b.pushTar("bench/tar", m)
	shards := digestsOf(b.pushRawShards("bench/public-shards"))
	sharded := b.node.Registry.Ref("bench/public-shards", "v1")
	l := lazyModel{m, b.node.Registry.Ref(m.repository, "v1"), b.node.Registry.BlobURL(m.repository, m.digest)}
	b.pushTar("bench/public-page", b.pushModel("bench/public-small", 16<<10, 210))
	page := b.node.Registry.Ref("bench/public-page", "v1")
	private, public := converttest.KeyPair(b.t, b.node.Dir, "tables")
	trusting := fmt.Sprintf("[lazy]\ntables = %q\ntable_keys = [%q]\n", b.node.Registry.Host+"/"+tablesRepository, public)
	b.configure(trusting)
	defer b.configure("")
	for _, ref := range []string{l.ref, sharded} {
		b.must(b.node.Pull("ballast", ref))
		b.must(b.node.Ballast("tables", "push", ref, "--sign", private))
		b.forget(ref)
	}

	var with, without, control, headers, later, loaded, afterwards, stock series
	for range b.rounds {
		b.settle(m.size, m.digest)
		b.link(farRate, farLink)
		b.ordinary(page) // loads the programs into memory
		control.add(b.ordinary(page))
		with.add(b.early(l, m.size/2))
		b.settle(m.size, m.digest)
		loaded.add(b.loadedFrom(l))
		b.settle(b.size, shards...)
		headers.add(b.headers(sharded, shards))
		b.settle(m.size, tar)
		stock.add(b.loadedByStock(m))
		b.link(0, 0)

		b.configure("")
		b.settle(m.size, m.digest)
		b.link(farRate, farLink)
		without.add(b.early(l, m.size/2))
		b.settle(m.size, m.digest)
		afterwards.add(b.loadedFrom(l))
		b.settle(b.size, shards...)
		later.add(b.headers(sharded, shards))
		b.link(0, 0)
		b.configure(trusting)
	}
	link := series{time.Duration(float64(m.size) / farRate * 1e9)}
	where := fmt.Sprintf("%s, %s/s, %v", sizeOf(m.size), sizeOf(farRate), farLink)
	b.figure("public: pull to a page in the middle, by a table, "+where, with.median().Seconds()*1000, "%.0f ms",
		"an image of a page "+control.spread(millis), atMost(150, " ms"))
	b.compare("the same", with, "without a table", without, millis, target{})
	b.figure(fmt.Sprintf("public: pull to the headers of %d shards, by tables, %s", len(shards), where), headers.median().Seconds()*1000, "%.0f ms",
		"without tables "+later.spread(millis), atMost(500, " ms"))
	b.compare("public: pull to loaded, by a table, "+where, loaded, "the link", link, seconds, atMost(1.03, ""))
	b.compare("the same", loaded, "without a table", afterwards, seconds, target{})
	b.compare("the same", loaded, "stock containerd, pulled as a layer, then read", stock, seconds, target{})
}

// loadedFrom measures the time from the start of a pull until a loader has read the model, which it removes.
func (b *bench) loadedFrom(l lazyModel) time.Duration {
	c := b.readCold(l)
	b.leave(l, c)
	return c.pulled + c.read
}

// loadedByStock is loadedFrom for a pull of bench/tar by containerd alone.
func (b *bench) loadedByStock(m model) time.Duration {
	ref := b.node.Registry.Ref("bench/tar", "v1")
	start := time.Now()
	b.must(b.node.Pull("overlayfs", ref))
	dir, unmount := b.mount("overlayfs", ref)
	b.task("load", loaders[0].name, filepath.Join(dir, modelFile))
	took := time.Since(start)
	unmount()
	b.must(b.node.Ctr("images", "rm", "--sync", ref))
	return took
}

// headers measures the time from the start of a pull until a loader has the header of each shard of a model, which it
// removes when it is complete.
func (b *bench) headers(ref string, files []digest.Digest) time.Duration {
	front, _ := b.shardHeader()
	start := time.Now()
	b.must(b.node.Pull("ballast", ref))
	dir, unmount := b.mount("ballast", ref)
	for i := range files {
		f, err := os.Open(filepath.Join(dir, shardName(i)))
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		for _, part := range [][]byte{front[:8], front[8:]} { // the second read begins where the first has ended
			if _, err := io.ReadFull(f, make([]byte, len(part))); err != nil {
				b.t.Fatalf("%v", err)
			}
		}
		f.Close()
	}
	took := time.Since(start)
	b.awaitComplete(files...)
	unmount()
	b.forget(ref)
	return took
}
