package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
)

// standStill is a configuration that practically stops background downloads.
const standStill = "[lazy]\nrate = \"1B\"\n"

// A lazyModel is a model of one large file whose image has digests of chunks.
type lazyModel struct {
	model
	ref string // of the image
	url string // of the file's blob at the registry
}

// prepareComplete is prepareLazy for a model that is shown when it is complete. It returns the image.
func (b *bench) prepareComplete(name string, m model) (ref string) {
	return b.convertTo(completeRepositories+name, m)
}

// convertTo converts a model, with digests and states of its chunks.
func (b *bench) convertTo(repository string, m model, flags ...string) (ref string) {
	ref = b.node.Registry.Ref(repository, "v1")
	b.must(b.node.Ballast(append([]string{"convert", "--as", "ballast", "-q", b.node.Registry.Ref(m.repository, "v1"), ref}, flags...)...))
	return ref
}

// prepareLazy pushes the model and converts it.
func (b *bench) prepareLazy(name string, m model) lazyModel {
	repository := "lazy/" + name
	return lazyModel{m, b.convertTo(repository, m), b.node.Registry.BlobURL(repository, m.digest)}
}

// pushLazy makes a model and converts it.
func (b *bench) pushLazy(name string, size int64, seed uint64) lazyModel {
	fmt.Fprintf(os.Stderr, "bench: preparing %s of %s\n", name, sizeOf(size))
	return b.prepareLazy(name, b.pushModel("bench/"+name, size, seed))
}

// mount mounts an image at a new directory; the returned function unmounts it.
func (b *bench) mount(snapshotter, ref string) (dir string, unmount func()) {
	dir, err := os.MkdirTemp(b.node.Dir, "mnt")
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.must(b.node.Ctr("images", "mount", "--snapshotter", snapshotter, ref, dir))
	return dir, func() { b.must(b.node.Ctr("images", "unmount", "--snapshotter", snapshotter, "--rm", dir)) }
}

// completeRepositories have models that are shown when they are complete.
const completeRepositories = "complete/"

// nodeConfig is the configuration of ballastd for them.
const nodeConfig = "[[lazy.rule]]\nmatch = \"*/" + completeRepositories + "*\"\nmode = \"complete\"\n"

// configure restarts ballastd with an additional configuration, in TOML.
func (b *bench) configure(toml string) {
	b.node.Ballastd.Stop(b.t)
	if err := os.WriteFile(filepath.Join(b.node.Dir, "conf.d/bench.toml"), []byte("version = 1\n"+toml), 0o644); err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.StartBallastd(b.t)
}

// complete reports whether a file is an object of the node.
func (b *bench) complete(d digest.Digest) bool {
	_, err := os.Stat(filepath.Join(b.node.Root(), "objects/sha256", d.Encoded()[:2], d.Encoded()))
	return err == nil
}

// incomplete returns how many files are not objects of the node.
func (b *bench) incomplete(files []digest.Digest) (left int) {
	for _, d := range files {
		if !b.complete(d) {
			left++
		}
	}
	return left
}

// awaitComplete waits until files are objects of the node.
func (b *bench) awaitComplete(files ...digest.Digest) {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		left := b.incomplete(files)
		if left == 0 {
			return
		}
		if time.Since(start) > 5*time.Minute {
			b.t.Fatalf("%d of %d files are not complete after five minutes\n%s", left, len(files), b.node.Ballastd.Tail(20))
		}
	}
}

// readOnce reads a page of a file.
func (b *bench) readOnce(path string, off int64) {
	f, err := os.Open(path)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	defer f.Close()
	if _, err := f.ReadAt(make([]byte, 4<<10), off); err != nil {
		b.t.Fatalf("%v", err)
	}
}

// firstByte measures the time from the start of a pull until a page of the file at off is read, through
// a mount of the image.
func (b *bench) firstByte(snapshotter, ref string, off int64) (took time.Duration, unmount func()) {
	start := time.Now()
	b.must(b.node.Pull(snapshotter, ref))
	dir, unmount := b.mount(snapshotter, ref)
	b.readOnce(filepath.Join(dir, modelFile), off)
	return time.Since(start), unmount
}

// ordinary is firstByte for an ordinary image, which it removes.
func (b *bench) ordinary(ref string) time.Duration {
	took, unmount := b.firstByte("overlayfs", ref, 0)
	unmount()
	b.must(b.node.Ctr("images", "rm", "--sync", ref))
	return took
}

// early is firstByte for a page at off of a model, which it removes when no fetch is running.
func (b *bench) early(l lazyModel, off int64) time.Duration {
	took, unmount := b.firstByte("ballast", l.ref, off)
	b.awaitComplete(l.digest)
	unmount()
	b.forget(l.ref)
	return took
}

// alone is firstByte for a model without other transfers. Its chunks stay, so each round uses another
// one.
func (b *bench) alone(l lazyModel) (s series) {
	b.configure(standStill)
	defer b.configure("")
	for i := range b.rounds {
		took, unmount := b.firstByte("ballast", l.ref, l.size/int64(b.rounds+2)*int64(i+1))
		s.add(took)
		unmount()
		b.must(b.node.Ctr("images", "rm", "--sync", l.ref))
	}
	return s
}

// lazyStart measures the time until the first byte of a model, which has a small chunk, and a page in its middle can
// be read.
func (b *bench) lazyStart() {
	m := b.model()
	large := b.prepareLazy("model", m)
	small := b.pushLazy("eighth", m.size/8, 201)
	tiny := b.pushLazy("page", 16<<10, 202)
	page := tiny.model // as an ordinary image, to measure the share of containerd and ctr
	b.pushTar("bench/page-tar", page)
	pageRef, tarRef := b.node.Registry.Ref("bench/page-tar", "v1"), b.node.Registry.Ref("bench/tar", "v1")
	tarDigest := b.pushTar("bench/tar", m)
	var ctr, ofLarge, ofSmall, ofMiddle, far, ctrFar, stock series
	for range b.rounds {
		b.settle(m.size, m.digest)
		b.ordinary(pageRef) // loads the programs into memory
		b.early(tiny, 0)
		ctr.add(b.ordinary(pageRef))
		ofLarge.add(b.early(large, 0))
		ofSmall.add(b.early(small, 0))
		ofMiddle.add(b.early(large, large.size/2))
		b.link(0, farLink)
		ctrFar.add(b.ordinary(pageRef))
		far.add(b.early(large, 0))
		b.link(0, 0)
		b.settle(m.size, tarDigest)
		stock.add(b.ordinary(tarRef))
	}
	alone := b.alone(large)
	for _, r := range []struct {
		what     string
		ours, of series
		most     target
	}{
		{"first byte, " + sizeOf(small.size), ofSmall, ctr, atMost(15, " ms more")},
		{"first byte, " + sizeOf(large.size), ofLarge, ctr, atMost(15, " ms more")},
		{fmt.Sprintf("first byte, %s, round trip of %v", sizeOf(large.size), farLink), far, ctrFar, target{}},
		{"a page in the middle, " + sizeOf(large.size), ofMiddle, ctr, target{}},
		{"a page in the middle, " + sizeOf(large.size) + ", the rest standing still", alone, ctr, target{}},
	} {
		more := (r.ours.median() - r.of.median()).Seconds() * 1000
		b.add(row{"lazy: pull to " + r.what, r.ours.spread(millis),
			"an image of a page " + r.of.spread(millis), fmt.Sprintf("%+.1f ms", more), more, r.most})
	}
	b.compare("the same, "+sizeOf(large.size), ofLarge, "stock", stock, millis, target{})
}

// lazyRead measures one reader of an absent file, from the end of the pull, compared with a program
// that does the same work without containerd, digests of chunks, resuming and other features.
func (b *bench) lazyRead() {
	l := b.prepareLazy("read", b.model())
	for _, link := range links {
		var read, durable, plainRead, plainDurable, nowhere, cpu, plainCPU series
		for range b.rounds {
			b.settle(l.size, l.digest)
			link.set(b)
			nowhere.add(b.task("download", l.url, fmt.Sprint(l.size)))
			b.settle(l.size, l.digest)
			d := b.deliver(l, "")
			plainRead.add(d.read)
			plainDurable.add(d.durable)
			plainCPU.add(d.program)
			b.settle(l.size, l.digest)
			var c coldRead
			cpu.add(b.daemonCPU(func() { c = b.readCold(l) }))
			read.add(c.read)
			durable.add(c.durable)
			b.link(0, 0)
			b.leave(l, c)
		}
		what := "lazy: sequential read, cold, " + link.what
		if link.rate == 0 {
			b.rates(what, l.size, read, "deliver", plainRead, atLeast(0.90, ""))
			b.rates("the same, until it is on the disk", l.size, durable, "deliver", plainDurable, target{})
			b.compare("the same, CPU", cpu, "deliver", plainCPU, perGiB(l.size), target{})
			b.rates("the same as the first, beside no work at all", l.size, read, "download to nowhere", nowhere, target{})
			continue
		}
		b.rates(what, l.size, read, "the link", series{time.Duration(float64(l.size) / float64(link.rate) * 1e9)}, atLeast(0.97, ""))
		b.rates("the same", l.size, read, "deliver", plainRead, target{})
	}
}

// A coldRead has the costs of reading an absent model.
type coldRead struct {
	pulled  time.Duration // the pull before
	read    time.Duration // until the reader has read all
	durable time.Duration // until the model is durable
	reader  time.Duration // CPU of the reader
	program time.Duration // CPU of deliver
	unmount func()
}

// readCold pulls a model and reads all of it; the time starts at the end of the pull.
func (b *bench) readCold(l lazyModel) (c coldRead) {
	begun := time.Now()
	b.must(b.node.Pull("ballast", l.ref))
	start := time.Now()
	c.pulled = start.Sub(begun)
	dir, unmount := b.mount("ballast", l.ref)
	took, _ := b.taskSays("load", loaders[0].name, filepath.Join(dir, modelFile))
	c.read, c.reader, c.unmount = time.Since(start), took.cpu, unmount
	b.awaitComplete(l.digest)
	c.durable = time.Since(start)
	return c
}

// leave removes the model.
func (b *bench) leave(l lazyModel, c coldRead) {
	c.unmount()
	b.forget(l.ref)
}

// deliver is the control of readCold.
func (b *bench) deliver(l lazyModel, profile string) coldRead {
	took, out := b.taskSays("deliver", l.url, fmt.Sprint(l.size), b.node.Dir, profile)
	reader, _, err := parseCost(out) // the CPU-seconds are those of the reader
	if err != nil {
		b.t.Fatalf("deliver: %v", err)
	}
	return coldRead{read: reader.wall, durable: took.wall, reader: reader.cpu, program: took.cpu}
}

// lazyShared measures how much of a fine-tuned model is transferred if its base is on the node: nine of
// ten tensors are equal, at other offsets in a file with another header.
func (b *bench) lazyShared() {
	size := min(b.size, 512<<20)
	for i, flags := range [][]string{nil, {"--compress", "zstd-chunked"}} {
		base, tuned := fmt.Sprintf("bench/base%d", i), fmt.Sprintf("bench/tuned%d", i)
		fmt.Fprintln(os.Stderr, "bench: preparing a model and a fine-tuned one of", sizeOf(size), flags)
		first := b.pushSafetensors(base, size, uint64(300+i), false)
		second := b.pushSafetensors(tuned, size, uint64(300+i), true)
		var refs []string
		for _, m := range []model{first, second} {
			refs = append(refs, b.convertTo("lazy/"+m.repository, m, flags...))
		}
		b.must(b.node.Pull("ballast", refs[0]))
		b.awaitComplete(first.digest)
		b.node.Registry.Wire.Reset()
		took := timed(func() {
			b.must(b.node.Pull("ballast", refs[1]))
			b.awaitComplete(second.digest)
		})
		var sent int64
		for _, r := range b.node.Registry.Wire.Requests() {
			if r.Method == http.MethodGet {
				sent += r.Bytes
			}
		}
		for _, ref := range refs {
			b.forget(ref)
		}
		what := "lazy: fine-tuned model, over the wire"
		if flags != nil {
			what += ", " + flags[1]
		}
		share := float64(sent) / float64(size)
		b.add(row{what, fmt.Sprintf("%.1f MiB", float64(sent)/(1<<20)), sizeOf(size) + " in " + seconds(took),
			fmt.Sprintf("%.3f", share), share, atMost(0.15, "")})
	}
}

// lazyMemory measures the peak resident size of a new daemon with many readers of absent files.
func (b *bench) lazyMemory() {
	const readers = 64
	size := min(b.size, 1<<30)
	one := b.pushLazy("onefile", size, 400)
	many, files := b.pushFiles("manyfiles", size, readers, 401)
	for _, m := range []struct {
		what, ref string
		files     []digest.Digest
	}{{"one file", one.ref, []digest.Digest{one.digest}}, {fmt.Sprintf("%d files", readers), many, files}} {
		b.settle(size, m.files...)
		b.node.Ballastd.Stop(b.t)
		b.node.StartBallastd(b.t)
		b.must(b.node.Pull("ballast", m.ref))
		dir, unmount := b.mount("ballast", m.ref)
		took := b.task("readers", dir, fmt.Sprint(readers))
		b.awaitComplete(m.files...)
		peak := b.peak()
		unmount()
		b.forget(m.ref)
		b.figure(fmt.Sprintf("lazy: daemon memory, peak, %d readers of %s", readers, m.what), float64(peak)/(1<<20), "%.0f MiB",
			rateOf(size)(took)+" together", atMost(180, " MiB"))
	}
}
