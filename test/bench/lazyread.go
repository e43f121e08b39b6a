package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// lazyDone measures reads of a file that was read before it was complete: through the earlier mount,
// reopened, and through a new mount.
func (b *bench) lazyDone() {
	m := b.model()
	l := b.prepareLazy("done", m)
	b.configure(standStill)
	b.must(b.node.Pull("ballast", l.ref))
	dir, unmount := b.mount("ballast", l.ref)
	old := filepath.Join(dir, modelFile)
	b.readOnce(old, 0) // so that the kernel has resolved the file, and keeps it
	kept, err := unix.Open(old, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		b.t.Fatalf("%s: %v", old, err)
	}
	if b.complete(l.digest) {
		b.t.Fatalf("the model is complete too early")
	}
	b.configure("")
	b.awaitComplete(l.digest)
	opens := b.metric("ballast_lazy_passthrough_opens_total")
	dir, unmountNew := b.mount("ballast", l.ref)
	fresh := filepath.Join(dir, modelFile)
	native := b.nativeCopy(fresh)
	for _, temperature := range []string{"cold", "warm"} {
		var oldMount, newMount, control series
		for range b.rounds {
			oldMount.add(b.loadAt(temperature, loaders[0].name, old, m.size).wall)
			newMount.add(b.loadAt(temperature, loaders[0].name, fresh, m.size).wall)
			control.add(b.loadAt(temperature, loaders[0].name, native, m.size).wall)
		}
		b.rates("lazy: completed file, new mount, "+temperature, m.size, newMount, "native", control, atLeast(0.97, ""))
		b.rates("lazy: completed file, old mount, "+temperature, m.size, oldMount, "native", control, atLeast(0.9, ""))
	}
	opened := b.metric("ballast_lazy_passthrough_opens_total") - opens
	b.figure("openings of the old mount by passthrough, of those measured", float64(opened)/float64(2*b.rounds), "%.1f", "", atLeast(1, ""))
	unix.Close(kept)
	unmountNew()
	unmount()
	b.forget(l.ref)
	os.Remove(native)
}

// metric returns a metric of ballastd.
func (b *bench) metric(name string) int64 {
	for line := range strings.Lines(b.node.Metrics()) {
		var v float64
		if n, _ := fmt.Sscanf(line, name+" %g", &v); n == 1 {
			return int64(v)
		}
	}
	b.t.Fatalf("there is no metric %s", name)
	return 0
}

// lazyRandom measures small reads of an incomplete file: of present and of absent parts.
func (b *bench) lazyRandom() {
	m := b.model()
	l := b.prepareLazy("random", m)
	resident := m.size / 4
	b.configure(standStill)
	defer b.configure("")
	b.settle(l.size, l.digest)
	b.must(b.node.Pull("ballast", l.ref))
	dir, unmount := b.mount("ballast", l.ref)
	path := filepath.Join(dir, modelFile)
	b.task("head", path, fmt.Sprint(resident))
	native := filepath.Join(b.node.Dir, "native")
	b.task("copyHead", path, native, fmt.Sprint(resident))
	for _, how := range []string{"cold", "warm"} {
		var ours, control [2]series // the median and the 99th percentile
		for range b.rounds {
			for _, f := range []struct {
				path string
				to   *[2]series
			}{{path, &ours}, {native, &control}} {
				drop()
				b.touch(m.size)
				_, out := b.taskSays("random", f.path, fmt.Sprint(resident), how)
				for i, s := range strings.Fields(out) {
					d, err := time.ParseDuration(s)
					if err != nil {
						b.t.Fatalf("random: %v", err)
					}
					f.to[i].add(d)
				}
			}
		}
		for i, which := range []string{"median", "p99"} {
			t := target{}
			if which == "p99" {
				t = atMost(1.3, "")
			}
			what := "lazy: 4 KiB of what is there, " + map[string]string{"cold": "all cold", "warm": "daemon's warm"}[how] + ", " + which
			b.compare(what, ours[i], "native", control[i], micros, t)
		}
	}
	first := resident + 64<<20 // read-ahead bytes are present too
	half := first + (m.size-first)/2
	b.lazyAbsent(l, path, first, half, "lazy: 4 KiB of an absent chunk", atMost(1.3, ""))
	b.configure("")
	b.lazyAbsent(l, path, half, m.size, "the same, with the rest on its way", target{})
	b.link(0, 0)
	b.awaitComplete(l.digest)
	unmount()
	b.forget(l.ref)
	os.Remove(native)
}

// absentReads is the number of absent chunks that are read, one after the other.
const absentReads = 15

// lazyAbsent measures reads of absent chunks between two offsets, compared with requests for the same
// ranges.
func (b *bench) lazyAbsent(l lazyModel, path string, from, to int64, what string, t target) {
	const chunk, apart = 4 << 20, 5 // in chunks, so that the reads are not sequential
	b.link(farRate, farLink)
	f, err := os.Open(path)
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	defer f.Close()
	client := newClient(1)
	defer client.CloseIdleConnections()
	var ours, control series
	n := int((to - from) / chunk / apart)
	for _, at := range rand.Perm(n)[:min(n, absentReads)] {
		off := from/chunk*chunk + int64(at)*apart*chunk
		ours.add(timed(func() { _, err = f.ReadAt(make([]byte, 4<<10), off+1<<20) }))
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		p := make([]byte, min(chunk, l.size-off))
		control.add(timed(func() { err = getRange(client, l.url, p, off) }))
		if err != nil {
			b.t.Fatalf("%v", err)
		}
	}
	b.compare(what, ours, "range request", control, millis, t)
}

// safetensorsTensors is the number of tensors of a model whose tensors are shared.
const safetensorsTensors = 80

// safetensors returns a file of random tensors. A tuned file has another header, and each tenth tensor
// differs.
func safetensors(size int64, seed uint64, tuned bool) io.Reader {
	note := ""
	if tuned {
		note = fmt.Sprintf(`"__metadata__":{"format":"pt","note":%q},`, strings.Repeat("tuned ", 1000))
	}
	front, each := safetensorsHeader(size, safetensorsTensors, note)
	parts := []io.Reader{bytes.NewReader(front)}
	for i := range safetensorsTensors {
		s := seed<<32 + uint64(i)
		if tuned && i%10 == 0 {
			s |= 1 << 31
		}
		parts = append(parts, model{size: each, seed: s}.bytes())
	}
	return io.MultiReader(parts...)
}

// safetensorsHeader returns what is before the tensors of a file, which have each bytes. note is the beginning of the
// JSON.
func safetensorsHeader(size, tensors int64, note string) (front []byte, each int64) {
	each = size / tensors / 512 * 512
	var head bytes.Buffer
	head.WriteString("{" + note)
	for i := range tensors {
		if i > 0 {
			head.WriteString(",")
		}
		fmt.Fprintf(&head, `"model.layers.%d.weight":{"dtype":"BF16","shape":[%d,256],"data_offsets":[%d,%d]}`, i, each/512, i*each, (i+1)*each)
	}
	head.WriteString("}")
	head.Write(bytes.Repeat([]byte(" "), -head.Len()&7))
	return append(binary.LittleEndian.AppendUint64(nil, uint64(head.Len())), head.Bytes()...), each
}

// pushSafetensors pushes a ModelPack with one such file.
func (b *bench) pushSafetensors(repository string, size int64, seed uint64, tuned bool) model {
	l := b.pushFile(repository, modelFile, func() io.Reader { return safetensors(size, seed, tuned) })
	b.pushModelPack(repository, "v1", []ocispec.Descriptor{l}, nil)
	return model{size: l.Size, seed: seed, digest: l.Digest, repository: repository}
}

// pushFile pushes a file as a raw layer of a ModelPack.
func (b *bench) pushFile(repository, name string, open func() io.Reader) ocispec.Descriptor {
	d, n, err := hashOf(open())
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	b.node.Registry.PushBlob(b.t, repository, d, n, open())
	return ocispec.Descriptor{MediaType: modelPack + "weight.v1.raw", Digest: d, Size: n,
		Annotations: map[string]string{"org.cncf.model.filepath": name}}
}

// pushFiles makes a model of many files with a total size, and converts it.
func (b *bench) pushFiles(name string, size int64, n int, seed uint64) (ref string, files []digest.Digest) {
	_, layers := b.pushRaw(name, size, n, seed)
	return b.convertTo("lazy/"+name, model{repository: "bench/" + name}), digestsOf(layers)
}

// shardName is the name of one of the files of a model.
func shardName(i int) string { return fmt.Sprintf("model-%05d.safetensors", i) }

// pushRaw makes a model of many files with a total size.
func (b *bench) pushRaw(name string, size int64, n int, seed uint64) (ref string, layers []ocispec.Descriptor) {
	fmt.Fprintf(os.Stderr, "bench: preparing %s of %s\n", name, sizeOf(size))
	for i := range n {
		part := model{size: size / int64(n), seed: seed<<32 + uint64(i)}
		layers = append(layers, b.pushFile("bench/"+name, shardName(i), part.bytes))
	}
	b.pushModelPack("bench/"+name, "v1", layers, nil)
	return b.node.Registry.Ref("bench/"+name, "v1"), layers
}
