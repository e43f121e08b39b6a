package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A loader is a way in which programs read a whole model.
type loader struct {
	name, what string
	load       func(f *os.File, size int64) error
}

// The first one is used for results that name no loader.
var loaders = []loader{
	{"read", "one reader", func(f *os.File, size int64) error { return readParts(f, size, 1) }},
	{"read4", "4 readers of ranges", func(f *os.File, size int64) error { return readParts(f, size, 4) }},
	{"read16", "16 readers of ranges", func(f *os.File, size int64) error { return readParts(f, size, 16) }},
	{"mmap", "mmap, page after page", func(f *os.File, size int64) error { return readMapped(f, size, 0, unix.MADV_NORMAL) }},
	{"populate", "mmap with MAP_POPULATE", func(f *os.File, size int64) error { return readMapped(f, size, unix.MAP_POPULATE, unix.MADV_NORMAL) }},
	{"willneed", "mmap, MADV_WILLNEED", func(f *os.File, size int64) error { return readMapped(f, size, 0, unix.MADV_WILLNEED) }},
	{"tensors", "header, then tensors by 4 threads, mmap", readTensors},
}

// randomLoader forbids read-ahead, so each page is a request: it reads an eighth of the file.
var randomLoader = loader{"random", "mmap, MADV_RANDOM, an eighth", func(f *os.File, size int64) error { return readMapped(f, size/8, 0, unix.MADV_RANDOM) }}

// loaderNamed returns a loader; nothing if there is none of the name.
func loaderNamed(name string) loader {
	for _, l := range append(slices.Clip(loaders), randomLoader) {
		if l.name == name {
			return l
		}
	}
	return loader{}
}

// loadModel reads a file by the named loader.
func loadModel(name, path string) error {
	l := loaderNamed(name)
	if l.load == nil {
		return fmt.Errorf("there is no loader %q", name)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return l.load(f, info.Size())
}

// readParts reads with several concurrent readers, each of them a part of the file, in order.
func readParts(f *os.File, size int64, readers int) error {
	var g errgroup.Group
	part := (size + int64(readers) - 1) / int64(readers)
	for i := range int64(readers) {
		g.Go(func() error {
			r := io.NewSectionReader(f, i*part, min(part, size-i*part))
			_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 1<<20))
			return err
		})
	}
	return g.Wait()
}

// readMapped touches each page of a mapping, in order, as llama.cpp does.
func readMapped(f *os.File, size int64, flags, advice int) error {
	p, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED|flags)
	if err != nil {
		return err
	}
	if err := unix.Madvise(p, advice); err != nil {
		return err
	}
	touchPages(p)
	return unix.Munmap(p)
}

// touchPages reads a byte of each page.
func touchPages(p []byte) {
	var sum byte
	for i := 0; i < len(p); i += os.Getpagesize() {
		sum += p[i]
	}
	fmt.Fprint(io.Discard, sum) // so that the loop is not optimized away
}

// readTensors reads the header of safetensors and then touches the tensors in the order of the file,
// four at a time.
func readTensors(f *os.File, size int64) error {
	const threads = 4
	runtime.GOMAXPROCS(threads) // a thread that waits for a page blocks its processor
	var length [8]byte
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return err
	}
	n := int64(binary.LittleEndian.Uint64(length[:]))
	header := make([]byte, n)
	if _, err := f.ReadAt(header, 8); err != nil {
		return err
	}
	var entries map[string]struct {
		Offsets [2]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(header, &entries); err != nil {
		return err
	}
	var tensors [][2]int64
	for name, e := range entries {
		if !strings.HasPrefix(name, "__") {
			tensors = append(tensors, e.Offsets)
		}
	}
	slices.SortFunc(tensors, func(a, b [2]int64) int { return int(a[0] - b[0]) })
	p, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	data := p[8+n:]
	var next atomic.Int64
	var g errgroup.Group
	for range threads {
		g.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(tensors)); i = next.Add(1) - 1 {
				touchPages(data[tensors[i][0]:tensors[i][1]])
			}
			return nil
		})
	}
	_ = g.Wait() // they return no errors
	return unix.Munmap(p)
}
