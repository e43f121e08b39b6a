package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// orderTensor is the size of a tensor of the measurement order, orderReads that of a read.
const (
	orderTensor = 16 << 20
	orderReads  = 1 << 20
)

// orderShards is which of the shards the loader reads first.
var orderShards = []int{5, 2, 7, 0, 3, 6, 1, 4}

// A wanted is a range of a file.
type wanted struct {
	name      string
	off, size int64
}

// ordered measures a loader that reads in an order of its own, every second tensor of shuffled shards with the header
// last, over a link: without and with a recorded order, beside the time that the link needs for the chunks with these
// bytes.
func (b *bench) ordered() {
	plain, files := b.pushShards("order-plain")
	recorded, _ := b.pushShards("order-recorded")
	link := links[len(links)-1]
	list := filepath.Join(b.node.Dir, "order")
	var reads int64
	var text strings.Builder
	for _, w := range b.plan() {
		fmt.Fprintln(&text, w.name, w.off, w.size)
		reads += w.size
	}
	if err := os.WriteFile(list, []byte(text.String()), 0o644); err != nil {
		b.t.Fatalf("%v", err)
	}
	blobs := digestsOf(files)
	// load returns when the loader has read all and the first tenth, from the end of the pull. The node keeps the
	// order if keep is set.
	load := func(ref string, keep bool, all, first *series) {
		b.settle(b.size, blobs...)
		link.set(b)
		b.must(b.node.Pull("ballast", ref))
		start := time.Now()
		dir, unmount := b.mount("ballast", ref)
		mounted := time.Since(start)
		c, out := b.taskSays("order", dir, list)
		tenth, err := time.ParseDuration(out)
		if err != nil {
			b.t.Fatalf("order: %v", err)
		}
		all.add(mounted + c.wall)
		first.add(mounted + tenth)
		b.link(0, 0)
		b.awaitComplete(blobs...)
		unmount()
		if !keep {
			b.must(b.node.Ballast("rm", ref))
		}
		b.forget(ref)
		if !keep {
			b.must(b.node.Ballast("gc", "--yes")) // the order goes after its table
		}
	}
	load(recorded, true, new(series), new(series))
	needs := b.recordOrder(recorded)
	b.must(b.node.Ballast("rm", recorded))
	for range 2 { // the record of what the first one removes goes with the second
		b.must(b.node.Ballast("gc", "--yes"))
	}

	var known, got, none, knownFirst, gotFirst, noneFirst series
	for i := range b.rounds {
		runs := []func(){
			func() { // the second one has the order of the first one
				load(recorded, true, &got, &gotFirst)
				load(recorded, false, &known, &knownFirst)
			},
			func() { load(plain, false, &none, &noneFirst) },
		}
		if i%2 == 1 {
			slices.Reverse(runs)
		}
		for _, run := range runs {
			run()
		}
	}
	whole := series{time.Duration(float64(needs) / float64(link.rate) * float64(time.Second))}
	tenth := series{whole[0] / 10}
	what := fmt.Sprintf("loaded in an order of its own, %s in chunks of %s of %s, %s", sizeOf(reads), sizeOf(needs), sizeOf(b.size), link.what)
	const first = "the same, the first 10 % of its reads"
	b.times(what+": recorded by the node", known, "the link", whole, atMost(1.05, ""))
	b.times(first, knownFirst, "the link", tenth, atMost(1.2, ""))
	b.times("the same, recorded by another node, in the registry", got, "the link", whole, atMost(1.05, ""))
	b.times(first, gotFirst, "the link", tenth, atMost(1.2, ""))
	b.times("the same, not recorded", none, "the link", whole, target{})
	b.times(first, noneFirst, "the link", tenth, target{})
}

// recordOrder writes the recorded order of a model beside it, and returns the bytes of the chunks that it has: those
// with the bytes of the reads, and with the rest of their pages.
func (b *bench) recordOrder(ref string) (size int64) {
	b.must(b.node.Ballast("record", ref))
	var r struct {
		Order struct{ Ranges []struct{ Size int64 } }
	}
	if err := json.Unmarshal(b.node.Admin(b.t, "/v1/order?name="+ref), &r); err != nil {
		b.t.Fatalf("%v", err)
	}
	for _, part := range r.Order.Ranges {
		size += part.Size
	}
	return size
}

// pushShards pushes a model of shards and converts it.
func (b *bench) pushShards(name string) (ref string, files []ocispec.Descriptor) {
	files = b.pushRawShards("bench/" + name)
	return b.convertTo("lazy/"+name, model{repository: "bench/" + name}), files
}

// pushRawShards pushes a model of shards.
func (b *bench) pushRawShards(repository string) (files []ocispec.Descriptor) {
	for i := range orderShards {
		files = append(files, b.pushFile(repository, shardName(i), func() io.Reader { return b.shard(i) }))
	}
	b.pushModelPack(repository, "v1", files, nil)
	return files
}

// tensorsOfShard returns the number of tensors of a shard: at least two.
func (b *bench) tensorsOfShard() int64 { return b.size / int64(len(orderShards)) / orderTensor }

func (b *bench) shardHeader() (front []byte, each int64) {
	return safetensorsHeader(b.size/int64(len(orderShards)), b.tensorsOfShard(), "")
}

func (b *bench) shard(i int) io.Reader {
	front, each := b.shardHeader()
	parts := []io.Reader{bytes.NewReader(front)}
	for n := range b.tensorsOfShard() {
		parts = append(parts, model{size: each, seed: 7000<<32 + uint64(1000*i) + uint64(n)}.bytes())
	}
	return io.MultiReader(parts...)
}

// plan returns what the loader reads.
func (b *bench) plan() (all []wanted) {
	front, each := b.shardHeader()
	head := int64(len(front))
	for _, i := range orderShards {
		for n := int64(0); n < b.tensorsOfShard(); n += 2 {
			all = append(all, wanted{shardName(i), head + n*each, each})
		}
		all = append(all, wanted{shardName(i), 0, head})
	}
	return all
}

// readPlan reads what plan has returned, and the bytes of the first 10 %.
func readPlan(list string) (all []wanted, tenth int64, err error) {
	f, err := os.Open(list)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var w wanted
		if _, err := fmt.Sscan(s.Text(), &w.name, &w.off, &w.size); err != nil {
			return nil, 0, err
		}
		all = append(all, w)
		tenth += w.size
	}
	return all, tenth / 10, nil
}

// readOrdered reads the ranges of a list in the files of a directory, and prints when the first 10 % were read.
func readOrdered(dir, list string) error {
	start := time.Now()
	all, tenth, err := readPlan(list)
	if err != nil {
		return err
	}
	open := map[string]*os.File{}
	buf := make([]byte, orderReads)
	var sum int64
	for _, w := range all {
		f := open[w.name]
		if f == nil {
			if f, err = os.Open(filepath.Join(dir, w.name)); err != nil {
				return err
			}
			defer f.Close()
			open[w.name] = f
		}
		for at := int64(0); at < w.size; at += orderReads {
			n, err := f.ReadAt(buf[:min(orderReads, w.size-at)], w.off+at)
			if err != nil {
				return err
			}
			if sum < tenth && sum+int64(n) >= tenth {
				fmt.Println(time.Since(start))
			}
			sum += int64(n)
		}
	}
	return nil
}
