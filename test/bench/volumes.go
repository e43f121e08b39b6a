package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/ballast-dev/ballast/test/e2e/node"
)

// volumeMounts is the number of mounts of one model.
const volumeMounts = 100

// volumes measures the cost of a complete model as an image volume of a pod, and of many volumes of it
// on a node.
func (b *bench) volumes() {
	size := 2 * b.size
	fmt.Fprintln(os.Stderr, "bench: preparing a model of", sizeOf(size), "for volumes")
	m := b.pushModel("bench/volume", size, 80)
	b.node.Registry.Push(b.t, "busybox", "1", node.Busybox(b.t))
	b.volumeOfPod(m)
	b.manyVolumes(m)
	for _, ref := range []string{b.node.Registry.Ref(m.repository, "v1"), b.node.Registry.Ref("busybox", "1")} {
		b.must(b.node.Ctr("-n", "k8s.io", "images", "rm", "--sync", ref)) // containerd also removes the mounts of volumes
		b.must(b.node.Ctr("images", "rm", "--sync", ref))
	}
	b.must(b.node.Ballast("gc", "--yes"))
}

// volumeOfPod measures the start of a container, with and without the volume.
func (b *bench) volumeOfPod(m model) {
	cri := b.node.CRI(b.t)
	pull := func(ref string) string {
		id, err := cri.Pull(ref, "")
		if err != nil {
			b.t.Fatalf("%v", err)
		}
		return id
	}
	image, volume := pull(b.node.Registry.Ref("busybox", "1")), pull(b.node.Registry.Ref(m.repository, "v1"))
	var with, without, cpuWith, cpuWithout series
	run := func(wall, cpu *series, mounts ...node.ImageMount) {
		before, start := b.cpu(b.node), time.Now()
		pod := cri.RunPod(b.t, "")
		if _, err := pod.Run(image, mounts...); err != nil {
			b.t.Fatalf("%v", err)
		}
		wall.add(time.Since(start))
		cpu.add(b.cpu(b.node) - before)
		if err := pod.Remove(); err != nil {
			b.t.Fatalf("%v", err)
		}
	}
	for i := range 1 + 4*b.rounds {
		if i == 1 { // the first of each fills the caches
			with, without, cpuWith, cpuWithout = nil, nil, nil, nil
		}
		pair := []func(){
			func() { run(&with, &cpuWith, node.ImageMount{Image: volume, Path: "/model"}) },
			func() { run(&without, &cpuWithout) },
		}
		if i%2 == 1 {
			slices.Reverse(pair)
		}
		for _, f := range pair {
			f()
		}
	}
	more := (with.median() - without.median()).Seconds() * 1000
	b.add(row{"pod with a model of " + sizeOf(m.size) + " as volume", with.spread(millis),
		"without " + without.spread(millis), fmt.Sprintf("%+.0f ms", more), more, atMost(50, " ms more")})
	b.times("the same, CPU", cpuWith, "without", cpuWithout, target{})
}

// manyVolumes measures simultaneous mounts of one model.
func (b *bench) manyVolumes(m model) {
	ref, image := b.node.Registry.Ref(m.repository, "v1"), b.node.Registry.Ref("busybox", "1")
	b.must(b.node.Pull("ballast", ref))
	b.must(b.node.Pull("overlayfs", image))
	var ours, stock series
	var ourCPU, stockCPU time.Duration // of all mounts, because the time of one cannot be measured
	var dirs []string
	before := diskOf(b.node.Root())
	for range volumeMounts {
		for _, s := range []struct {
			snapshotter, ref string
			to               *series
			cpu              *time.Duration
		}{{"ballast", ref, &ours, &ourCPU}, {"overlayfs", image, &stock, &stockCPU}} {
			dir, err := os.MkdirTemp(b.node.Dir, "mnt")
			if err != nil {
				b.t.Fatalf("%v", err)
			}
			cpu := b.cpu(b.node)
			s.to.add(timed(func() { b.must(b.node.Ctr("images", "mount", "--rw", "--snapshotter", s.snapshotter, s.ref, dir)) }))
			*s.cpu += b.cpu(b.node) - cpu
			defer func() {
				b.must(b.node.Ctr("images", "unmount", "--snapshotter", s.snapshotter, "--rm", dir))
			}()
			if s.snapshotter == "ballast" {
				dirs = append(dirs, dir)
			}
		}
	}
	disk := max(0, diskOf(b.node.Root())-before)
	drop()
	first := b.readFromDisk(dirs[0], 0, m.size)
	var others int64
	for i, dir := range dirs[1:] { // the whole file, a part through each
		part := m.size / int64(len(dirs)-1)
		others += b.readFromDisk(dir, int64(i)*part, part)
	}
	what := fmt.Sprintf("%d mounts of one model, ctr and all", volumeMounts)
	b.compare(what, ours, "overlayfs", stock, millis, target{})
	p99 := ours.percentile(99)
	b.add(
		row{"the same, p99", millis(p99), "overlayfs " + millis(stock.percentile(99)), "", p99.Seconds() * 1000, atMost(50, " ms")},
		row{"all of them, CPU", seconds(ourCPU), "overlayfs " + seconds(stockCPU), fmt.Sprintf("%.2f", ourCPU.Seconds()/stockCPU.Seconds()), 0, target{}},
		row{fmt.Sprintf("disk for %d volumes, beyond the model", volumeMounts), sizeOf(disk), "", "", float64(disk) / (1 << 20), atMost(4, " MiB")},
		row{"read from the disk: all through one, and again through the others", sizeOf(first) + ", " + sizeOf(others), "model " + sizeOf(m.size), "",
			float64(first+others) / float64(m.size), atMost(1.02, " of the model")})
}

// diskOf returns the disk usage of a directory, in bytes; a file with several names counts once.
func diskOf(dir string) (sum int64) {
	seen := map[uint64]bool{}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if st := info.Sys().(*syscall.Stat_t); !seen[st.Ino] {
			seen[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	return sum
}

// readFromDisk reads a part of the model below dir and returns the number of bytes read from the disk.
func (b *bench) readFromDisk(dir string, off, n int64) int64 {
	f, err := os.Open(filepath.Join(dir, modelFile))
	if err != nil {
		b.t.Fatalf("%v", err)
	}
	defer f.Close()
	before := b.field("/proc/self/io", "read_bytes:")
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.NewSectionReader(f, off, n), make([]byte, 1<<20)); err != nil {
		b.t.Fatalf("%v", err)
	}
	return b.field("/proc/self/io", "read_bytes:") - before
}
