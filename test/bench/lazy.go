package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
)

// standStill is a configuration in which nobody brings what nobody reads.
const standStill = "[lazy]\nrate = \"1\"\n"

// A lazyModel is a model of one large file whose image has digests of chunks.
type lazyModel struct {
	model
	ref string // the image
	url string // where the registry has the bytes of the file
}

// prepareLazy converts a model ahead of time.
func (b *bench) prepareLazy(name string, m model) lazyModel {
	r := b.node.Registry
	l := lazyModel{m, r.Ref("lazy/"+name, "v1"), "http://" + r.Host + "/v2/lazy/" + name + "/blobs/" + m.digest.String()}
	b.must(b.node.Ballast("convert", "--as", "ballast", "-q", r.Ref(m.repository, "v1"), l.ref))
	return l
}

// pushLazy makes a model and converts it ahead of time.
func (b *bench) pushLazy(name string, size int64, seed uint64) lazyModel {
	fmt.Fprintf(os.Stderr, "bench: preparing %s of %s\n", name, sizeOf(size))
	return b.prepareLazy(name, b.pushModel("bench/"+name, size, seed))
}

// mount shows an image in a new directory; the function returned takes that away.
func (b *bench) mount(snapshotter, ref string) (dir string, unmount func()) {
	dir, err := os.MkdirTemp(b.node.Dir, "mnt")
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.must(b.node.Ctr("images", "mount", "--snapshotter", snapshotter, ref, dir))
	return dir, func() { b.must(b.node.Ctr("images", "unmount", "--snapshotter", snapshotter, "--rm", dir)) }
}

// configure starts ballastd again with more of a configuration, in TOML.
func (b *bench) configure(toml string) {
	b.node.Ballastd.Stop(b.t)
	if err := os.WriteFile(filepath.Join(b.node.Dir, "conf.d/bench.toml"), []byte("version = 1\n"+toml), 0o644); err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.StartBallastd(b.t)
}

// complete says whether the node has all of a file.
func (b *bench) complete(d digest.Digest) bool {
	_, err := os.Stat(filepath.Join(b.node.Root(), "objects/sha256", d.Encoded()[:2], d.Encoded()))
	return err == nil
}

// awaitComplete waits until the node has all of some files.
func (b *bench) awaitComplete(files ...digest.Digest) {
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		for _, d := range files {
			if !b.complete(d) {
				left++
			}
		}
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

// firstByte measures from the start of a pull to a page of the file at off, as a mount of the image
// shows it.
func (b *bench) firstByte(snapshotter, ref string, off int64) (took time.Duration, unmount func()) {
	start := time.Now()
	b.must(b.node.Pull(snapshotter, ref))
	dir, unmount := b.mount(snapshotter, ref)
	b.readOnce(filepath.Join(dir, modelFile), off)
	return time.Since(start), unmount
}

// ordinary is firstByte of an ordinary image, which it removes.
func (b *bench) ordinary(ref string, m model) time.Duration {
	took, unmount := b.firstByte("overlayfs", ref, m.size/2)
	unmount()
	b.must(b.node.Ctr("images", "rm", "--sync", ref))
	return took
}

// early is firstByte of a model, which it removes when nothing is on its way any more.
func (b *bench) early(l lazyModel) time.Duration {
	took, unmount := b.firstByte("ballast", l.ref, l.size/2)
	b.awaitComplete(l.digest)
	unmount()
	b.forget(l.ref)
	return took
}

// alone is firstByte of a model of which nothing else is on its way. Its chunks stay, so each round
// has another.
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

// farLink is the time of a round trip where one is simulated.
const farLink = 20 * time.Millisecond

// lazyStart measures how soon a byte of a model can be read.
func (b *bench) lazyStart(m model) {
	large := b.prepareLazy("model", m)
	small := b.pushLazy("eighth", m.size/8, 201)
	tiny := b.pushLazy("page", 16<<10, 202)
	page := tiny.model // as an ordinary image, to see what is containerd's and ctr's own
	b.pushTar("bench/page-tar", page)
	pageRef, tarRef := b.node.Registry.Ref("bench/page-tar", "v1"), b.node.Registry.Ref("bench/tar", "v1")
	tarDigest := b.pushTar("bench/tar", m)
	var ctr, ofLarge, ofSmall, far, ctrFar, stock series
	for range b.rounds {
		b.settle(m.size, m.digest)
		b.ordinary(pageRef, page) // programs are in memory now
		b.early(tiny)
		ctr.add(b.ordinary(pageRef, page))
		ofLarge.add(b.early(large))
		ofSmall.add(b.early(small))
		b.link(0, farLink)
		ctrFar.add(b.ordinary(pageRef, page))
		far.add(b.early(large))
		b.link(0, 0)
		b.settle(m.size, tarDigest)
		stock.add(b.ordinary(tarRef, m))
	}
	alone := b.alone(large)
	for _, r := range []struct {
		what     string
		ours, of series
		target   string
	}{
		{sizeOf(small.size), ofSmall, ctr, "< 150ms"},
		{sizeOf(large.size), ofLarge, ctr, "< 150ms"},
		{fmt.Sprintf("%s, round trip of %v", sizeOf(large.size), farLink), far, ctrFar, "< 150ms + round trips"},
		{sizeOf(large.size) + ", the rest standing still", alone, ctr, "< 150ms"},
	} {
		b.rows = append(b.rows, row{"lazy: pull to first byte, " + r.what, millis(r.ours.median()),
			"an image of a page " + millis(r.of.median()), "+ " + millis(r.ours.median()-r.of.median()), r.target})
	}
	b.rows = append(b.rows, row{"the same, " + sizeOf(large.size), millis(ofLarge.median()), "stock " + millis(stock.median()),
		fmt.Sprintf("%.1f × sooner", stock.median().Seconds()/ofLarge.median().Seconds()), "≥ 20 ×"})
}

func millis(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }

// lazyRead measures one reader of a file of which nothing is there.
func (b *bench) lazyRead(m model) {
	l := b.prepareLazy("read", m)
	for _, rate := range []int64{0, 200 << 20} {
		var lazy, plain, kept series
		for range b.rounds {
			b.settle(l.size, l.digest)
			b.link(rate, time.Millisecond)
			plain.add(b.task("download", l.url, fmt.Sprint(l.size), ""))
			if rate == 0 {
				b.settle(l.size, l.digest)
				kept.add(b.task("download", l.url, fmt.Sprint(l.size), b.node.Dir))
			}
			b.settle(l.size, l.digest)
			lazy.add(b.readCold(l))
			b.link(0, 0)
		}
		if rate == 0 {
			b.addRate("lazy: sequential read, cold", l.size, lazy, "download", plain, "≥ 0.85")
			b.addRate("the same", l.size, lazy, "download, hash, write", kept, "")
			continue
		}
		at := fmt.Sprintf("lazy: sequential read, link of %d MiB/s", rate>>20)
		b.addRate(at, l.size, lazy, "download", plain, "")
		b.addRate("the same", l.size, lazy, "link", series{time.Duration(float64(l.size) / float64(rate) * 1e9)}, "≥ 0.95")
	}
}

// addRate adds a row of bytes a second, with the ratio of the rates.
func (b *bench) addRate(what string, n int64, s series, control string, c series, target string) {
	b.rows = append(b.rows, row{what, rate(n, s.median()), control + " " + rate(n, c.median()),
		fmt.Sprintf("%.2f", c.median().Seconds()/s.median().Seconds()), target})
}

// readCold pulls a model and returns how long reading all of it takes that begins at once.
func (b *bench) readCold(l lazyModel) time.Duration {
	b.must(b.node.Pull("ballast", l.ref))
	dir, unmount := b.mount("ballast", l.ref)
	took := b.task("read", filepath.Join(dir, modelFile))
	b.awaitComplete(l.digest)
	unmount()
	b.forget(l.ref)
	return took
}

// lazyShared measures what of a fine-tuned model comes over the wire when the one that it was made
// from is there: nine of ten tensors are the same, at other places in a file with another header.
func (b *bench) lazyShared() {
	size := min(b.size, 512<<20)
	for i, flags := range [][]string{nil, {"--compress", "zstd-chunked"}} {
		base, tuned := fmt.Sprintf("base%d", i), fmt.Sprintf("tuned%d", i)
		fmt.Fprintln(os.Stderr, "bench: preparing a model and a fine-tuned one of", sizeOf(size), flags)
		first := b.pushSafetensors("bench/"+base, size, uint64(300+i), false)
		second := b.pushSafetensors("bench/"+tuned, size, uint64(300+i), true)
		var refs []string
		for _, name := range []string{base, tuned} {
			ref := b.node.Registry.Ref("lazy/"+name, "v1")
			b.must(b.node.Ballast(append([]string{"convert", "-q", b.node.Registry.Ref("bench/"+name, "v1"), ref}, flags...)...))
			refs = append(refs, ref)
		}
		b.must(b.node.Pull("ballast", refs[0]))
		b.awaitComplete(first)
		b.node.Registry.Wire.Reset()
		took := timed(func() {
			b.must(b.node.Pull("ballast", refs[1]))
			b.awaitComplete(second)
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
		b.rows = append(b.rows, row{what, fmt.Sprintf("%.1f MiB", float64(sent)/(1<<20)), sizeOf(size) + " in " + seconds(took),
			fmt.Sprintf("%.3f", float64(sent)/float64(size)), "≤ 0.15"})
	}
}

// lazyMemory measures the largest resident size of a fresh daemon with many readers of files that are
// not there.
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
		b.rows = append(b.rows, row{fmt.Sprintf("lazy: daemon memory, peak, %d readers of %s", readers, m.what),
			fmt.Sprintf("%d MiB", peak>>20), rate(size, took) + " together", "", "< 200 MiB"})
	}
}
