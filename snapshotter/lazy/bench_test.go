package lazy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The benchmarks read resident files in each way, and without FUSE. Pages of the mount are dropped
// before, those of the disk below are not, so that they measure the way and not the disk.
const benchSize = 1 << 30

type way struct {
	name, path string
	drop       bool // has its own pages
}

func ways(b *testing.B, args ...string) []way {
	p, q := newPlace(b), newPlace(b)
	partial := p.add(b, 1, benchSize, benchSize)
	whole := p.add(b, 2, benchSize, benchSize)
	p.complete(b, whole)
	startDaemon(b, p.args(args...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(q.object(whole)), 0o755), os.Link(p.object(whole), q.object(whole))); err != nil {
		b.Fatal(err)
	}
	startDaemon(b, q.args(append(args, "--no-passthrough")...)...)
	return []way{
		{"native", p.object(whole), false}, {"passthrough", p.path(whole), false},
		{"object", q.path(whole), true}, {"incomplete", p.path(partial), true},
	}
}

func (w way) open(b *testing.B) *os.File {
	f, err := os.Open(w.path)
	if err != nil {
		b.Fatal(err)
	}
	if w.drop {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			b.Fatal(err)
		}
	}
	return f
}

func BenchmarkSequential(b *testing.B) {
	for _, ahead := range []int{1, 4, 8, 16} {
		for _, w := range ways(b, "--read-ahead", fmt.Sprint(ahead<<20)) {
			b.Run(fmt.Sprintf("ahead=%dMiB/%s", ahead, w.name), func(b *testing.B) {
				b.SetBytes(benchSize)
				buf := make([]byte, 1<<20)
				for b.Loop() {
					b.StopTimer()
					f := w.open(b)
					b.StartTimer()
					for off := int64(0); off < benchSize; off += int64(len(buf)) {
						if _, err := f.ReadAt(buf, off); err != nil {
							b.Fatal(err)
						}
					}
					f.Close()
				}
			})
		}
	}
}

func BenchmarkRandom4K(b *testing.B) {
	for _, w := range ways(b) {
		b.Run(w.name, func(b *testing.B) {
			f := w.open(b)
			defer f.Close()
			if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
				b.Fatal(err)
			}
			var times []time.Duration
			buf := make([]byte, 4096)
			for b.Loop() {
				off := rand.Int64N(benchSize/4096) * 4096
				start := time.Now()
				if _, err := f.ReadAt(buf, off); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(start))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, w := range ways(b) {
		b.Run(w.name, func(b *testing.B) {
			for b.Loop() {
				f, err := os.Open(w.path)
				if err := errors.Join(err, f.Close()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
