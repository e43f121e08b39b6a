package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	bigShards = 8
	bigTimes  = 20 // the size of the big model by that of the other ones
)

// A thin file is one page of random bytes in each chunk, and zeros: a disk that does not store zeros can have models
// that are larger than it. To all programs the bytes are as good as others: nothing in ballast knows zeros.
type thin struct {
	seed      uint64
	off, size int64
}

const (
	thinChunk = 4 << 20
	thinPage  = 4 << 10
)

// Read implements io.Reader.
func (f *thin) Read(p []byte) (int, error) {
	if f.off == f.size {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), f.size-f.off)]
	clear(p)
	for at := f.off / thinChunk * thinChunk; at < f.off+int64(len(p)); at += thinChunk {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], f.seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(at))
		page := make([]byte, thinPage)
		rand.NewChaCha8(key).Read(page)
		if at < f.off {
			copy(p, page[min(f.off-at, thinPage):])
		} else {
			copy(p[at-f.off:], page)
		}
	}
	f.off += int64(len(p))
	return len(p), nil
}

// A bigModel has bigShards thin files.
type bigModel struct {
	size           int64
	files          []digest.Digest
	complete, lazy string // images
}

func (b *bench) pushThin(name string, size int64, seed uint64) bigModel {
	fmt.Fprintf(os.Stderr, "bench: preparing %s of %s\n", name, sizeOf(size))
	var layers []ocispec.Descriptor
	for i := range bigShards {
		open := func() io.Reader { return &thin{seed: seed<<32 + uint64(i), size: size / bigShards} }
		layers = append(layers, b.pushFile("bench/"+name, shardName(i), open))
	}
	b.pushModelPack("bench/"+name, "v1", layers, nil)
	m := model{repository: "bench/" + name}
	return bigModel{size, digestsOf(layers), b.prepareComplete(name, m), b.convertTo("lazy/"+name, m)}
}

// big measures that neither memory nor the first byte nor the CPU-seconds for a GiB grow with the size of a model, and
// what a kill in the middle costs.
func (b *bench) big() {
	t := table{"A model in eight files", [][]string{{"what"}}}
	for i, size := range []int64{1 << 30, bigTimes * b.size} {
		m := b.pushThin(fmt.Sprintf("thin%d", i), size, uint64(900+i))
		t.rows[0] = append(t.rows[0], sizeOf(size))
		row := 0
		add := func(what, value string) {
			if row++; row == len(t.rows) {
				t.rows = append(t.rows, []string{what})
			}
			t.rows[row] = append(t.rows[row], value)
			fmt.Fprintf(os.Stderr, "bench: %s, %s: %s\n", sizeOf(size), what, value) // the next takes minutes
		}
		b.bigPull(m, add)
		b.bigLazy(m, add)
	}
	b.addTable(t)
}

// restart starts a new ballastd, whose peak of memory is that of what follows.
func (b *bench) restart() {
	b.node.Ballastd.Stop(b.t)
	b.node.StartBallastd(b.t)
}

// bigPull measures a pull that is complete at its end.
func (b *bench) bigPull(m bigModel, add func(what, value string)) {
	b.restart()
	drop()
	before := b.cpu(b.node)
	took := timed(func() { b.must(b.node.Pull("ballast", m.complete)) })
	add("pull, complete at its end", seconds(took))
	add("the same, CPU for each GiB", perGiB(m.size)(b.cpu(b.node)-before))
	add("the same, memory of ballastd, peak", sizeOf(b.peak()))
	b.forget(m.complete)
}

// bigLazy measures a pull that is complete later, without and with a kill of ballastd in the middle.
func (b *bench) bigLazy(m bigModel, add func(what, value string)) {
	var whole cost
	for _, kill := range []bool{false, true} {
		b.restart()
		drop()
		start, before := time.Now(), b.cpu(b.node)
		b.must(b.node.Pull("ballast", m.lazy))
		dir, unmount := b.mount("ballast", m.lazy)
		b.readOnce(filepath.Join(dir, shardName(bigShards-1)), m.size/bigShards/2)
		first := time.Since(start)
		var killed cost // what the killed process has used, and the time until there is another
		var fetched int64
		if kill {
			for fetched < m.size/2 {
				time.Sleep(10 * time.Millisecond)
				fetched = b.metric("ballast_registry_bytes_total")
			}
			killed.cpu = b.cpuOf(b.node.Ballastd.Pid(), true)
			b.node.Ballastd.Kill()
			killed.wall = timed(func() { b.node.StartBallastd(b.t) })
		}
		for b.incomplete(m.files) > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		c := cost{time.Since(start), b.cpu(b.node) + killed.cpu - before}
		fetched += b.metric("ballast_registry_bytes_total")
		if !kill {
			whole = c
			add("lazy, from the pull to the first byte of the last file", millis(first))
			add("lazy, from the pull until it is complete", seconds(c.wall))
			add("the same, CPU for each GiB", perGiB(m.size)(c.cpu))
			add("the same, memory of ballastd, peak", sizeOf(b.peak()))
		} else {
			add("a kill of ballastd in the middle: until it runs again", seconds(killed.wall))
			add("the same, more time until it is complete", seconds(c.wall-whole.wall))
			add("the same, more CPU", seconds(c.cpu-whole.cpu))
			add("the same, fetched twice", fmt.Sprintf("%.0f MiB", float64(fetched-m.size)/(1<<20)))
		}
		unmount()
		b.forget(m.lazy)
	}
}
